"""Pictures from Python, without a server: `Omni(model).generate(prompts)`.

The same contract, scheduler, engine and executor as of a served stage; arguments have the names that diffusers gives.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Semaphore, local
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from weakref import finalize

from stage_api import names
from stage_api.config import StageConfig
from stage_api.errors import Fault, SpecError
from stage_api.manifest import load_manifest, parse_stage
from stage_api.source import Embedded
from stage_api.spec import ExecutorKind, Mode
from stage_api.stage import DiffusionStage
from stage_runtime.assemble import build_stage_engine
from stage_runtime.call_arguments import (
    count_of,
    for_prompts,
    plain,
    plain_arguments,
    refused,
    with_seeds,
    with_states,
)
from stage_runtime.calls import Call, Progress, array_of, picture_of
from stage_runtime.core.capability import Capability
from stage_runtime.core.errors import EngineDeadError, ModelError, NotAdmitting
from stage_runtime.core.outcome import Modality, Output
from stage_runtime.core.request import Request
from stage_runtime.engine.phase import Phase
from stage_runtime.executor.select import default_kind
from stage_runtime.extensions import Given
from stage_runtime.pipelines.arguments import build_requests, check_prompt
from stage_runtime.pipelines.contract import Wishes
from stage_runtime.pipelines.served_checkpoint import resolve_model
from stage_runtime.steering import Steering

if TYPE_CHECKING:
    import torch

    from stage_runtime.engine.base import StageEngine

OutputType = Literal["pil", "np"]
_MODELS: Final = f"a folder, a manifest, or an embedded model ({', '.join(Embedded)})"
DTYPE: Final = "float32"
"""Where no manifest says otherwise: what diffusers takes, and what gives its bits."""


class Omni(Steering):
    """A loaded model that draws. Threads may share it; `close` it, or use it in a `with`.

    `model` is the name of an embedded model, a folder in the diffusers format, or a manifest. What isn't given here
    is the manifest's, or the contract's default; numbers are float32 then. With `max_num_seqs` above 1 requests share
    the device, which is faster, and a picture's last bits may depend on its company.

    Raises: SpecError for an option that the contract refuses; ModelError; EngineDeadError when the model doesn't fit.
    """

    def __init__(  # noqa: PLR0913 - each is an option of its own
        self,
        model: str | Path,
        *,
        max_num_seqs: int | None = None,
        mode: str | None = None,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        executor: str | type | None = None,
        scheduler: str | type | None = None,
        process: str | None = None,
        parallelism: Mapping[str, object] | None = None,
        vae_use_slicing: bool | None = None,
        vae_use_tiling: bool | None = None,
        streaming_output: bool = False,
        load: bool = True,
    ) -> None:
        """`parallelism`: degrees as a manifest has them, such as {"data": 2}; each rank is a process then.

        `executor`: "uni", "mp", or a class of your own; `scheduler`: a class of your own. A class is given as
        itself or as "package.module:Class". `process`: "inline" keeps the engine in this process, "child" gives it
        one of its own, where classes come as text only. `vae_use_slicing`: decode a batch picture by picture, and
        `vae_use_tiling`: a large picture in tiles, to need less memory. `streaming_output`: run step by step,
        whatever the manifest says, so that `generate` can give finished pieces of an output (`on_chunk`). `load`:
        False leaves loading to the first `generate`, which checks its arguments before.
        """
        options = {
            "maxNumSeqs": plain(max_num_seqs),
            "mode": _streaming_mode(mode) if _switch("streaming_output", streaming_output) else mode,
            "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
            "device": None if device is None else str(device),
            "executor": executor if executor in list(ExecutorKind) else None,
            "process": process,
        }
        engine = {name: value for name, value in options.items() if value is not None}
        switches = {"slicing": plain(vae_use_slicing), "tiling": plain(vae_use_tiling)}
        vae = {name: value for name, value in switches.items() if value is not None}
        config = _config(model, engine, parallelism, vae)
        self._model = resolve_model(config.model)
        own = Given(executor=None if options["executor"] else executor, scheduler=scheduler)
        self._engine = build_stage_engine(config, self._model, name="omni", given=own)
        self._home = os.getpid()
        # Also for one that is forgotten, and at the interpreter's end.
        self._closing = finalize(self, _close_at, self._home, self._engine)
        # Callers feed the line only as fast as it moves, so that it never overflows.
        self._places = Semaphore(config.engine.max_queue_size)
        self._device = config.engine.device.value
        self._streams = plain(streaming_output)
        self._loading = Lock()
        self._here = local()
        """Of each thread: whether it is inside `generate`."""
        if load:
            self.load()

    def load(self) -> None:
        """Load the model, unless it is loaded.

        Raises: ModelError; EngineDeadError, also in a process that was forked; NotAdmitting once closed.
        """
        if os.getpid() != self._home:  # before any lock: a thread that isn't here may hold it
            raise EngineDeadError(
                f"this Omni lives in process {self._home}; a fork has none of its threads: make one after it"
            )
        with self._loading:
            if self._engine.phase is Phase.CLOSED:
                raise NotAdmitting("this Omni is closed")
            if self._engine.phase is Phase.CREATED:
                self._engine.start()
            try:
                self._engine.wait_ready()
            except BaseException:
                with suppress(EngineDeadError):  # the first error counts, not that a load can't be broken off
                    self.close()
                raise

    @property
    def capability(self) -> Capability:
        """What the model can do, as found at load."""
        return self._engine.capability

    def generate(  # noqa: PLR0913 - they are diffusers' own
        self,
        prompt: str | Sequence[str],
        *,
        negative_prompt: str | Sequence[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int | None = None,
        guidance_scale: float | None = None,
        num_images_per_prompt: int | None = None,
        num_outputs_per_prompt: int | None = None,
        num_frames: int | None = None,
        seed: int | Sequence[int] | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        output_type: OutputType = "pil",
        progress: bool | Progress = False,
        on_picture: Callable[[int, Any], object] | None = None,
        on_chunk: Callable[[int, Any], object] | None = None,
        **arguments: Any,
    ) -> list[Any]:
        """Pictures of the prompts, in their order; those of one prompt stand together.

        `seed`: of the first picture, each next one has 1 more; or one for each prompt. `generator`: one for each
        picture, taken as its state and not moved on; instead of a seed. `output_type`: "pil" for PIL images (a list
        of them for a video), whose `info["seed"]` says the seed; "np" for arrays of float32 in [0, 1], rounded to 8
        bits. `progress`: a bar, or a function of (steps done, steps in all). `on_picture`: called with each picture and
        its place in the list as soon as it is there, in this thread. `on_chunk`: with `streaming_output`, called so
        with each finished piece of an output while the rest is being made, in order; the whole begins with them. The
        last piece comes with the whole only, and of a model that makes none nothing but the whole comes. `arguments`:
        the pipeline's own.

        Raises: InvalidRequest naming the argument; the error of the first picture that fails, the others end then;
        EngineHung when the device gives no answer.
        """
        self._check_output_type(output_type)
        self._check_told(on_picture, on_chunk)
        shared = Wishes(
            prompt="",
            n=count_of(num_images_per_prompt, num_outputs_per_prompt),
            width=plain(width),
            height=plain(height),
            num_inference_steps=plain(num_inference_steps),
            guidance_scale=plain(guidance_scale),
            num_frames=plain(num_frames),
            chunks=on_chunk is not None,
            extra=plain_arguments(arguments),
        )
        wishes = for_prompts(shared, prompt, negative_prompt)
        seeded = generator is None
        wishes = with_seeds(wishes, seed) if seeded else with_states(wishes, seed, self._states(generator))
        requests = self._requests(wishes)
        self.load()

        def seen(place: int, output: Output) -> Any:
            seed = requests[place].seed if seeded else None
            return array_of(output) if output_type == "np" else picture_of(output, seed)

        return self._drawn(requests, seen, progress, on_picture, on_chunk)

    def _drawn(
        self,
        requests: Sequence[Request],
        seen: Callable[[int, Output], Any],
        progress: bool | Progress,
        on_picture: Callable[[int, Any], object] | None,
        on_chunk: Callable[[int, Any], object] | None,
    ) -> list[Any]:
        """What `seen` makes of each request's output, in their order."""
        pictures: dict[int, Any] = {}

        def take(place: int, output: Output) -> None:
            pictures[place] = seen(place, output)
            if on_picture is not None:
                on_picture(place, pictures[place])

        def take_chunk(place: int, output: Output) -> None:
            if on_chunk is not None:
                on_chunk(place, seen(place, output))

        with self._drawing():
            Call(self._engine, requests, self._places).run(take, progress, take_chunk)
        return [pictures[place] for place in range(len(requests))]

    def close(self) -> None:
        """End what runs and give the model's memory back. Idempotent. Nothing in a fork, which has nothing of it."""
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Mark this thread: what it calls in the meantime would wait for room that its own call holds.

        Raises: InvalidRequest if it is marked.
        """
        if getattr(self._here, "drawing", False):
            raise refused("progress", "a function that leaves its own Omni alone", "one that calls generate")
        self._here.drawing = True
        try:
            yield
        finally:
            self._here.drawing = False

    def _requests(self, wishes: Sequence[Wishes]) -> list[Request]:
        call = f"omni-{secrets.token_hex(6)}"
        requests: list[Request] = []
        for place, wish in enumerate(wishes):
            requests += build_requests(self._model, wish, request_id=f"{call}-{place}")
            check_prompt(self._model, wish)
        return requests

    def _check_output_type(self, asked: object) -> None:
        modality = self._model.record.modality
        possible = ("np",) if modality is Modality.AUDIO else ("pil", "np")
        if asked not in possible:
            raise refused("output_type", f"{' or '.join(possible)}, for {modality}", repr(asked))

    def _check_told(self, on_picture: object, on_chunk: object) -> None:
        """Whether what is to be told can be. Raises: InvalidRequest."""
        if on_picture is not None and not callable(on_picture):
            raise refused("on_picture", "a function of a place and a picture", repr(on_picture)[:100])
        if on_chunk is not None and not callable(on_chunk):
            raise refused("on_chunk", "a function of a place and a piece", repr(on_chunk)[:100])
        if on_chunk is not None and not self._streams:
            raise refused("on_chunk", "an Omni with streaming_output=True", "one without")

    def _states(self, generator: object) -> list[bytes]:
        """What each generator would draw from next."""
        import torch

        from stage_runtime.devices.kinds import choose_device

        given = [generator] if isinstance(generator, torch.Generator) else generator
        if not isinstance(given, list | tuple):
            raise refused("generator", "a torch.Generator or a list of them", f"a {type(given).__name__}")
        device = choose_device(self._device).type
        states = []
        for one in given:
            if not isinstance(one, torch.Generator):
                raise refused("generator", "a list of torch.Generator", f"a {type(one).__name__} in it")
            if one.device.type != device:
                raise refused("generator", f"one on {device}, where the noise is drawn", str(one.device))
            states.append(bytes(one.get_state().numpy()))
        return states


def _close_at(home: int, engine: StageEngine) -> None:
    """Close `engine` where it lives: a fork's end must not end the ranks of who forked."""
    if os.getpid() == home:
        engine.close()


