"""Since when things are so, by this operator's own clock: noted as objects come in, whichever way they come.

A replica of the operator that waits for its turn looks on as well, so it knows all of this when it takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from stage_operator.decide.moments import READY
from stage_operator.values import Seen

_NOTHING: Final[Mapping[str, Seen]] = MappingProxyType({})
_KEPT: Final = frozenset({READY})
"""What is remembered after it ceased: how long a replica had been ready tells how it is to be treated at its end."""


class Sightings:
    """Of the objects of one kind, by uid."""

    def __init__(
        self, moments: Callable[[Mapping[str, Any]], Mapping[str, str]], clock: Callable[[], float]
    ) -> None:
        """`moments` gives what is so of an object, and by what."""
        self._moments = moments
        self._clock = clock
        self._of: dict[str, Mapping[str, Seen]] = {}
        self._caught_up = False

    def caught_up(self) -> None:
        """What there was is known: from here on whatever comes true is witnessed."""
        self._caught_up = True

    def note(self, obj: Mapping[str, Any]) -> None:
        """An object as it is now."""
        uid, now_s = uid_of(obj), self._clock()
        before = self._of.get(uid, _NOTHING)
        witnessed = self._caught_up or uid in self._of
        now = {
            moment: seen
            if (seen := before.get(moment)) is not None and seen.mark == mark and seen.until_s is None
            else Seen(now_s, mark, witnessed)
            for moment, mark in self._moments(obj).items()
        }
        for moment in _KEPT & (before.keys() - now.keys()):
            seen = before[moment]
            now[moment] = seen if seen.until_s is not None else replace(seen, until_s=now_s)
        self._of[uid] = now

    def forget(self, obj: Mapping[str, Any]) -> None:
        """It is gone."""
        self._of.pop(uid_of(obj), None)

    def of(self, obj: Mapping[str, Any]) -> Mapping[str, Seen]:
        """What was seen of an object."""
        return self._of.get(uid_of(obj), _NOTHING)


def uid_of(obj: Mapping[str, Any]) -> str:
    """What an object is known by; where somebody made it without a uid, its name."""
    metadata = obj["metadata"]
    return str(metadata.get("uid") or metadata["name"])
