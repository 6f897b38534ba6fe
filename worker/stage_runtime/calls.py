"""The requests of one call from Python on their way through the engine, and their outputs as Python has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Semaphore
from typing import Any, Final

from stage_runtime.core.outcome import Completed, Modality, Output, Progressed, as_error
from stage_runtime.core.request import Request
from stage_runtime.engine.base import StageEngine
from stage_runtime.engine.streams import Stream

Progress = Callable[[int, int], None]
"""(denoise steps done, denoise steps in all), over all pictures of a call; called in the caller's thread."""
TakeOutput = Callable[[int, Output], None]
"""Takes an output and its place in the call."""
LOOK_S: Final = 0.1  # without news, between two looks at the engine's health


class Call:
    """The requests of one call on their way: fed to the engine as there is room, taken in as they end."""

    def __init__(self, engine: StageEngine, requests: Sequence[Request], places: Semaphore) -> None:
        self._engine = engine
        self._requests = requests
        self._places = places
        self._streams: dict[int, Stream] = {}
        """Those under way, by their place in the call. Each holds one of the places."""
        self._fed = 0
        self._news: SimpleQueue[int] = SimpleQueue()
        self._done = 0
        self._steps: dict[int, int] = {}

    def run(
        self, take: TakeOutput, progress: bool | Progress, take_chunk: TakeOutput = lambda place, piece: None
    ) -> None:
        """Give `take` each output as it comes, and `take_chunk` each finished piece of one before.

        Raises: the typed error of the first that fails; what `take` and `take_chunk` raise.
        """
        report, close = _reporter(progress, sum(request.steps for request in self._requests))
        try:
            while self._done < len(self._requests):
                self._feed()
                self._take(self._next(), take, take_chunk)
                report(sum(self._steps.values()))
        finally:
            for stream in self._streams.values():
                stream.close()
                self._places.release()
            close()

    def _next(self) -> int:
        """Where there is news. The engine ends this wait: also its death and its close give every request an end.

        Raises: EngineHung when a tick hangs, of which nobody else would tell; EngineDeadError.
        """
        while True:
            try:
                return self._news.get(timeout=LOOK_S)
            except Empty:
                self._engine.check_health()

    def _feed(self) -> None:
        """Have as many drawn as there are places, together, so that they can share a wave."""
        left, taken = len(self._requests) - self._fed, 0
        # Only who has nothing under way waits for others' places: whoever holds one gets on and gives it back.
        while taken < left and self._places.acquire(blocking=not self._streams and not taken):
            taken += 1
        if not taken:
            return
        try:
            streams = self._engine.add(self._requests[self._fed : self._fed + taken])
        except BaseException:
            self._places.release(taken)
            raise
        for place, stream in enumerate(streams, start=self._fed):
            self._streams[place] = stream
            stream.subscribe(partial(self._news.put, place))
        self._fed += taken

    def _take(self, place: int, take: TakeOutput, take_chunk: TakeOutput) -> None:
        stream = self._streams.get(place)
        while stream is not None and (outcome := stream.take()) is not None:
            match outcome:
                case Progressed(step=step, preview=preview, chunk=chunk):
                    self._steps[place] = step
                    if chunk and preview is not None:
                        take_chunk(place, preview)
                case Completed(output=output):
                    self._steps[place] = self._requests[place].steps
                    self._done += 1
                    del self._streams[place]
                    self._places.release()
                    take(place, output)
                case _:
                    raise as_error(outcome)


def _reporter(progress: bool | Progress, total: int) -> tuple[Callable[[int], None], Callable[[], None]]:
    """What to call with the steps done so far, and what to call in the end."""
    if callable(progress):
        return (lambda done: progress(done, total)), lambda: None
    if not progress:
        return (lambda done: None), lambda: None
    from tqdm import tqdm

    bar = tqdm(total=total, unit="step")
    return (lambda done: bar.update(done - bar.n) and None), bar.close


def picture_of(output: Output, seed: int | None) -> Any:
    """A PIL image; a list of them for a video."""
    from PIL import Image

    if output.modality is Modality.VIDEO:
        return [Image.fromarray(frame) for frame in _numbers(output)]
    image = Image.fromarray(_numbers(output))
    if seed is not None:
        image.info["seed"] = seed
    return image


def array_of(output: Output) -> Any:
    """float32; pixels from 0 to 1."""
    import numpy as np

    numbers = _numbers(output)
    return numbers if output.modality is Modality.AUDIO else numbers.astype(np.float32) / 255


def _numbers(output: Output) -> Any:
    import numpy as np

    return np.frombuffer(output.data, output.dtype).reshape(output.shape)
