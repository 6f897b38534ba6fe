"""Engines without a model for a stage's child process, told what to do by the requests themselves.

A request whose prompt is one of the words below does harm; every other is drawn as asked, `step_s` for each step.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from stage_runtime.core.errors import DeviceLost, EngineDeadError, ModelError
from stage_runtime.core.outcome import Outcome
from stage_runtime.core.request import Request
from stage_runtime.core.wave import Wave
from stage_runtime.engine.engine import Engine
from stage_runtime.hosting.remote_engine import ChildSpec, RemoteEngine
from support.builders import EngineBuilder, RequestBuilder
from support.http_stage import PictureExecutor
from support.scripted import PATIENCE_S

FACTORY: Final = "support.stage_child:build"
ROOT: Final = Path(__file__).resolve().parents[2]

STALL: Final = "stall"  # takes a slot and never moves
HANG: Final = "hang"  # its first tick never ends
DIE: Final = "die"  # the group dies of it
LOSE: Final = "lose"  # the device is lost
FAIL: Final = "fail"  # the model raises


@dataclass(frozen=True, slots=True)
class Options:
    """How the engine behaves. Seconds."""

    slots: int = 1
    queue: int = 64
    step_s: float = 0.0
    startup_timeout_s: float = 20.0
    broken_model: bool = False
    loads_forever: bool = False


class ObedientExecutor(PictureExecutor):
    """Does what the prompts say."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s = step_s
        self._never = threading.Event()

    def submit(self, wave: Wave) -> None:
        """Take them in."""
        super().submit(wave)
        for new in wave.new:
            self.unstall(new.request.request_id)
            match new.request.arguments["prompt"]:
                case "stall":
                    self.stall(new.request.request_id)
                case "hang":
                    self._never.wait()
                case "die":
                    self.die(EngineDeadError("rank 0 was killed", rank=0))
                case "lose":
                    self.die(DeviceLost("an illegal memory access was encountered"))
                case "fail":
                    self.fail(new.request.request_id, ValueError("nan"))

    def poll(self, deadline_s: float | None) -> Sequence[Outcome]:
        """One tick."""
        self._never.wait(self._step_s)
        return super().poll(deadline_s)


def build(argument: bytes) -> Engine:
    """The engine that `Options` as JSON describe."""
    options = Options(**json.loads(argument))

    def executor() -> ObedientExecutor:
        if options.broken_model:
            raise ModelError("no weights")
        if options.loads_forever:
            threading.Event().wait()
        return ObedientExecutor(options.step_s)

    builder = EngineBuilder().step_mode().slots(options.slots).queue(options.queue)
    return builder.startup_timeout(options.startup_timeout_s).executor(executor).build()


def argument(options: Options) -> bytes:
    """What `build` takes."""
    return json.dumps(asdict(options)).encode()


def child_engine(options: Options, *, factory: str = FACTORY) -> RemoteEngine:
    """The same engine in a child process, not started."""
    return RemoteEngine(
        ChildSpec(
            factory=factory,
            argument=argument(options),
            startup_timeout_s=PATIENCE_S,
            environ=environment(),
        )
    )


def environment() -> dict[str, str]:
    """A child's, with the sources and the tests' own on its path."""
    paths = os.pathsep.join(str(ROOT / part) for part in ("crds", "worker", "tests"))
    return {**os.environ, "PYTHONPATH": paths}


def told(word: str, request_id: str = "a", steps: int = 4) -> Request:
    """A request that does what the word says."""
    return RequestBuilder(request_id).steps(steps).argument("prompt", word).build()
