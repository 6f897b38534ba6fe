"""What matters by how long it has been so, and since when that is, by the operator's own clock.

Times in objects were written by other machines: the kubelet of a node, the scheduler, an API server, an operator on
another node. Their clocks may be minutes off, so a decision measures from when the operator itself saw a thing come
true (`values.Seen`). Only of what was so before it looked is a written time all there is; that is then believed as
far as clocks may differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from stage_api import names
from stage_api.status import PROGRESSING
from stage_operator.values import Seen

Raw = Mapping[str, Any]

SKEW_S: Final = 900.0
"""So far apart clocks of one cluster may be."""

ASKED: Final = "asked"
"""A pod's deletion has been asked for."""
ENDED: Final = "ended"
"""A container of ours ended, or the pod as a whole."""
FETCHING: Final = "fetching"
NOT_READY: Final = "not ready"
"""Of a node: it is not known to be well."""
PROGRESS: Final = "progress"
"""Of a stage: its condition of that name says what it says."""
READY: Final = "ready"
STARTED: Final = "started"
UNMADE: Final = "unmade"
"""A pod is bound to a node that has not got as far as making its sandbox, for which it needs the volumes."""
UNSCHEDULABLE: Final = "unschedulable"


def since(seen: Seen | None, said_s: float | None) -> float | None:
    """Since when something is so, by the operator's own clock; `said_s` is what stands in the object.

    Where it was so before the operator looked, it is taken to be as old as what is written makes sure.
    """
    if seen is None:
        return said_s  # nobody looked on
    if seen.witnessed or said_s is None:
        return seen.since_s
    return min(seen.since_s, said_s + SKEW_S)


def begun(index: int) -> str:
    """That a replica began the life that it is in."""
    return f"begun {index}"


def judged(index: int) -> str:
    """That a life of a replica was the last that was judged."""
    return f"judged {index}"


def of_pod(pod: Raw) -> dict[str, str]:
    """What is so of a pod. What it is so by comes with it: another is another time."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    found: dict[str, str] = {}
    if metadata.get("deletionTimestamp") is not None:
        found[ASKED] = ""
    if is_over(status) or next(ends(status), None) is not None:
        found[ENDED] = ""
    if (at := running_since(status, "initContainerStatuses", names.FETCH_CONTAINER)) is not None:
        found[FETCHING] = at
    if (at := running_since(status, "containerStatuses", names.CONTAINER)) is not None:
        found[STARTED] = at
    if (ready := condition(status, "Ready")) is not None and ready.get("status") == "True":
        found[READY] = str(ready.get("lastTransitionTime"))
    if is_unschedulable(condition(status, "PodScheduled")):
        found[UNSCHEDULABLE] = ""
    made = condition(status, "PodReadyToStartContainers")
    if spec.get("nodeName") and made is not None and made.get("status") == "False" and ENDED not in found:
        found[UNMADE] = ""
    return found


def of_node(node: Raw) -> dict[str, str]:
    """What is so of a node."""
    ready = condition(node.get("status") or {}, "Ready")
    return {} if ready is None or ready.get("status") == "True" else {NOT_READY: ""}


def of_stage(stage: Raw) -> dict[str, str]:
    """What is so of a stage, by its status. Whoever may write that may have written anything."""
    status = stage.get("status")
    if not isinstance(status, Mapping):
        return {}
    found: dict[str, str] = {}
    for one in _mappings(status.get("replicaStatuses")):
        history = one.get("history")
        if isinstance(index := one.get("index"), int):
            found[begun(index)] = str(one.get("epoch"))
            found[judged(index)] = str(history.get("epoch") if isinstance(history, Mapping) else None)
    for one in _mappings(status.get("conditions")):
        if one.get("type") == PROGRESSING:
            found[PROGRESS] = f"{one.get('status')} {one.get('reason')}"
    return found


def condition(status: Raw, type_: str) -> Raw | None:
    """The condition of that type."""
    return next((one for one in status.get("conditions") or () if one.get("type") == type_), None)


def is_over(status: Raw) -> bool:
    """Whether nothing of a pod runs any more, nor ever will: its node has said so."""
    return status.get("phase") in ("Failed", "Succeeded")


def ends(status: Raw) -> Iterator[Raw]:
    """How containers of ours ended, the engine's first. A sidecar's life is not the replica's."""
    for key, name in (
        ("containerStatuses", names.CONTAINER),
        ("initContainerStatuses", names.FETCH_CONTAINER),
    ):
        for one in status.get(key) or ():
            over = (one.get("state") or {}).get("terminated")
            done = name == names.FETCH_CONTAINER and over is not None and over.get("exitCode") == 0
            if one.get("name") == name and over is not None and not done:
                yield over


def running_since(status: Raw, key: str, name: str) -> str | None:
    """When a container started that runs, as its node wrote it."""
    for one in status.get(key) or ():
        if one.get("name") == name:
            running = (one.get("state") or {}).get("running") or {}
            at: str | None = running.get("startedAt")
            return at
    return None


def is_unschedulable(scheduled: Raw | None) -> bool:
    """Whether a pod's condition says that no node has room for it."""
    return (
        scheduled is not None
        and scheduled.get("status") == "False"
        and scheduled.get("reason") != "SchedulingGated"
    )


def _mappings(value: object) -> Iterator[Raw]:
    return (one for one in value if isinstance(one, Mapping)) if isinstance(value, list) else iter(())
