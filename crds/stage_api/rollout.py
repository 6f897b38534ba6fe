"""How the replicas of a stage are replaced, and how many may be away at once."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from stage_api.base import Contract, Law
from stage_api.errors import Fault
from stage_api.kube_values import IntOrPercent, share


def _can_move(max_unavailable: int | str, max_surge: int | str) -> Fault | None:
    if any(str(value) not in ("0", "0%") for value in (max_unavailable, max_surge)):
        return None
    return Fault("maxUnavailable", "1 or more where maxSurge is 0", str(max_unavailable))


class RolloutSpec(Contract):
    """How replicas are brought to a new spec: one whole replica after the other."""

    max_unavailable: IntOrPercent = Field(
        default=1,
        description="Most replicas that may be away during a rollout. Percentages are rounded down.",
    )
    max_surge: IntOrPercent = Field(
        default=0, description="Most replicas beyond `replicas` during a rollout. Percentages are rounded up."
    )
    partition: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=0, description="Replicas with an index below this keep their spec."
    )
    paused: bool = Field(default=False, description="Replace no replica until this is false again.")
    min_ready_seconds: Annotated[int, Field(ge=0, le=86_400)] = Field(
        default=0, description="How long a new replica must be ready before the next one is replaced."
    )
    progress_deadline_seconds: Annotated[int, Field(ge=1, le=604_800)] = Field(
        default=1800, description="A rollout without progress for so long is reported as stuck."
    )

    laws: ClassVar[tuple[Law, ...]] = (
        Law(
            ("max_unavailable", "max_surge"),
            "!((self.maxUnavailable == 0 || self.maxUnavailable == '0%')"
            " && (self.maxSurge == 0 || self.maxSurge == '0%'))",
            "maxUnavailable and maxSurge must not both be 0",
            _can_move,
            "maxUnavailable",
        ),
    )

    def room(self, replicas: int) -> tuple[int, int]:
        """How many of so many replicas may be away, and how many more there may be; never both 0."""
        away = share(self.max_unavailable, replicas, up=False)
        more = share(self.max_surge, replicas, up=True)
        return (1, 0) if away == more == 0 else (away, more)


class DisruptionSpec(Contract):
    """What drained nodes may do to the stage."""

    max_unavailable: IntOrPercent = Field(
        default=1,
        description="Most replicas that are moved off draining nodes at once. Percentages are rounded down, "
        "but to 1 at least. 0 leaves them where they are.",
    )

    def room(self, replicas: int) -> int:
        """How many of so many replicas may be moved at once."""
        most = share(self.max_unavailable, replicas, up=False)
        return most if isinstance(self.max_unavailable, int) or self.max_unavailable == "0%" else max(1, most)
