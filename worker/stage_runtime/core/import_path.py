"""Classes that a stage brings, by import path or as objects: found, checked, and every fault told at once.

Knows nothing of what the classes are for: each place says what it takes.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from stage_api.errors import Fault, SpecError
from stage_runtime.core.error_codec import words_of

PREFIX: Final = "spec.engine.extensions."


@dataclass(frozen=True, slots=True)
class Place:
    """Where a class may be put in. `lacks` says what a class has to have and hasn't; None when it fits."""

    field: str
    """Its name under `spec.engine.extensions`."""
    given: object
    """`package.module:Class`, or the class itself."""
    expected: str
    lacks: Callable[[type], str | None] = lambda _: None


def resolve(places: Iterable[Place]) -> dict[str, type]:
    """The class for each place, by field; places where nothing is given are left out.

    Raises: SpecError with a fault for every class that can't be had or doesn't fit.
    """
    found: dict[str, type] = {}
    faults: list[Fault] = []
    for place in places:
        if place.given is None:
            continue
        got = _class(place.given)
        if isinstance(got, type):
            lacks = place.lacks(got)
            if lacks is None:
                found[place.field] = got
                continue
            got = f"{got.__module__}:{got.__qualname__}, {lacks}"
        faults.append(Fault(PREFIX + place.field, place.expected, got))
    if faults:
        raise SpecError(faults)
    return found


def subclass_of(base: type) -> Callable[[type], str | None]:
    """Fits what derives from `base` and leaves nothing of it abstract."""

    def lacks(kind: type) -> str | None:
        if not issubclass(kind, base):
            return "which is none"
        if inspect.isabstract(kind):
            missing: frozenset[str] = getattr(kind, "__abstractmethods__", frozenset())
            return f"which lacks {', '.join(sorted(missing))}"
        return None

    return lacks


def has_all(names: Collection[str]) -> Callable[[type], str | None]:
    """Fits what has all these methods and properties."""

    def lacks(kind: type) -> str | None:
        missing = sorted(name for name in names if not hasattr(kind, name))
        return f"which lacks {', '.join(missing)}" if missing else None

    return lacks


def members_of(protocol: type) -> tuple[str, ...]:
    """The public methods and properties that a protocol, or another class, defines itself."""
    return tuple(name for name in vars(protocol) if not name.startswith("_"))


def _class(given: object) -> type | str:
    """The class, or in words what there is instead."""
    if isinstance(given, type):
        return given
    if not isinstance(given, str):
        return f"a {type(given).__name__}"
    module_name, colon, name = given.partition(":")
    if not (colon and name and module_name):
        return repr(given)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001 - whatever a module does when it is imported, it can't be used
        return f"{given}: {words_of(error)}"
    found = getattr(module, name, None)
    if found is None:
        return f"{given}: {module_name} has no {name}"
    return found if isinstance(found, type) else f"{given}: a {type(found).__name__}"
