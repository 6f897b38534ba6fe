"""A request plays its own script: an unmodified diffusers pipeline, in a greenlet.

A call of a component parks the script; the hub answers it later with the request's rows of a merged call. So each
request keeps its own control flow, scheduler and generator while the expensive modules work for all of them at once.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import greenlet
import torch

from stage_runtime.core.error_codec import contained
from stage_runtime.scripts.finite import check_finite
from stage_runtime.scripts.intercepted import own_step
from stage_runtime.scripts.progress import Progress


class ScriptAbort(BaseException):
    """Thrown into a parked script to end it. A BaseException, since pipelines catch Exception."""


class Call:
    """A component call that a script waits for. `context` is the cache context it was made in."""

    __slots__ = ("args", "component", "context", "guider", "kwargs", "method", "script", "shared")

    def __init__(
        self, script: Script, component: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.script, self.component, self.method, self.args, self.kwargs = (
            script,
            component,
            method,
            args,
            kwargs,
        )
        self.context: tuple[str, dict[str, Any]] | None = None
        self.guider: Any = None
        """A guider that must hook the module while this call runs, alone."""
        self.shared = True
        """Made by every rank that has a part of the model, at the same place; False: by this one for itself."""


class Together(Call):
    """Calls that a script made without looking at their answers; its answer is the list of theirs."""

    __slots__ = ("calls",)

    def __init__(self, calls: Sequence[Call]) -> None:
        first = calls[0]
        super().__init__(first.script, first.component, first.method, first.args, first.kwargs)
        self.calls = tuple(calls)


class Deferral(Protocol):
    """Lets a script go on before its calls are answered."""

    def answer(self, call: Call) -> Any:
        """Called from inside: the answer to `call`, or what stands for it until it is used."""

    def real(self, tree: Any) -> Any:
        """Called from inside: `tree` with all answers in it."""


class AtStep:
    """The park before a scheduler's step: the denoiser has answered, the latents have not moved yet."""


AT_STEP: Final = AtStep()


class Watcher(Protocol):
    """Sees what a script does; recording and replay are one."""

    def replayed(self, call: Call) -> tuple[Any] | None:
        """The answer to `call` if it need not be made for real, in a tuple of one; else None."""

    def called(self, call: Call, value: Any) -> None:
        """A real call was answered with `value`."""

    def stepped(self, script: Script, scheduler: Any, real: Callable[[], Any]) -> Any:
        """The result of a scheduler step; `real()` makes it."""


class Script:
    """One request's run of a pipeline, from start to result. It must be resumed on the thread that made it.

    `watcher`, when there is one, sees each answered call and carries out each scheduler step.
    """

    __slots__ = (
        "_greenlet",
        "_unchecked",
        "began_s",
        "deferral",
        "denoised_s",
        "done",
        "ended_s",
        "error",
        "pending",
        "pipeline",
        "play",
        "prepared_s",
        "progress",
        "replays",
        "request_id",
        "result",
        "watcher",
    )

    def __init__(self, request_id: str, progress: Progress | None = None) -> None:
        self.request_id = request_id
        self.progress = progress or Progress()
        self.pipeline: Any = None
        self.play: Callable[[], Any] = lambda: None
        self.pending: Call | AtStep | None = None
        self.result: Any = None
        self.error: Exception | None = None
        self.done = False
        self.began_s = self.prepared_s = self.denoised_s = self.ended_s = 0.0
        """Where it was when, on the performance counter; the hub notes the middle two. 0: not there yet."""
        self.replays = 0
        """Turns at the start that are replayed: they are no progress, and a tick runs through them."""
        self.watcher: Watcher | None = None
        self.deferral: Deferral | None = None
        self._unchecked: Any = None
        """What the last step gave, until somebody has seen that it is finite."""
        self._greenlet = greenlet.greenlet(self._run)

    def _run(self) -> None:
        try:
            self.result = self.play()
            check_finite(self._unchecked, "latents")
        except ScriptAbort:
            pass
        except BaseException as error:  # noqa: BLE001 - a pipeline's failure is its request's, whatever it is
            self.error = contained(error)
        finally:
            self.done, self.pending, self.ended_s = True, None, time.perf_counter()
            self._unchecked = None

    @property
    def steps(self) -> int:
        """Steps done of those asked for."""
        return self.progress.steps

    @property
    def turns(self) -> int:
        """Turns done of the pipeline's loops."""
        return self.progress.turns

    @property
    def started(self) -> bool:
        """True once the pipeline has begun."""
        return self.done or bool(self._greenlet)

    def start(self) -> None:
        """Run up to the first park, or to the end."""
        self.began_s = time.perf_counter()
        self._greenlet.switch()

    def park(self, pending: Call | AtStep) -> Any:
        """Called from inside: wait until the hub answers, and return the answer."""
        self.pending = pending
        return self._greenlet.parent.switch()

    def resume(self, answer: Any = None) -> None:
        """Give the pending call its answer and run up to the next park."""
        self.pending = None
        self._greenlet.switch(answer)

    def throw(self, error: BaseException) -> None:
        """Raise `error` at the pending call, inside the pipeline, and run up to the next park."""
        self.pending = None
        self._greenlet.throw(error)

    def abort(self) -> None:
        """End the script wherever it is parked; its `finally` blocks and context managers run."""
        if not self.started:
            self.done = True
        while not self.done:
            self.throw(ScriptAbort())

    def step(self, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called from inside: one scheduler step, after a park."""
        if self.deferral is not None:
            args, kwargs = self.deferral.real((args, kwargs))
        self.park(AT_STEP)
        real = functools.partial(own_step, scheduler, *args, **kwargs)
        answer = real() if self.watcher is None else self.watcher.stepped(self, scheduler, real)
        self.progress.stepped()
        self._unchecked = answer
        return answer

    def ask(self, call: Call) -> Any:
        """Called from inside: the answer to a call, or what stands for it until it is used."""
        return self.park(call) if self.deferral is None else self.deferral.answer(call)

    def decode(self, call: Call) -> Any:
        """Called from inside: a decoder's answer, of latents that are finite as it is itself."""
        if self.deferral is not None:
            call.args, call.kwargs = self.deferral.real((call.args, call.kwargs))
        check_finite((call.args, call.kwargs), "latents")
        self._unchecked = None
        answer = self.ask(call)
        check_finite(answer, "pixels or samples")
        return answer

    def __del__(self) -> None:
        """A script that is dropped in mid-play is ended here: where its greenlet dies, grad mode would leak out."""
        if self.started and not self.done:
            # collected on another thread, it can't be resumed there
            with suppress(greenlet.error), torch.no_grad():
                self.abort()

    def release(self) -> None:
        """Drop what a finished script holds, so that no traceback keeps tensors alive."""
        self.pipeline = self.watcher = self.deferral = None
        self.play = lambda: None
        if self.error is not None:
            self.error = self.error.with_traceback(None)
            self.error.__context__ = self.error.__cause__ = None
