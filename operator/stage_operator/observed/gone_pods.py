"""Pods that were seen and are no more, as far as they may matter: of each replica those of its latest life.

A pod can go before anything is written about its life. What is known here keeps its name, and so its epoch, from being
used again: whoever deleted it by force left a process behind that may still run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from stage_api import names
from stage_operator.values import Gone

_MANY: Final = 10_000  # stages; of one that was deleted nobody asks again
_NONE: Final[Mapping[int, Gone]] = MappingProxyType({})


class Departed:
    """Remembers them by the uid of their stage."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, dict[int, Gone]] = OrderedDict()

    def note(self, pod: Mapping[str, Any]) -> None:
        """A pod is gone. One that is no stage's is no matter."""
        labels = pod["metadata"].get("labels") or {}
        owners = pod["metadata"].get("ownerReferences") or ()
        owner = next((owner for owner in owners if owner.get("controller")), None)
        if owner is None or owner.get("uid") is None:
            return
        if (place := names.pod_place(str(owner.get("name")), pod["metadata"]["name"])) is None:
            return
        uid = owner["uid"]
        replica, epoch, ordinal = place
        its = self._of.setdefault(uid, {})
        self._of.move_to_end(uid)
        known = its.get(replica)
        if known is None or epoch > known.epoch:
            its[replica] = Gone(epoch, frozenset({ordinal}), labels.get(names.LABEL_REVISION, ""))
        elif epoch == known.epoch:
            its[replica] = Gone(epoch, known.ordinals | {ordinal}, known.revision)
        if len(self._of) > _MANY:
            self._of.popitem(last=False)

    def of(self, stage: Mapping[str, Any]) -> Mapping[int, Gone]:
        """Of each replica of a stage, by index."""
        return MappingProxyType(dict(self._of.get(stage["metadata"].get("uid", ""), _NONE)))
