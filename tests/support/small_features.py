"""Features as later work will bring them, in miniature, and real: adapters, shallow models, targets elsewhere."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, ClassVar, Self

import torch

from stage_api.config import StageConfig
from stage_api.errors import Fault, SpecError
from stage_runtime.core.request import Request
from stage_runtime.features.feature import Feature, Served, Unsuitable
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.pipelines.parts import Part, ReadPart
from stage_runtime.scripts.hooks import CallHook, Run
from stage_runtime.scripts.script import Call, Script
from stage_runtime.scripts.target import Answer, OnAnswer, Target


class Adapters(Feature):
    """Each request's denoiser answers with an adapter of the request's own: its seed, added to every row of it.

    `mixed`: rows of several adapters share a call; else only requests of one adapter do.
    """

    def __init__(self, *, mixed: bool) -> None:
        self._mixed = mixed
        self.of: dict[str, int] = {}
        self.runs: list[tuple[str, ...]] = []
        """The members of each run that the hook was around."""
        self.closed = False

    def hooks(self, model: Any) -> Sequence[CallHook]:
        """One hook."""
        return (_Adapted(self),)

    def attend(self, script: Script, request: Request | None) -> None:
        """Note the request's adapter; what the runtime tries for itself has none."""
        self.of[script.request_id] = 0 if request is None else request.seed % 10

    def forget(self, request_id: str) -> None:
        """Forget it."""
        self.of.pop(request_id, None)

    def held(self) -> dict[str, int]:
        """Adapters in use."""
        return {"adapters": len(self.of)}

    def close(self) -> None:
        """Note that it was."""
        self.closed = True


class _Adapted:
    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters

    def needs_solo(self, call: Call) -> bool:
        return False

    def key(self, call: Call) -> Hashable:
        return None if self._adapters._mixed else self._adapters.of.get(call.script.request_id, 0)

    @contextmanager
    def around(self, run: Run) -> Iterator[None]:
        names = tuple(call.script.request_id for call in run.calls)
        self._adapters.runs.append(names)
        adapters = [self._adapters.of.get(name, 0) for name in names]

        def add(_module: torch.nn.Module, _args: Any, answer: torch.Tensor) -> torch.Tensor:
            rows = run.rows or (len(answer),)
            each = torch.tensor([a for a, n in zip(adapters, rows, strict=True) for _ in range(n)])
            return answer + 0.1 * each.view(-1, 1, 1, 1)

        handle = run.module.register_forward_hook(add)
        try:
            yield
        finally:
            handle.remove()

    def forget(self, request_id: str) -> None:
        """Nothing is kept here."""


class Shallow(Feature):
    """Keeps the first block of every list of blocks: the others are gone before a weight is read."""

    def reads(self, read: ReadPart) -> ReadPart:
        """Read a shallower class instead."""

        def shallow(part: Part) -> Any:
            if part.name != "transformer":
                return read(part)
            whole = part.kind.__init__

            @functools.wraps(whole)  # its signature says what of the config is read
            def cut(module: Any, *args: Any, **kwargs: Any) -> None:
                whole(module, *args, **kwargs)
                for child in module.children():
                    if isinstance(child, torch.nn.ModuleList):
                        del child[1:]

            return read(replace(part, kind=type(part.kind.__name__, (part.kind,), {"__init__": cut})))

        return shallow


class Refused(Feature):
    """Asked for by no stage that can have it."""

    field: ClassVar[str] = "spec.refused"

    @classmethod
    def claim(cls, config: StageConfig, model: ResolvedModel) -> Self | None:
        """Never."""
        raise SpecError([Fault(cls.field, "something else", "this")])


class AlsoRefused(Refused):
    """Another."""

    field = "spec.also"


class Unsure(Feature):
    """Puts a target before the others that answers `change` of what they do, or says that it can't."""

    field: ClassVar[str] = "spec.unsure"
    asked, otherwise = "true", "false"

    def __init__(self, change: Callable[[Any], Any] | None) -> None:
        self._change = change

    def target(self, inner: Target, served: Served) -> Target:
        """Raises: Unsuitable where there is no change to make."""
        if self._change is None:
            raise Unsuitable("its blocks are of glass")
        return _Changed(inner, self._change)


class _Changed:
    def __init__(self, inner: Target, change: Callable[[Any], Any]) -> None:
        self._inner, self._change = inner, change

    def submit(self, calls: Sequence[Call]) -> None:
        self._inner.submit(calls)

    def poll(self, timeout_s: float | None = None) -> Sequence[Answer]:
        return [answer._replace(value=self._change(answer.value)) for answer in self._inner.poll(timeout_s)]

    def wake_by(self, wake: OnAnswer) -> None:
        self._inner.wake_by(wake)

    def forget(self, request_id: str) -> None:
        self._inner.forget(request_id)


class Elsewhere(Feature):
    """Calls are answered by another thread, when it is let: a component in another process, seen from here."""

    def __init__(self) -> None:
        self.target_there: LateTarget | None = None

    def target(self, inner: Target, served: Served) -> Target:
        """The other thread."""
        self.target_there = LateTarget(inner)
        return self.target_there

    def close(self) -> None:
        """End the thread."""
        if self.target_there is not None:
            self.target_there.close()


class LateTarget:
    """Answers from a thread of its own. Calls of requests that `hold` names wait there until `let` names them."""

    def __init__(self, inner: Target) -> None:
        self._inner = inner
        self._lock = threading.Condition()
        self._held: set[str] = set()
        self._waiting: list[Call] = []
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._there = threading.Semaphore(0)
        self._wake: OnAnswer = lambda: None
        self._ended = False
        self.polls = 0
        self._thread = threading.Thread(target=self._serve, name="late-target", daemon=True)
        self._thread.start()

    def hold(self, *names: str) -> None:
        """Answer these no more."""
        with self._lock:
            self._held |= set(names)

    def let(self, *names: str) -> None:
        """Answer these again."""
        with self._lock:
            self._held -= set(names)
            self._lock.notify()

    def submit(self, calls: Sequence[Call]) -> None:
        with self._lock:
            self._waiting += calls
            self._lock.notify()

    def poll(self, timeout_s: float | None = None) -> Sequence[Answer]:
        self.polls += 1
        if not self._there.acquire(timeout=timeout_s):
            return []
        return [self._answers.get()]

    def wake_by(self, wake: OnAnswer) -> None:
        self._wake = wake

    def forget(self, request_id: str) -> None:
        with self._lock:
            self._waiting = [call for call in self._waiting if call.script.request_id != request_id]
        self._inner.forget(request_id)

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._ended = True
            self._lock.notify()
        self._thread.join()

    @torch.no_grad()
    def _serve(self) -> None:
        while True:
            with self._lock:
                while not (due := [c for c in self._waiting if c.script.request_id not in self._held]):
                    if self._ended:
                        return
                    self._lock.wait()
                self._waiting = [call for call in self._waiting if call not in due]
            self._inner.submit(due)
            for answer in self._inner.poll():
                self._answers.put(answer)
                self._there.release()
                self._wake()
