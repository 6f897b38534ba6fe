"""Carries out one cell on a living engine: brings a request into its phase, lets the fault strike, and looks."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from faults.engines import Heard, cut_short, ends_work, is_answer, is_output, lost
from faults.matrix import Cell, Fault, Layout, Phase, Right
from faults.rig import BIG_SIDE, Rig, in_words, rank_at_fault
from stage_runtime.core.control import Health
from stage_runtime.core.errors import EngineDeadError, StageError
from stage_runtime.engine.streams import Stream
from stage_runtime.ipc.messages import Reply
from support.mp_stage import PATIENCE_S
from support.stage_process import until

SMALL_FILE: Final = 64 << 10
"""Bytes that a file of a rank may have when its shared memory is full: no block, but its log."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of a cell."""

    victim: str
    neighbours: tuple[str, ...]
    engine: str
    struck: int | None = None
    """The rank at fault."""
    blamed: int | None = None
    """The one that the engine's death names."""
    cause: str = ""


def differs(right: Right, seen: Seen) -> str:
    """What is not as it should be, in words; "" when all is."""
    wrong = []
    if seen.victim != right.victim:
        wrong.append(f"the victim is {seen.victim}, not {right.victim}")
    # Of two copies of the model the first has the victim and its second neighbour.
    expected = [right.elsewhere or right.neighbours, *(right.neighbours for _ in seen.neighbours[1:])]
    for got, want in zip(seen.neighbours, expected, strict=False):
        if got != want:
            wrong.append(f"a neighbour is {got}, not {want}")
    if seen.engine != right.engine:
        wrong.append(f"the engine is {seen.engine}, not {right.engine}")
    if right.names_rank and seen.blamed != seen.struck:
        wrong.append(f"rank {seen.blamed} is blamed, not {seen.struck}")
    if right.why not in seen.cause:
        wrong.append(f"its death doesn't say {right.why!r}")
    if wrong and seen.cause:
        wrong.append(seen.cause)
    return "; ".join(wrong)


def play(cell: Cell, rig: Rig) -> Seen:
    """What happens to a request, its neighbours and the engine when the fault strikes."""
    strike = STRIKES[cell.fault]
    side = BIG_SIDE if cell.fault is Fault.FULL_MEMORY else 64
    streams: list[Stream] = []
    names: list[str] = []
    rig.hold(cell)
    try:
        if cell.phase is not Phase.IDLE:
            streams = rig.add(cell.fault.name.lower(), side=side)
            names = [stream.request_id for stream in streams]
            rig.wait_held(cell)
        strike(cell, rig, streams)
        _go_on(cell, rig)
        ends = [rig.end_of(name) for name in names] if names else _next_ones(rig, side)
    finally:
        _undo(rig)
    victim, *neighbours = ends
    engine = rig.look()
    death = rig.engine.death
    return Seen(
        victim,
        tuple(neighbours),
        engine,
        struck=rank_at_fault(cell),
        blamed=death.rank if isinstance(death, EngineDeadError) else None,
        cause="" if death is None else str(death),
    )


def _go_on(cell: Cell, rig: Rig) -> None:
    """Let those go on that the fault has told nothing itself, but not into a race with the death that it is."""
    if cell.fault in DIRECTING or cell.fault is Fault.SIGKILL:
        return
    dies = cell.fault is Fault.BAD_REPLY and cell.layout is Layout.DATA_2
    rig.go(cell, others="never" if dies else None)


def _next_ones(rig: Rig, side: int) -> list[str]:
    """How those end that come after a fault that struck while nothing ran."""
    try:
        streams = rig.add("next", side=side)
    except StageError as refused:
        return [in_words(refused)]
    return [rig.end_of(stream.request_id) for stream in streams]


# Faults


def _kill(number: signal.Signals) -> Callable[[Cell, Rig, list[Stream]], None]:
    def strike(cell: Cell, rig: Rig, _streams: list[Stream]) -> None:
        os.kill(rig.executor.pids[rank_at_fault(cell)], number)
        if cell.phase is Phase.IDLE and number is signal.SIGKILL:
            until(lambda: rig.engine.death is not None, "the engine has noticed", PATIENCE_S)

    return strike


def _raise(cell: Cell, rig: Rig, _streams: list[Stream]) -> None:
    # Steps are divided among ranks that work together, and what fails on one is tried on the other.
    if cell.layout is Layout.CFG_2:
        rig.go(cell, "raise again" if cell.phase is Phase.MID_STEP else "raise")
    else:
        rig.go(cell, "raise", others="on")


def _raise_on_one(cell: Cell, rig: Rig, _streams: list[Stream]) -> None:
    rig.go(cell, "raise", others="on")


def _get_stuck(cell: Cell, rig: Rig, _streams: list[Stream]) -> None:
    rig.go(cell, "never", others="on")


def _meddle(spoil: Callable[[Reply], Heard | None]) -> Callable[[Cell, Rig, list[Stream]], None]:
    def strike(cell: Cell, rig: Rig, _streams: list[Stream]) -> None:
        kind = {Phase.IDLE: is_answer, Phase.MATERIALISING: is_output}.get(cell.phase, ends_work)
        rig.channel.spoil = spoil
        rig.channel.wanted = lambda reply: reply.rank == 0 and kind(reply)
        if cell.phase is Phase.IDLE:
            failure = rig.engine.control(Health()).exception(PATIENCE_S)
            assert isinstance(failure, EngineDeadError), failure

    return strike


def _fill_memory(_cell: Cell, rig: Rig, _streams: list[Stream]) -> None:
    for pid in rig.executor.pids.values():
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (SMALL_FILE, most))


def _undo(rig: Rig) -> None:
    """Shared memory has room again."""
    if rig.engine.death is None and rig.has_ranks:
        for pid in rig.executor.pids.values():
            _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


def _drop(cell: Cell, rig: Rig, streams: list[Stream]) -> None:
    """Nobody holds the stream any more. While nothing runs: that of a request which has ended."""
    if cell.phase is Phase.IDLE:
        for stream in rig.add("dropped"):
            stream.result(PATIENCE_S)
    else:
        del streams[0]


def _abort(cell: Cell, rig: Rig, streams: list[Stream]) -> None:
    rig.engine.abort("nobody" if cell.phase is Phase.IDLE else streams[0].request_id)


DIRECTING: Final = (Fault.EXCEPTION, Fault.ONE_SIDED, Fault.STUCK_COLLECTIVE)
"""These tell the ranks themselves what to do."""

STRIKES: Final[Mapping[Fault, Callable[[Cell, Rig, list[Stream]], None]]] = {
    Fault.SIGKILL: _kill(signal.SIGKILL),
    Fault.SIGSTOP: _kill(signal.SIGSTOP),
    Fault.SIGTERM: _kill(signal.SIGTERM),
    Fault.EXCEPTION: _raise,
    Fault.ONE_SIDED: _raise_on_one,
    Fault.STUCK_COLLECTIVE: _get_stuck,
    Fault.BAD_REPLY: _meddle(cut_short),
    Fault.LOST_REPLY: _meddle(lost),
    Fault.FULL_MEMORY: _fill_memory,
    Fault.DROPPED: _drop,
    Fault.ABORT: _abort,
}
