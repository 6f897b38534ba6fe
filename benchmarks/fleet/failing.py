"""Pods that fail, one here and one there: how soon their replicas' pods are told to go, and new ones are there.

All moments are those at which a watch beside the operator's reads of them. So the time to the deletes has in it what
the API server takes for a status with the evidence and four deletes, and not how late the failure was told of.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.fleet import planned
from benchmarks.fleet.ground import EXIT
from benchmarks.fleet.sightings import watching
from stage_api import names
from stage_operator.client.kube import PODS, Kube
from stage_operator.values import Manifest

EVERY_S: Final = 0.5
_CODE: Final = "70"
_LIMIT_S: Final = 60.0


@dataclass(slots=True)
class Failure:
    """One replica's end and its next life. Times by `time.monotonic`."""

    failed: float | None = None
    going: dict[str, float] = field(default_factory=dict)
    """When each pod of the life was on its way out."""
    made: dict[str, float] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether the next life is whole."""
        whole = planned.PODS
        return self.failed is not None and len(self.going) == len(self.ready) == whole

    def deleted_s(self) -> float:
        """From the failure to the last of the deletes."""
        return max(self.going.values()) - (self.failed or 0.0)

    def made_s(self) -> float:
        """From the failure to the last pod of the next life."""
        return max(self.made.values()) - (self.failed or 0.0)

    def ready_s(self) -> float:
        """From the failure until all of them are Ready."""
        return max(self.ready.values()) - (self.failed or 0.0)


class Failures:
    """What a watch of the pods tells of failures."""

    def __init__(self, stages: Sequence[str]) -> None:
        self.of = {stage: Failure() for stage in stages}
        self.over = asyncio.Event()

    def see(self, type_: str, pod: Manifest, at: float) -> None:
        """An event of a pod."""
        metadata = pod["metadata"]
        failure = self.of.get(metadata.get("labels", {}).get(names.LABEL_STAGE, ""))
        if failure is None:
            return
        name = metadata["name"]
        if metadata["labels"][names.LABEL_EPOCH] == "0":
            if failure.failed is None and pod["status"].get("phase") == "Failed":
                failure.failed = at
            if type_ == "DELETED" or "deletionTimestamp" in metadata:
                failure.going.setdefault(name, at)
        else:
            failure.made.setdefault(name, at)
            if planned.pod_is_ready(pod):
                failure.ready.setdefault(name, at)
        if failure.is_over and all(each.is_over for each in self.of.values()):
            self.over.set()


async def failures(kube: Kube, namespace: str, stages: Sequence[str], seed: int = 0) -> list[Failure]:
    """Fail one pod of each of the stages, one stage after the other, and wait until all are whole again."""
    chance = random.Random(seed)
    seen = Failures(stages)
    async with watching(kube.configuration, PODS, namespace, seen.see):
        first = time.monotonic()
        for index, stage in enumerate(stages):
            await asyncio.sleep(max(0.0, first + index * EVERY_S - time.monotonic()))
            pod = names.pod_name(stage, 0, 0, chance.randrange(planned.PODS))
            await kube.merge(PODS, namespace, pod, {"metadata": {"annotations": {EXIT: _CODE}}})
        try:
            async with asyncio.timeout(_LIMIT_S):
                await seen.over.wait()
        except TimeoutError:
            left = sum(not each.is_over for each in seen.of.values())
            raise RuntimeError(f"{left} of {len(stages)} stages are not whole again") from None
    return list(seen.of.values())
