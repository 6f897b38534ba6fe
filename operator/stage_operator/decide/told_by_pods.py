"""What people are told of what pods, and the cluster's events about them, said when they were asked.

It explains a stage and decides nothing about it: the answers may be late, missing, or untrue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stage_api.replica_status import MAX_START
from stage_api.status import FactsStatus
from stage_operator.decide.replica import LIVE, Replica
from stage_operator.decide.views import PodView, Trouble
from stage_operator.values import Said

Words = Mapping[str, Said]
"""By the uid of the pod."""


def stuck(pod: PodView, said: Words) -> Trouble | None:
    """Why nothing of a pod starts, in the words of the last event about it; None if that was no warning."""
    event = said[pod.uid].event if pod.uid in said else None
    if event is None or not event.is_warning or pod.ended is not None:
        return None
    return Trouble(event.reason, f"on node {pod.node}: {event.note}")


def start(replica: Replica, said: Words) -> str | None:
    """What the start of a replica is doing, as its first pod says, or the cluster of one of which nothing has started;
    None if it isn't starting, or nobody says so."""
    if replica.phase not in LIVE or replica.ready:
        return None
    words = [said[pod.uid] for pod in replica.pods if pod.uid in said]
    doing = [one.start.text() for one in words if one.start is not None]
    coming = [one.event.note for one in words if one.event is not None and not one.event.is_warning]
    return next((text[:MAX_START] for text in (*doing, *coming)), None)


def starts(replicas: Sequence[Replica], said: Words) -> str:
    """The same of the first of them that says so, as the end of a sentence."""
    for replica in replicas:
        if (doing := start(replica, said)) is not None:
            return f"; replica {replica.index}: {doing}"
    return ""


def facts(
    replicas: Sequence[Replica], said: Words, revision: str, before: FactsStatus | None
) -> FactsStatus | None:
    """What the first replica of that revision told; what was told before, as long as none tells anew."""
    for replica in _ready(replicas, revision):
        if (told := said[pod.uid].facts if (pod := replica.pods[0]).uid in said else None) is not None:
            return FactsStatus(capability=told.capability, revision=revision, replica=replica.index)
    return before if before is not None and before.revision == revision else None


def differing(replicas: Sequence[Replica], said: Words, facts: FactsStatus) -> list[int]:
    """Replicas of the same revision that told something else."""
    asked = (one for one in _ready(replicas, facts.revision) if one.pods[0].uid in said)
    told = ((one.index, said[one.pods[0].uid].facts) for one in asked)
    return [index for index, its in told if its is not None and its.capability != facts.capability]


def unreachable(replicas: Sequence[Replica], said: Words, revision: str) -> tuple[str, str] | None:
    """A pod that serves and could not be asked, and why."""
    for replica in _ready(replicas, revision):
        pod = replica.pods[0]
        if pod.uid in said and said[pod.uid].unreachable:
            return pod.name, said[pod.uid].unreachable
    return None


def _ready(replicas: Sequence[Replica], revision: str) -> Iterator[Replica]:
    return (one for one in replicas if one.ready and one.pods and one.life.revision == revision)
