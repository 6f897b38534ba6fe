"""An operator with a plan that fits on a page: replicas x one pause pod, for tests of what isn't the plan.

Run as `python -m support.plain_stage_plan FLAGS…`. What it does depends on the stage only, whose
annotation OPTIONS may hold ENDLESS (its status changes at each look) and SECRET (a secret is made once). Its pods wait
behind a gate, so that no scheduler or kubelet has a say; a test sets their status.
"""

from __future__ import annotations

import sys
from typing import Any

from stage_api import names
from stage_operator.__main__ import main
from stage_operator.values import (
    Action,
    Apply,
    ChildKey,
    CreateOnce,
    CreatePod,
    DeletePod,
    Emit,
    Manifest,
    Objects,
    Plan,
    PlanSettings,
)

OPTIONS = f"plain.{names.GROUP}/options"


def plan(objects: Objects, *, now_s: float, jitter: float, settings: PlanSettings) -> Plan:
    """One pod a replica, each life under a name of its own; a lost pod is written down before it is replaced."""
    stage = objects.stage
    wanted = int(stage["spec"].get("replicas", 1))
    dict(stage["spec"]["engine"])  # what can't be read is this plan's defect
    options = (stage["metadata"].get("annotations") or {}).get(OPTIONS, "").split(",")
    status: dict[str, Any] = dict(stage.get("status") or {})
    restarts = int(status.get("restarts") or 0)
    live = [pod for pod in objects.pods if _is_live(pod)]
    dead = [pod for pod in objects.pods if not _is_live(pod) and "deletionTimestamp" not in pod["metadata"]]
    actions: list[Action] = [
        DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"], grace_seconds=0) for pod in dead
    ]
    actions += [
        DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"], grace_seconds=0) for pod in live[wanted:]
    ]
    ready = sum(_is_ready(pod) for pod in live[:wanted])
    restarts += len(dead)
    if len(live) < wanted:
        actions.append(Apply(_service(stage)))
        if "SECRET" in options:
            actions.append(CreateOnce(_child(stage, "v1", "Secret", names.keys_secret(_name(stage)))))
        actions += [
            CreatePod(_pod(stage, replica, restarts, settings))
            for replica in range(wanted)
            if not any(_replica(pod) == replica for pod in live)
        ]
        actions.append(Emit("Normal", "Creating", f"{wanted - len(live)} pods are made", stage))
    elif ChildKey("Service", _name(stage)) in objects.children:
        actions.append(Apply(_service(stage)))
    refused = "; ".join(refusal.message for refusal in objects.refusals)
    after = {
        **status,
        "replicas": wanted,
        "readyReplicas": ready,
        "ready": f"{ready}/{wanted}",
        "restarts": restarts,
        "phase": "Refused" if refused else ("Ready" if ready == wanted else "Pending"),
        "observedGeneration": stage["metadata"]["generation"],
    }
    wake_at_s = None
    if "ENDLESS" in options:
        after["model"] = f"at-{now_s:.4f}"
        wake_at_s = now_s + 0.02
    return Plan(after, tuple(actions), status_first=bool(dead), wake_at_s=wake_at_s)


def _name(stage: Manifest) -> str:
    return str(stage["metadata"]["name"])


def _replica(pod: Manifest) -> int:
    return int(pod["metadata"]["labels"][names.LABEL_REPLICA])


def _is_live(pod: Manifest) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") in ("Pending", "Running")


def _is_ready(pod: Manifest) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _child(stage: Manifest, api_version: str, kind: str, name: str) -> Manifest:
    metadata = stage["metadata"]
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": {names.LABEL_STAGE: metadata["name"]},
            "ownerReferences": [owner],
        },
    }


def _service(stage: Manifest) -> Manifest:
    spec = {"selector": {names.LABEL_STAGE: _name(stage)}, "ports": [{"name": "http", "port": 8000}]}
    return {**_child(stage, "v1", "Service", _name(stage)), "spec": spec}


def _pod(stage: Manifest, replica: int, epoch: int, settings: PlanSettings) -> Manifest:
    pod = _child(stage, "v1", "Pod", names.pod_name(_name(stage), replica, epoch, 0))
    pod["metadata"]["labels"] |= {names.LABEL_REPLICA: str(replica), names.LABEL_EPOCH: str(epoch)}
    pod["spec"] = {
        "restartPolicy": "Never",
        "schedulingGates": [{"name": f"{names.GROUP}/plain"}],
        "containers": [{"name": "stage", "image": settings.worker_image}],
    }
    return pod


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], plan))
