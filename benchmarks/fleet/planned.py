"""The stages of the fleet: four ranks in four pods each; and the objects that the operator makes for one."""

from __future__ import annotations

import time
from typing import Any, Final

from benchmarks.fleet.ground import placement
from stage_api import names
from stage_operator.decide.plan import plan
from stage_operator.values import Api, Apply, CreateOnce, CreatePod, Manifest, Objects, PlanSettings

PODS: Final = 4
IMAGE: Final = "played"


def stage(name: str, namespace: str) -> Manifest:
    """A stage of one replica of the embedded model, a rank a pod."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"source": {"embedded": "shapes"}},
            "engine": {"dtype": "float32", "device": "cpu"},
            "parallelism": {"cfg": 2, "data": 2},
            "topology": {"ranksPerPod": 1},
            # A replica that was ready for a second starts again at once, so that recovery shows.
            "failurePolicy": {"resetAfterSeconds": 1},
            "podTemplate": {"spec": placement()},
        },
    }


def parts(name: str, stored: Manifest, api: Api, owner: Manifest) -> tuple[list[Manifest], list[Manifest]]:
    """What the operator makes for a stage of that name, as it would send it: what pods need, and pods.

    `stored` is such a stage with the server's defaults; `owner` owns all that is made.
    """
    made = {**stored, "metadata": {**stored["metadata"], "name": name}}
    made.pop("status", None)
    found = plan(Objects(made, api), now_s=time.time(), jitter=0.0, settings=PlanSettings(IMAGE))
    needed: list[Manifest] = []
    pods: list[Manifest] = []
    for action in found.actions:
        match action:
            case CreatePod(manifest):
                pods.append(_owned(manifest, owner))
            case Apply(manifest):
                needed.append(_owned(manifest, owner))
            case CreateOnce(manifest, draw):
                drawn: dict[str, Any] = {} if draw is None else {"stringData": dict(draw())}
                needed.append(_owned({**manifest, **drawn}, owner))
    return needed, pods


def _owned(manifest: Manifest, owner: Manifest) -> Manifest:
    """The same with a real owner, so that the garbage collector has as much to do."""
    metadata = owner["metadata"]
    its = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [its]}}


def is_ready(stage_seen: Manifest) -> bool:
    """Whether a stage says that all of it serves."""
    conditions = (stage_seen.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def pod_is_ready(pod: Manifest) -> bool:
    """Whether a pod does."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
