"""Which asked-for features this version can execute.

The spec describes every layout; what can't be run yet is refused at the door, never ignored.
Widening `EXECUTABLE` is all it takes to open the door to more ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from stage_api.base import Contract
from stage_api.decode import decode
from stage_api.errors import Fault, SpecError
from stage_api.offload import AsksForOffload, OffloadSpec
from stage_api.parallelism import MAX_DEGREE, PATHS, Axis, ParallelismSpec

EXECUTABLE: Final[Mapping[Axis, int]] = {
    "tensor": 1,
    "ulysses": 1,
    "ring": 1,
    "pipeline": 1,
    "cfg": 2,
    "data": MAX_DEGREE,
}
"""Highest degree of each axis that the runtime executes. Copies have no bound of their own but the contract's."""

Section = TypeVar("Section", bound=Contract)


def unsupported(stage: AsksForOffload) -> tuple[Fault, ...]:
    """What a spec or config asks for and this version can't execute; empty if it can run.

    Paths are those of the manifest.
    """
    return (*_degrees(stage.parallelism), *_offload(stage.offload))


def unsupported_in(sections: object) -> tuple[Fault, ...]:
    """As `unsupported`, of a spec or config as JSON has it, whatever else is wrong with it.

    Empty also where a section can't be read: what is wrong with it then, `decode` says.
    """
    if not isinstance(sections, Mapping):
        return ()
    parallelism = _readable(ParallelismSpec, sections.get("parallelism"))
    offload = _readable(OffloadSpec, sections.get("offload"))
    return (*_degrees(parallelism), *_offload(offload))


def _readable(section: type[Section], value: object) -> Section:
    try:
        return decode(section, {} if value is None else value)
    except SpecError:
        return section()


def _degrees(parallelism: ParallelismSpec) -> tuple[Fault, ...]:
    return tuple(
        Fault(f"spec.parallelism.{PATHS[axis]}", f"{_at_most(EXECUTABLE[axis])} in this version", str(n))
        for axis, n in parallelism.degrees.items()
        if n > EXECUTABLE[axis]
    )


def _offload(offload: OffloadSpec) -> tuple[Fault, ...]:
    if not offload.distributed_layerwise.enabled:
        return ()
    return (Fault("spec.offload.distributedLayerwise.enabled", "false in this version", "true"),)


def _at_most(limit: int) -> str:
    return "1" if limit == 1 else f"1..{limit}"