def _switch(name: str, value: object) -> bool:
    """An option that is on or off. Raises: SpecError for what is neither."""
    value = plain(value)
    if not isinstance(value, bool):
        raise SpecError([Fault(name, "true or false", repr(value))])
    return value


def _streaming_mode(mode: str | None) -> str:
    """The mode in which pieces come: a step at a time. Raises: SpecError where the call wants another one."""
    if mode not in (None, Mode.STEP):
        raise SpecError([Fault("spec.engine.mode", f"{Mode.STEP}, for streaming_output", str(mode))])
    return Mode.STEP.value


def _config(
    model: str | Path,
    options: Mapping[str, object],
    parallelism: object,
    vae: Mapping[str, object],
) -> StageConfig:
    """The config of an offline run. Raises: SpecError with every option that the contract refuses; ModelError."""
    value = _manifest(model)
    if degrees := _degrees(parallelism):
        value["spec"]["parallelism"] = degrees
        value["spec"].setdefault("engine", {})["executor"] = default_kind(ranks=2)
    value["spec"].setdefault("engine", {}).update(options)
    if vae:
        value["spec"].setdefault("vae", {}).update(vae)
    config = StageConfig.from_stage(parse_stage(value, executable=True))
    engine = config.engine
    room = max(engine.max_queue_size, 2 * engine.max_num_seqs)
    return config.model_copy(update={"engine": engine.model_copy(update={"max_queue_size": room})})


