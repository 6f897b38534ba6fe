"""A request plays its own script: an unmodified diffusers pipeline, in a greenlet, with stand-ins for its components.

A call of a component parks the script; the hub answers it later with the request's rows of a merged call. So each
request keeps its own control flow, scheduler and generator while the expensive modules work for all of them at once.

Traps handled here, each with a test of its name: one pipeline or scheduler object shared by requests, the epilogue
that resets every request's cache state, cache contexts held across a park, attributes set on a shared module,
pipelines nested in pipelines, schedulers that are deep-copied or compared by type, guiders that hook the model.
"""

from __future__ import annotations

import copy
import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

import greenlet
import torch

from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import RequestFailed
from stage_runtime.scripts.finite import check_finite
from stage_runtime.scripts.intercepted import intercept, own_step
from stage_runtime.scripts.progress import LoopBar, Progress

PARKING_METHODS: Final = ("decode", "encode")
"""Methods, beside the forward pass itself, whose calls park."""


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
        except KeyboardInterrupt:
            raise  # somebody at the terminal, where scripts run in the main thread
        except Exception as error:  # noqa: BLE001 - a pipeline's failure is its request's, whatever it is
            self.error = error
        except BaseException as error:  # noqa: BLE001 - what would end a process ends its request
            self.error = RequestFailed(words_of(error, kind=True)).with_traceback(error.__traceback__)
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


class ComponentProxy:
    """Stands for a shared module in one request's pipeline: calls park, everything else is the real module's.

    It is no nn.Module, but says it is of the real module's class, so that isinstance() holds.
    """

    __slots__ = ("_context", "_facts", "_guider", "_name", "_real", "_script")

    def __init__(self, real: torch.nn.Module, script: Script, name: str, facts: Mapping[str, Any]) -> None:
        for slot, value in (
            ("_real", real),
            ("_script", script),
            ("_name", name),
            ("_facts", facts),
            ("_context", None),
            ("_guider", None),
        ):
            object.__setattr__(self, slot, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(object.__getattribute__(self, "_real"))

    def __getattr__(self, name: str) -> Any:
        facts = object.__getattribute__(self, "_facts")
        if name in facts:
            return facts[name]
        value = getattr(object.__getattribute__(self, "_real"), name)
        if name in PARKING_METHODS and inspect.ismethod(value):
            parked = functools.partial(self._park, name)
            functools.update_wrapper(parked, value)
            return parked
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a request tried to set {name!r} on the shared component {self._name!r}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._park("forward", *args, **kwargs)

    def _park(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        call = Call(self._script, self._name, method, args, kwargs)
        call.context, call.guider = self._context, self._guider
        return self._script.decode(call) if method == "decode" else self._script.ask(call)

    @contextmanager
    def cache_context(self, name: str, **options: Any) -> Iterator[None]:
        """Recorded with the call, applied around the real one under the request's own name."""
        before = self._context
        object.__setattr__(self, "_context", (name, options))
        try:
            yield
        finally:
            object.__setattr__(self, "_context", before)

    def _reset_stateful_cache(self, *_args: Any, **_kwargs: Any) -> None:
        """The pipeline's epilogue would reset the state of every request; the hub drops this one's alone."""

    def hook_guider(self, guider: Any) -> None:
        """Have `guider` prepare the real module around this request's calls only."""
        object.__setattr__(self, "_guider", guider)


def is_pipeline(value: Any) -> bool:
    """True for a pipeline, also one nested in another."""
    return hasattr(type(value), "maybe_free_model_hooks") and hasattr(type(value), "components")


def components(pipeline: Any, prefix: str = "") -> dict[str, torch.nn.Module]:
    """Every module of `pipeline` by name, those of nested pipelines with their path, e.g. `prior_pipe.prior`."""
    found: dict[str, torch.nn.Module] = {}
    for name, value in vars(pipeline).items():
        if isinstance(value, torch.nn.Module):
            found[prefix + name] = value
        elif name != "_components_manager" and is_pipeline(value):
            found.update(components(value, f"{prefix}{name}."))
    return found


def stateful_parts(pipeline: Any) -> tuple[list[Any], list[Any]]:
    """Schedulers and guiders of a request's pipeline, nested ones too, in the order of their attributes."""
    schedulers: list[Any] = []
    guiders: list[Any] = []
    for name, value in vars(pipeline).items():
        if _is_scheduler(value):
            schedulers.append(value)
        elif _is_guider(value):
            guiders.append(value)
        elif name != "_components_manager" and is_pipeline(value):
            inner_schedulers, inner_guiders = stateful_parts(value)
            schedulers += inner_schedulers
            guiders += inner_guiders
    return schedulers, guiders


def _is_scheduler(value: Any) -> bool:
    return type(value).__module__.startswith("diffusers.schedulers") and hasattr(value, "step")


def _is_guider(value: Any) -> bool:
    return type(value).__module__.startswith("diffusers.guiders")


def private_pipeline(pipeline: Any, script: Script, prefix: str = "") -> Any:
    """`pipeline` for one request: own attributes, own schedulers and guiders, stand-ins for the modules.

    Attributes are put into `__dict__` directly: the pipeline's `__setattr__` would rewrite the shared config.
    """
    own = copy.copy(pipeline)
    own.__dict__ = dict(vars(pipeline))
    facts: Mapping[str, Mapping[str, Any]] = getattr(type(pipeline), "module_facts", {})
    own.__dict__["progress_bar"] = functools.partial(_loop_bar, script.progress)
    for name, value in vars(pipeline).items():
        if isinstance(value, torch.nn.Module):
            own.__dict__[name] = ComponentProxy(value, script, prefix + name, facts.get(name, {}))
        elif _is_scheduler(value):
            scheduler = own.__dict__[name] = copy.deepcopy(value)
            intercept(scheduler, script)
        elif _is_guider(value):
            own.__dict__[name] = _private_guider(value)
        elif name != "_components_manager" and is_pipeline(value):
            own.__dict__[name] = private_pipeline(value, script, f"{prefix}{name}.")
    return own


def _loop_bar(progress: Progress, iterable: Any = None, total: int | None = None, **_drawing: Any) -> LoopBar:
    return LoopBar(progress, iterable, total)


def _private_guider(guider: Any) -> Any:
    """A copy that leaves its hooks on the model to the hub: two requests' hooks of one name would collide."""
    own = copy.deepcopy(guider)
    base = next(kind for kind in type(own).__mro__ if kind.__name__ == "BaseGuidance")
    if type(own).prepare_models is not base.prepare_models:  # type: ignore[attr-defined]
        own.prepare_models = lambda denoiser: denoiser.hook_guider(own)
        own.cleanup_models = lambda denoiser: denoiser.hook_guider(None)
    return own


def open_script(
    pipeline: Any, request_id: str, arguments: Mapping[str, Any], progress: Progress | None = None
) -> Script:
    """A script, not started yet, that runs `pipeline(**arguments)` for one request, counting in `progress`."""
    script = Script(request_id, progress)
    script.pipeline = private_pipeline(pipeline, script)
    script.play = functools.partial(script.pipeline, **arguments)
    return script
