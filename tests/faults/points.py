"""Places in a rank where a fault can strike: real hooks on real modules, told what to do through files.

A rank loads this as its worker extension and runner; the test holds the folder that `ENV_FOLDER` names. There

    plan-<rank>    which call to stop at: JSON of a `Plan`
    there-<rank>   written by the rank once it stands there
    go-<rank>      what it is to do then: "on", "never", "raise", or "raise again"

A merged call that fails is made again for each request alone. "raise" fails the first of these too: it is the
victim's, and its neighbours go on. "raise again" also fails the one after these, by which a rank that works together
with another finds out whether the other's failure is the request's fault.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from stage_runtime.core.outcome import Output
from stage_runtime.runner.runner import Runner
from stage_runtime.worker.extension import WorkerView

ENV_FOLDER: Final = "OMNISTAGE_TEST_POINTS"
LONGEST_S: Final = 120.0
"""No rank stands anywhere for longer, whatever became of the test."""
_LOOK_EVERY_S: Final = 0.005
CONVERT: Final = "convert"
"""Where an output is made of what a pipeline gave: the packer's thread in request mode with ranks."""


class Broken(RuntimeError):
    """What a module raises when it is told to."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Stop at the `nth` call of `place` from now on: a component's name, or `CONVERT`."""

    place: str
    nth: int
    number: int
    """Tells a plan from the one before it."""

    def write(self, folder: Path, rank: int) -> None:
        """Put it into force."""
        for name in (f"there-{rank}", f"go-{rank}"):
            (folder / name).unlink(missing_ok=True)
        _write(folder / f"plan-{rank}", json.dumps(asdict(self)))


class Points:
    """What one rank does at its places. It may be reached by several threads, each at a place of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rank = 0
        self._plan: Plan | None = None
        self._text = ""
        self._calls = 0
        self._alone = 0
        """Calls for one request since a merged one failed."""
        self._failing: tuple[int, ...] = ()
        """Which of them fail."""

    def settle(self, rank: int) -> None:
        """This is that rank."""
        self._rank = rank

    def reach(self, place: str, rows: int = 1) -> None:
        """A call of `place` for so many rows is about to be made. Raises: Broken."""
        plan = self._current()
        if plan is None or plan.place != place:
            return
        if self._failing and rows == 1:
            self._alone += 1
            if self._alone in self._failing:
                raise Broken("told to break, alone too")
        self._calls += 1
        if self._calls != plan.nth:
            return
        _write(self._folder / f"there-{self._rank}", str(os.getpid()))
        word = self._wait()
        if word.startswith("raise"):
            if rows > 1:
                self._failing = (1, rows + 1) if word.endswith("again") else (1,)
            raise Broken("told to break")

    def _current(self) -> Plan | None:
        try:
            text = (self._folder / f"plan-{self._rank}").read_text()
        except FileNotFoundError:
            return None
        if text != self._text:
            self._plan, self._text = Plan(**json.loads(text)), text
            self._calls, self._alone, self._failing = 0, 0, ()
        return self._plan

    def _wait(self) -> str:
        until_s = time.monotonic() + LONGEST_S
        go = self._folder / f"go-{self._rank}"
        while time.monotonic() < until_s:
            if go.exists() and (word := go.read_text()) != "never":
                return word
            time.sleep(_LOOK_EVERY_S)
        return "on"


def _here() -> Points:
    """The places of this process; a new engine in the same process has a new folder."""
    folder = Path(os.environ[ENV_FOLDER])
    return _BY_FOLDER.setdefault(folder, Points(folder))


_BY_FOLDER: dict[Path, Points] = {}


class FaultPoints:
    """Worker extension: hooks on the pipeline's modules."""

    def __init__(self, view: WorkerView) -> None:
        self._points = _here()
        self._points.settle(view.rank)
        for name, module in view.pipeline.components.items():
            if isinstance(module, torch.nn.Module):
                module.register_forward_pre_hook(self._hook(name), with_kwargs=True)

    def folder(self) -> str:
        """Where this rank looks for what to do."""
        return str(self._points._folder)

    def _hook(self, name: str) -> Any:
        def reach(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
            self._points.reach(name, max((one.shape[0] for one in tensors if one.ndim > 0), default=1))

        return reach


class PointedRunner(Runner):
    """A runner that may be stopped while it makes an output."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._points = _here()

    def convert(self, result: Any) -> Output:
        """What a pipeline has made, in host memory."""
        self._points.reach(CONVERT)
        return super().convert(result)


def _write(file: Path, text: str) -> None:
    """In one go: who looks sees all of it or nothing."""
    unfinished = file.with_suffix(".part")
    unfinished.write_text(text)
    unfinished.rename(file)
