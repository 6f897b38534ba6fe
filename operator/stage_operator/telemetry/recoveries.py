"""What a change of a stage's status says about ends of its replicas, and how long the stage took to serve again.

A status may be older than the schema, and hold anything: what can't be read is no end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from stage_api.outcome import ExitCode
from stage_api.status import READY
from stage_operator.telemetry.stage_series import items, mapping
from stage_operator.values import Manifest, StageKey

_UNKNOWN: Final = "Unknown"
_CODES: Final = {int(code): code.name.title().replace("_", "") for code in ExitCode}
_OTHER_CODE: Final = "OtherExitCode"


def ends_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> Counter[str]:
    """How many replicas ended, by what is known of it: a reason of the failure policy, or the name of an exit code."""
    old = _histories(before)
    found: Counter[str] = Counter()
    for index, history in _histories(after).items():
        known = old.get(index, {})
        count = _count(history) - _count(known)
        if history.get("held") is not None and known.get("held") is None:
            count += 1  # an end that no other life follows is no restart
        if count > 0:
            found[_reason(mapping(history.get("last")))] += count
    return found


def is_ready(status: Mapping[str, Any]) -> bool:
    """Whether every replica serves."""
    conditions = map(mapping, items(status.get("conditions")))
    return any(each.get("type") == READY and each.get("status") == "True" for each in conditions)


class Recoveries:
    """Since when stages that lost a replica don't serve with all of them."""

    def __init__(self) -> None:
        self._since: dict[StageKey, float] = {}

    def see(self, stage: Manifest, ended: bool, now: float) -> float | None:
        """Seconds from the first end to now, if the stage serves again as of now."""
        key = StageKey.of(stage)
        if ended:
            self._since.setdefault(key, now)
        if key in self._since and not ended and is_ready(mapping(stage.get("status"))):
            return now - self._since.pop(key)
        return None

    def forget(self, key: StageKey) -> None:
        """The stage is gone."""
        self._since.pop(key, None)


def _histories(status: Mapping[str, Any]) -> dict[Any, Mapping[str, Any]]:
    replicas = map(mapping, items(status.get("replicaStatuses")))
    return {str(each.get("index")): mapping(each.get("history")) for each in replicas}


def _count(history: Mapping[str, Any]) -> int:
    count = history.get("restarts", 0)
    return count if isinstance(count, int) else 0


def _reason(last: Mapping[str, Any]) -> str:
    if isinstance(reason := last.get("reason"), str):
        return reason
    code = last.get("exitCode")
    if not isinstance(code, int):
        return _UNKNOWN
    return _CODES.get(code, _OTHER_CODE)