def _manifest(model: object) -> dict[str, Any]:
    """A stage that serves `model`, as JSON has it."""
    if not isinstance(model, str | Path) or not str(model):
        raise ModelError(
            f"{model!r}: expected {_MODELS}, got {'nothing' if not model else type(model).__name__}"
        )
    path = _path(model)
    if model in list(Embedded):
        source: dict[str, Any] = {"embedded": str(model)}
    elif path.is_dir():
        source = {"hostPath": {"path": str(path.resolve())}}
    elif path.is_file():
        return _only(load_manifest(path, executable=True)).to_json()
    else:
        raise ModelError(f"{model}: expected {_MODELS}, got none")
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "offline"},
        "spec": {"model": {"source": source}, "engine": {"dtype": DTYPE, "executor": default_kind(ranks=1)}},
    }


def _degrees(parallelism: object) -> dict[str, object]:
    """The degrees that were given. Raises: SpecError."""
    if not isinstance(parallelism, Mapping | None):
        got = f"a {type(parallelism).__name__}"
        raise SpecError([Fault("spec.parallelism", 'degrees by name, such as {"data": 2}', got)])
    return {name: plain(degree) for name, degree in (parallelism or {}).items()}


def _path(model: str | Path) -> Path:
    """Where a model may be. Raises: ModelError for what can't be a path at all."""
    try:
        path = Path(model).expanduser()
        path.stat()
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelError(
            f"{str(model)[:200]!r}: expected {_MODELS}, got what can't be a path: {error}"
        ) from None
    return path


def _only(stages: Sequence[DiffusionStage]) -> DiffusionStage:
    if len(stages) > 1:
        named = ", ".join(stage.metadata.name for stage in stages)
        raise SpecError([Fault("", f"one {names.KIND}", f"{len(stages)}: {named}")])
    return stages[0]
