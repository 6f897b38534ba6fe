"""The fault matrix as data: each fault in each phase, layout and mode, and its one right outcome.

`right_of` looks a cell up in `RULES`, where the first rule that fits decides. A combination that can't be has its
reason there instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import Final, NamedTuple


class Fault(StrEnum):
    """What goes wrong."""

    SIGKILL = "SIGKILL"
    SIGSTOP = "SIGSTOP"
    SIGTERM = "SIGTERM"
    EXCEPTION = "exception"
    """In the call of a module that is made for one request, in every rank that makes it."""
    ONE_SIDED = "exception on one rank"
    """The same in one of several ranks that work together."""
    STUCK_COLLECTIVE = "hang in a collective"
    """A rank never comes to the collective that another waits in."""
    BAD_REPLY = "bad reply"
    LOST_REPLY = "lost reply"
    FULL_MEMORY = "full shared memory"
    DROPPED = "dropped consumer"
    ABORT = "abort"


class Phase(StrEnum):
    """Where the request is that is hit."""

    IDLE = "idle"
    PREPARING = "preparing"
    MID_STEP = "mid-step"
    MATERIALISING = "materialising"


class Layout(StrEnum):
    """Who computes. Two ranks come in both kinds."""

    UNI = "uni"
    MP_1 = "mp 1"
    DATA_2 = "mp 2 (data)"
    CFG_2 = "mp 2 (cfg)"


class Mode(StrEnum):
    """How requests share a device."""

    REQUEST = "request"
    STEP = "step"


class Cell(NamedTuple):
    """One combination."""

    fault: Fault
    phase: Phase
    layout: Layout
    mode: Mode

    def __str__(self) -> str:
        return f"{self.fault}, {self.phase}, {self.layout}, {self.mode}"


@dataclass(frozen=True, slots=True)
class Right:
    """What has to be seen. `victim`: how the request ended that was hit, or in phase idle the next one."""

    victim: str
    neighbours: str
    elsewhere: str | None = None
    """How the neighbour ended that runs on another copy of the model; None: as the others."""
    engine: str = "well"
    """`well`: it still serves, and holds nothing. Else the exit code of its end, or the signal."""
    names_rank: bool = False
    why: str = ""
    """What the engine's death says, among other things."""
    fatal: bool = False
    """Nothing is served afterwards."""


@dataclass(frozen=True, slots=True)
class Nonsense:
    """The combination can't be."""

    why: str


UNHARMED: Final = Right("completed", "completed")
ABORTED: Final = Right("aborted", "completed")
FAILED: Final = Right("500 request_failed", "completed")
NO_MEMORY: Final = Right("507 out_of_memory", "completed")
RANK_DIED: Final = Right("503 engine_dead", "503 engine_dead", engine="exit 70", names_rank=True, fatal=True)
BROKEN: Final = replace(RANK_DIED, why="failed on rank 1 alone: Broken: told to break")
HUNG: Final = Right("503 engine_hung", "503 engine_hung", engine="exit 71", fatal=True)
HALF_HUNG: Final = replace(HUNG, elsewhere="completed")
"""The other copy still does its part."""
OUTPUT_LOST: Final = replace(HUNG, neighbours="completed")
"""The neighbours' outputs came."""
KILLED: Final = Right("broken", "broken", engine="SIGKILL", fatal=True)
DRAINED: Final = Right("completed", "completed", engine="exit 0", fatal=True)
GONE: Final = Right("broken", "broken", engine="exit 0", fatal=True)
"""Told to stop while nothing runs: who comes later finds nobody."""
THAWED: Final = Right("completed", "completed", engine="exit 0", fatal=True)
"""Frozen for longer than a hang takes, it goes on; in the end it is stopped in an orderly way."""

Rule = tuple[frozenset[Fault], frozenset[Phase], frozenset[Layout], frozenset[Mode], Right | Nonsense]


def _rule(
    verdict: Right | Nonsense,
    *,
    faults: str = "",
    phases: str = "",
    layouts: str = "",
    modes: str = "",
) -> Rule:
    """Names separated by a bar; nothing: all."""
    return (
        frozenset(map(Fault, faults.split(" | "))) if faults else frozenset(Fault),
        frozenset(map(Phase, phases.split(" | "))) if phases else frozenset(Phase),
        frozenset(map(Layout, layouts.split(" | "))) if layouts else frozenset(Layout),
        frozenset(map(Mode, modes.split(" | "))) if modes else frozenset(Mode),
        verdict,
    )


RULES: Final[tuple[Rule, ...]] = (
    _rule(
        Nonsense("in step mode an output is there with its last step"), phases="materialising", modes="step"
    ),
    _rule(Nonsense("one process has nothing on its way to itself"), phases="materialising", layouts="uni"),
    _rule(Nonsense("one process sends no replies"), faults="bad reply | lost reply", layouts="uni"),
    _rule(Nonsense("one process hands nothing over"), faults="full shared memory", layouts="uni"),
    _rule(
        Nonsense("no rank works together with another"),
        faults="hang in a collective | exception on one rank",
        layouts="uni | mp 1 | mp 2 (data)",
    ),
    _rule(
        Nonsense("who waits for work calls no module and is in no collective"),
        faults="exception | exception on one rank | hang in a collective",
        phases="idle",
    ),
    _rule(
        Nonsense("an output is packed by one rank, alone"),
        faults="exception on one rank | hang in a collective",
        phases="materialising",
    ),
    _rule(KILLED, faults="SIGKILL", layouts="uni"),
    _rule(GONE, faults="SIGTERM", phases="idle", layouts="uni"),
    _rule(DRAINED, faults="SIGTERM", layouts="uni"),
    _rule(THAWED, faults="SIGSTOP", layouts="uni"),
    _rule(BROKEN, faults="exception on one rank"),
    _rule(UNHARMED, faults="SIGTERM"),
    _rule(RANK_DIED, faults="SIGKILL | bad reply"),
    _rule(OUTPUT_LOST, faults="lost reply", phases="materialising"),
    _rule(HALF_HUNG, faults="SIGSTOP", layouts="mp 2 (data)"),
    _rule(HALF_HUNG, faults="lost reply", phases="preparing | mid-step", layouts="mp 2 (data)"),
    _rule(HUNG, faults="SIGSTOP | lost reply | hang in a collective"),
    _rule(FAILED, faults="exception"),
    _rule(NO_MEMORY, faults="full shared memory"),
    _rule(UNHARMED, faults="dropped consumer | abort", phases="idle"),
    _rule(ABORTED, faults="dropped consumer | abort"),
)


def all_cells() -> Iterator[Cell]:
    """Every combination, nonsense included."""
    return map(Cell._make, product(Fault, Phase, Layout, Mode))


def right_of(cell: Cell) -> Right | Nonsense:
    """The one right outcome of a combination, or why it can't be."""
    for faults, phases, layouts, modes, verdict in RULES:
        if cell.fault in faults and cell.phase in phases and cell.layout in layouts and cell.mode in modes:
            return verdict
    raise LookupError(f"no rule for: {cell}")


def sensible_cells() -> list[Cell]:
    """The combinations that can be, those that leave an engine alive first, grouped by engine."""
    cells = [cell for cell in all_cells() if isinstance(right_of(cell), Right)]
    return sorted(cells, key=lambda cell: (is_fatal(cell), cell.layout, cell.mode))


def is_fatal(cell: Cell) -> bool:
    """True when nothing is served after it."""
    right = right_of(cell)
    return isinstance(right, Right) and right.fatal
