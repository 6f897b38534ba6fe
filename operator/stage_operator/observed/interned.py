"""Objects that take little room: equal texts are one text.

A decoder makes each name of a field anew for each object, and those are most of what an object takes.
"""

from __future__ import annotations

from sys import intern
from typing import Any, Final

_SHORT: Final = 24
"""Longer texts, such as uids, are hardly ever the same; a time, a word, a name of a field often is."""


def compact(value: Any) -> Any:
    """An equal value of JSON, made of texts that others use as well."""
    if type(value) is str:
        return intern(value) if len(value) <= _SHORT else value
    if type(value) is dict:
        return {intern(name): compact(part) for name, part in value.items()}
    if type(value) is list:
        return [compact(part) for part in value]
    return value
