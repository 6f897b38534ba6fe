"""Which asked-for features this version can execute.

The spec describes more than can be run yet; that is refused at the door, never ignored. The limits stand in the
sections, as `executable`: to widen one there is all it takes to open the door.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stage_api.base import Contract, Limit
from stage_api.decode import decode
from stage_api.errors import Fault, SpecError, show
from stage_api.section import Entry, entries


def unsupported(stage: Contract) -> tuple[Fault, ...]:
    """What a spec or config asks for and this version can't execute; empty if it can run.

    Paths are those of the manifest.
    """
    return tuple(
        fault for entry in entries(type(stage)) for fault in _refused(entry, getattr(stage, entry.name))
    )


def unsupported_in(model: type[Contract], sections: object) -> tuple[Fault, ...]:
    """As `unsupported`, of a spec or config (which `model` is) as JSON has it, whatever else is wrong with it.

    A section that can't be read asks for nothing: what is wrong with it, `decode` says.
    """
    if not isinstance(sections, Mapping):
        return ()
    return tuple(
        fault
        for entry in entries(model)
        if (section := _readable(entry.model, sections.get(entry.alias)))
        for fault in _refused(entry, section)
    )


def executed(limit: Limit) -> str:
    """What a limit leaves, in words."""
    if isinstance(limit, tuple):
        return ", ".join(limit) if len(limit) == 1 else f"one of {', '.join(limit)}"
    if isinstance(limit, bool):
        return show(limit)
    return "1" if limit == 1 else f"1..{limit}"


def _readable(model: type[Contract] | None, value: object) -> Contract | None:
    try:
        return decode(model, {} if value is None else value) if model and model.executable else None
    except SpecError:
        return None


def _refused(entry: Entry, section: Any) -> Iterator[Fault]:
    for path, limit in entry.executable.items():
        value = _at(section.to_json(), path)
        if value is not None and not _within(value, limit):
            where = f"spec.{entry.alias}.{path}"
            yield Fault(where, f"{executed(limit)} in this version", _shown(value))


def _at(told: Mapping[str, Any], path: str) -> Any:
    node: Any = told
    for step in path.split("."):
        node = node.get(step) if isinstance(node, Mapping) else None
    return node


def _within(value: Any, limit: Limit) -> bool:
    if isinstance(limit, tuple):
        return value in limit
    if isinstance(limit, bool):
        return value is limit
    return bool(value <= limit)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else show(value)
