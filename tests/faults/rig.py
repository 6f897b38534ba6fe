"""One engine under test, in this process: brings requests into a phase, and sees what became of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import psutil

from faults.engines import LossyChannel, LossyExecutor
from faults.matrix import Cell, Fault, Layout, Mode, Phase
from faults.points import CONVERT, ENV_FOLDER, Plan
from stage_api.config import StageConfig
from stage_api.spec import ExtensionsSpec
from stage_runtime.core.errors import StageError
from stage_runtime.core.outcome import Aborted, Completed, Terminal
from stage_runtime.core.request import Request
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.streams import Stream
from stage_runtime.exit import exit_code_of
from stage_runtime.ipc.socket_folder import prefix_of
from support.mp_stage import PATIENCE_S, a_config, a_drawing, serving
from support.stage_process import ROOT, until

STEPS: Final = 6
NEIGHBOURS: Final = 2
BIG_SIDE: Final = 192
"""Pixels of a picture that is too large for a message."""

LAYOUTS: Final = {
    Layout.UNI: {"executor": "uni"},
    Layout.MP_1: {"executor": "mp"},
    Layout.DATA_2: {"executor": "mp", "data": 2},
    Layout.CFG_2: {"executor": "mp", "cfg": 2},
}
PLACES: Final = {
    Phase.PREPARING: ("text_encoder", 1),
    Phase.MID_STEP: ("transformer", 4),
    Phase.MATERIALISING: (CONVERT, 1),
}
"""Which call of what a request is in."""


def config_of(layout: Layout, mode: Mode) -> StageConfig:
    """A stage of the shapes model in which faults can strike."""
    config = a_config(mode.value, **LAYOUTS[layout])
    extensions = ExtensionsSpec(
        engine="faults.engines:HastyEngine",
        executor=None if layout is Layout.UNI else "faults.engines:LossyExecutor",
        runner="faults.points:PointedRunner",
        worker="faults.points:FaultPoints",
    )
    return config.model_copy(update={"engine": config.engine.model_copy(update={"extensions": extensions})})


def drawing(name: str, *, side: int = 64) -> Request:
    """One picture to draw."""
    return a_drawing(name, steps=STEPS, side=side)


def rank_at_fault(cell: Cell) -> int:
    """Where it strikes: the second of two that work together, unless only the first has something to do or to say."""
    alone = cell.phase is Phase.MATERIALISING or cell.fault in (Fault.BAD_REPLY, Fault.LOST_REPLY)
    return 1 if cell.layout is Layout.CFG_2 and not alone else 0


def ranks_held(cell: Cell) -> list[int]:
    """The ranks that stand still in the cell's phase: both, where both have something to do."""
    if cell.phase is Phase.IDLE:
        return []
    if cell.layout is Layout.DATA_2:
        return [0] if cell.fault is Fault.FULL_MEMORY else [0, 1]
    return [0, 1] if cell.layout is Layout.CFG_2 and cell.phase is not Phase.MATERIALISING else [0]


