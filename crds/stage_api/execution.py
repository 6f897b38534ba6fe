"""Which asked-for features this version can execute.

The spec describes every layout; what can't be run yet is refused at the door, never ignored.
Widening `EXECUTABLE` is all it takes to open the door further.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from stage_api.decode import decode
from stage_api.errors import Fault, SpecError
from stage_api.parallelism import PATHS, Axis, ParallelismSpec

EXECUTABLE: Final[Mapping[Axis, int]] = {
    "tensor": 1,
    "ulysses": 1,
    "ring": 1,
    "pipeline": 1,
    "cfg": 1,
    "data": 1,
}
"""Highest degree of each axis that the runtime executes."""


class AsksForRanks(Protocol):
    """A spec or a config: whatever says how many ranks it wants."""

    @property
    def parallelism(self) -> ParallelismSpec: ...


def unsupported(stage: AsksForRanks) -> tuple[Fault, ...]:
    """What the stage asks for and this version can't execute; empty if it can run.

    Paths are those of the manifest.
    """
    return _unsupported(stage.parallelism)


def unsupported_in(stage: object) -> tuple[Fault, ...]:
    """As `unsupported`, of a stage as JSON has it, whatever else is wrong with it.

    Empty also where its degrees can't be read: what is wrong with them then, `decode` says.
    """
    spec = stage.get("spec") if isinstance(stage, Mapping) else None
    section = spec.get("parallelism") if isinstance(spec, Mapping) else None
    if section is None:
        return ()
    try:
        return _unsupported(decode(ParallelismSpec, section))
    except SpecError:
        return ()


def _unsupported(parallelism: ParallelismSpec) -> tuple[Fault, ...]:
    return tuple(
        Fault(f"spec.parallelism.{PATHS[axis]}", f"{_at_most(EXECUTABLE[axis])} in this version", str(n))
        for axis, n in parallelism.degrees.items()
        if n > EXECUTABLE[axis]
    )


def _at_most(limit: int) -> str:
    return "1" if limit == 1 else f"1..{limit}"