class Rig:
    """A served engine. Requests get names of their own, so that many cells may use it."""

    def __init__(self, engine: Engine, layout: Layout, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self._layout = layout
        self._numbers = count(1)
        self._ends: dict[str, Terminal] = {}
        engine.observe(self)
        self._pids = tuple(self.executor.pids.values()) if layout is not Layout.UNI else ()

    @property
    def has_ranks(self) -> bool:
        """False where all is in this process."""
        return self._layout is not Layout.UNI

    @property
    def executor(self) -> LossyExecutor:
        """Its executor; only where there are ranks."""
        executor = self.engine._executor
        assert isinstance(executor, LossyExecutor)
        return executor

    @property
    def channel(self) -> LossyChannel:
        """What its replies come through."""
        return self.executor.lossy

    def prove(self) -> None:
        """Run requests to their end, so that a hang is told from measured pace."""
        for stream in self.add("proof"):
            stream.result(PATIENCE_S)

    def add(self, name: str, *, side: int = 64) -> list[Stream]:
        """A request and its neighbours; the first is the victim."""
        number = next(self._numbers)
        names = [f"{name}-{number}", *(f"{name}-{number}-neighbour-{n}" for n in range(NEIGHBOURS))]
        requests = [drawing(names[0], side=side), *map(drawing, names[1:])]
        return self.engine.add(requests)

    def end_of(self, request_id: str) -> str:
        """How a request ended, whoever still listens: `completed`, `aborted`, or status and code of its error."""
        until(lambda: request_id in self._ends, f"{request_id} has ended", PATIENCE_S)
        return in_words(self._ends[request_id])

    def hold(self, cell: Cell) -> None:
        """Have the ranks stop when a request is in the cell's phase."""
        for rank in ranks_held(cell):
            place, nth = PLACES[cell.phase]
            Plan(place, nth, next(self._numbers)).write(self.folder, rank)

    def wait_held(self, cell: Cell) -> None:
        """Until they have."""
        for rank in ranks_held(cell):
            until((self.folder / f"there-{rank}").exists, f"rank {rank} is {cell.phase}", PATIENCE_S)
        if cell.phase is Phase.MATERIALISING:
            held = len(ranks_held(cell))
            until(lambda: self.engine.snapshot().materialising >= held, "the engine knows it", PATIENCE_S)

    def go(self, cell: Cell, word: str = "on", *, others: str | None = None) -> None:
        """Tell the rank at fault, and the others that stand there, what to do."""
        for rank in ranks_held(cell):
            said = word if others is None or rank == rank_at_fault(cell) else others
            (self.folder / f"go-{rank}").write_text(said)

    def look(self) -> str:
        """Whether it serves and holds nothing, or how it ended."""
        death = self.engine.death
        if death is None:
            until(self._at_rest, "nothing is held for any request", PATIENCE_S)
            return "well"
        until(lambda: not self.left(), f"nothing is left of it: {self.left()}", PATIENCE_S)
        return f"exit {int(exit_code_of(death))}"

    def left(self) -> list[str]:
        """What a dead engine should have taken with it: processes, shared memory, socket folders."""
        mine = "-".join(prefix_of(os.getpid()).split("-")[1:3])
        names = [path.name for path in Path(tempfile.gettempdir()).glob(f"omnistage-{mine}-*")]
        return names + [f"process {pid}" for pid in self._pids if psutil.pid_exists(pid)]

    # As an observer of the engine

    def on_started(self, queue_s: float) -> None:
        """Nothing."""

    def on_wave(self, size: int, steps: int, seconds: float) -> None:
        """Nothing."""

    def on_ended(self, outcome: Terminal, seconds: float) -> None:
        """Remember how."""
        self._ends[outcome.request_id] = outcome

    def _at_rest(self) -> bool:
        load = self.engine.snapshot()
        busy = load.waiting + load.running + load.materialising + load.live + load.outstanding_cost
        return not busy and not any(self.engine.outstanding().result(PATIENCE_S).values())


@contextmanager
def rigged(layout: Layout, mode: Mode) -> Iterator[Rig]:
    """An engine between ready and closed. Proven, so that its pace is known."""
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as name,
        _environment(name),
        serving(config_of(layout, mode)) as engine,
    ):
        rig = Rig(engine, layout, Path(name))
        rig.prove()
        yield rig


@contextmanager
def _environment(folder: str) -> Iterator[None]:
    """What ranks get: where their orders lie, and where these modules are."""
    path = [str(ROOT / one) for one in ("crds", "worker", "tests", "models/shapes")]
    before = {name: os.environ.get(name) for name in (ENV_FOLDER, "PYTHONPATH")}
    os.environ[ENV_FOLDER] = folder
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def in_words(end: Terminal | StageError) -> str:
    """How a request ended."""
    match end:
        case Completed():
            return "completed"
        case Aborted():
            return "aborted"
        case _:
            return f"{end.status} {end.code}"
