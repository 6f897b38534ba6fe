"""A cluster of one stage in memory: an API server, a scheduler and kubelets, as far as a plan can see them.

Nothing happens by itself: each part does its next step when it is told to, and time passes when it is told to.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

from stage_api import names
from stage_operator.decide.remembered_status import time_text
from stage_operator.values import (
    Action,
    ChildKey,
    PlanSettings,
    Refusal,
)

Raw = dict[str, Any]

API, SCHEDULER, CONTROLLER = "the API server", "the scheduler", "the controller of nodes"

SETTINGS = PlanSettings(worker_image="registry.example/worker:1", allow_host_path=True)
START_S = 1_800_000_000.0


def stage(**spec: Any) -> Raw:
    """A stage of one-rank replicas with quick failures, and what else is said."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "pics", "namespace": "default", "uid": "stage-uid", "generation": 1},
        "spec": {
            "model": {"source": {"embedded": "shapes"}},
            "engine": {"device": "cpu"},
            **spec,
        },
    }


class SimCluster:
    """What is really there."""

    def __init__(self, raw: Raw, nodes: int = 3, skew_s: dict[str, float] | None = None) -> None:
        self.now_s = START_S
        self.stage = raw
        self.pods: dict[str, Raw] = {}
        self.nodes: dict[str, Raw] = {}
        self.children: dict[ChildKey, Raw] = {}
        self.off: set[str] = set()
        self.full: set[str] = set()
        self.log: list[Action] = []
        self.on_create: list[Callable[[Raw], None]] = []
        self.judge: Callable[[Raw], str | None] = lambda manifest: None
        """What the API server has against a pod."""
        self.skew_s = skew_s or {}
        """How far ahead the clock of each is: nodes by name, and API, SCHEDULER and CONTROLLER."""
        self.quota = 1000
        """How many pods there may be."""
        self.on_delete: list[Callable[[Raw, bool], None]] = []
        self.on_status: list[Callable[[Raw, Raw], None]] = []
        self._uids = itertools.count()
        for i in range(nodes):
            self.add_node(f"node-{i}")

    # The API server.

    def create(self, manifest: Raw) -> Raw | Refusal:
        """A pod, or why it isn't made."""
        name = manifest["metadata"]["name"]
        if (there := self.pods.get(name)) is not None:
            if there["metadata"]["ownerReferences"][0]["uid"] == self.stage["metadata"]["uid"]:
                return there
            return Refusal("Pod", name, "AlreadyExists", "it belongs to somebody else")
        if (fault := self.judge(manifest)) is not None:
            return Refusal("Pod", name, "BadRequest", fault)
        if len(self.pods) >= self.quota:
            return Refusal("Pod", name, "Forbidden", f"pods {name} is forbidden: exceeded quota: pods")
        for watcher in self.on_create:
            watcher(manifest)
        pod = copy.deepcopy(manifest)
        pod["metadata"] |= {"uid": f"uid-{next(self._uids)}", "creationTimestamp": self._now(API)}
        pod["status"] = {"phase": "Pending"}
        self.pods[name] = pod
        return pod

    def apply(self, manifest: Raw) -> None:
        """A child as it should be."""
        key = ChildKey.of(manifest)
        old = self.children.get(key, {"metadata": {"uid": f"child-{next(self._uids)}"}})
        at = old["metadata"].get("creationTimestamp", self._now(API))
        metadata = {**manifest["metadata"], "uid": old["metadata"]["uid"], "creationTimestamp": at}
        self.children[key] = copy.deepcopy({**manifest, "metadata": metadata})

    def remove(self, kind: str, name: str, uid: str | None) -> None:
        """A child that is wanted no more."""
        key = ChildKey(kind, name)
        if key in self.children and uid in (None, self.children[key]["metadata"]["uid"]):
            del self.children[key]

    def delete(self, name: str, uid: str, grace_s: int | None, *, force: bool = False) -> Raw | None:
        """Ask a pod to go; what is left of it."""
        pod = self.pods.get(name)
        if pod is None or pod["metadata"]["uid"] != uid:
            return None
        for watcher in self.on_delete:
            watcher(pod, force)
        grace_s = 30 if grace_s is None else grace_s
        over = pod["status"]["phase"] in ("Failed", "Succeeded")
        if force or grace_s == 0 or over or not pod["spec"].get("nodeName"):
            del self.pods[name]
            return None
        if "deletionTimestamp" not in pod["metadata"]:
            pod["metadata"]["deletionTimestamp"] = self._now(API, grace_s)
            pod["metadata"]["deletionGracePeriodSeconds"] = grace_s
        return pod

    def store_status(self, status: Raw) -> None:
        """The status as it is from now on."""
        for watcher in self.on_status:
            watcher(self.status, status)
        self.stage["status"] = copy.deepcopy(status)

    def edit(self, **spec: Any) -> None:
        """A user's new spec; what isn't named stays."""
        if {**self.stage["spec"], **spec} != self.stage["spec"]:
            self.stage["metadata"]["generation"] += 1
            self.stage["spec"] = {**self.stage["spec"], **spec}

    def annotate(self, restart: str) -> None:
        """A user asks for a restart."""
        self.stage["metadata"]["annotations"] = {names.ANNOTATION_RESTART: restart}

    # Nodes.

    def add_node(self, name: str) -> None:
        """A node that is well."""
        self.nodes[name] = {"metadata": {"name": name}, "spec": {}, "status": {"conditions": []}}
        self._set_ready(name, "True")

    def power_off(self, name: str) -> None:
        """Its pods end, though nobody is told so."""
        self.off.add(name)
        self._set_ready(name, "Unknown")

    def reach(self, name: str) -> None:
        """It is heard of again, having been out of reach and not off."""
        self.off.discard(name)
        self._set_ready(name, "True")

    def power_on(self, name: str) -> None:
        """What ran on it before is lost."""
        self.off.discard(name)
        self._set_ready(name, "True")
        for pod in list(self.pods.values()):
            if pod["spec"].get("nodeName") != name or pod["status"]["phase"] in ("Failed", "Succeeded"):
                continue
            if "deletionTimestamp" in pod["metadata"]:
                del self.pods[pod["metadata"]["name"]]
            else:
                self._terminate(pod, 255, "Unknown", "")

    def remove_node(self, name: str) -> None:
        """The Node object goes; its pods stay until the garbage is collected."""
        self.nodes.pop(name, None)
        self.off.discard(name)

    def cordon(self, name: str, on: bool = True) -> None:
        """No new pods; a drain begins so."""
        if name in self.nodes:
            self.nodes[name]["spec"] = {"unschedulable": True} if on else {}

    def collect_garbage(self) -> None:
        """Pods of nodes that are no more."""
        for name, pod in list(self.pods.items()):
            node = pod["spec"].get("nodeName")
            if node is not None and node not in self.nodes:
                del self.pods[name]

    # The scheduler and the kubelets.

    def schedule(self) -> None:
        """Bind what isn't."""
        for pod in self.pods.values():
            if pod["spec"].get("nodeName") or pod["status"]["phase"] != "Pending":
                continue
            free = [name for name in sorted(self.nodes) if self._has_room(name)]
            if free:
                pod["spec"]["nodeName"] = free[int(pod["metadata"]["uid"].removeprefix("uid-")) % len(free)]
                self._condition(pod, "PodScheduled", "True", "", by=SCHEDULER)
            else:
                text = "0/3 nodes have room"
                self._condition(pod, "PodScheduled", "False", "Unschedulable", text, by=SCHEDULER)

    def start(self) -> None:
        """Start what is bound."""
        for pod in self._on_live_nodes():
            if pod["status"]["phase"] == "Pending":
                pod["status"]["phase"] = "Running"
                self._state(pod, {"running": {"startedAt": self._now(pod["spec"]["nodeName"])}})
                self._condition(pod, "Ready", "False", "ContainersNotReady")

    def warm(self) -> None:
        """Make ready what runs."""
        for pod in self._on_live_nodes():
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
                self._condition(pod, "Ready", "True", "")

    def reap(self) -> None:
        """End what was asked to go."""
        for pod in self._on_live_nodes():
            if "deletionTimestamp" in pod["metadata"]:
                del self.pods[pod["metadata"]["name"]]

    def fail_closed(self) -> None:
        """End what runs and misses a pod of its life that ran."""
        for pod in self._on_live_nodes():
            life, _, _ = pod["metadata"]["name"].rpartition("-")
            others = [other for name, other in self.pods.items() if name.rpartition("-")[0] == life]
            off = any(
                other["status"]["phase"] == "Failed" or other["spec"].get("nodeName") in self.off
                for other in others
            )
            if off and pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
                self._terminate(pod, 70, "Error", "a pod of the replica can't be reached")

    def come_up(self) -> None:
        """Every part does its step once."""
        for step in (self.reap, self.fail_closed, self.schedule, self.start, self.warm):
            step()

    # What befalls pods.

    def exit(self, name: str, code: int, message: str = "", reason: str | None = None) -> None:
        """Its container ends."""
        said = reason or ("Completed" if code == 0 else "Error")
        self._terminate(self.pods[name], code, said, message)

    def evict(self, name: str) -> None:
        """The kubelet needs the memory for others."""
        pod = self.pods[name]
        self._terminate(pod, 137, "Error", "")
        pod["status"] |= {"reason": "Evicted", "message": "the node was low on memory"}

    def unready(self, name: str) -> None:
        """Its probe fails."""
        self._condition(self.pods[name], "Ready", "False", "ContainersNotReady")

    def of(self, replica: int) -> list[Raw]:
        """The pods of a replica, by name."""
        pods = (pod for _, pod in sorted(self.pods.items()))
        return [pod for pod in pods if pod["metadata"]["labels"][names.LABEL_REPLICA] == str(replica)]

    @property
    def status(self) -> Raw:
        """The stage's."""
        return dict(self.stage.get("status") or {})

    def condition(self, type_: str) -> Raw:
        """One of its conditions."""
        return next(one for one in self.status["conditions"] if one["type"] == type_)

    def _terminate(self, pod: Raw, code: int, reason: str, message: str) -> None:
        pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
        over = {
            "exitCode": code,
            "reason": reason,
            "finishedAt": self._now(pod["spec"].get("nodeName")),
            "message": message,
        }
        self._state(pod, {"terminated": over})
        self._condition(pod, "Ready", "False", "PodFailed")

    def _on_live_nodes(self) -> list[Raw]:
        return [
            pod
            for pod in self.pods.values()
            if pod["spec"].get("nodeName") in self.nodes and pod["spec"]["nodeName"] not in self.off
        ]

    def _has_room(self, name: str) -> bool:
        spec = self.nodes[name]["spec"]
        return name not in self.off and name not in self.full and not spec.get("unschedulable")

    def _set_ready(self, name: str, status: str) -> None:
        ready = {"type": "Ready", "status": status, "lastTransitionTime": self._now(CONTROLLER)}
        if name in self.nodes:
            self.nodes[name]["status"]["conditions"] = [ready]

    def _state(self, pod: Raw, state: Raw) -> None:
        pod["status"]["containerStatuses"] = [{"name": names.CONTAINER, "state": state}]

    def _condition(
        self, pod: Raw, type_: str, status: str, reason: str, message: str = "", by: str | None = None
    ) -> None:
        kept = [one for one in pod["status"].get("conditions", ()) if one["type"] != type_]
        old = next((one for one in pod["status"].get("conditions", ()) if one["type"] == type_), None)
        at = (
            old["lastTransitionTime"]
            if old and old["status"] == status
            else self._now(by or pod["spec"].get("nodeName"))
        )
        new = {
            "type": type_,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": at,
        }
        pod["status"]["conditions"] = [*kept, new]

    def _now(self, whose: str | None = None, in_s: float = 0) -> str:
        return str(time_text(self.now_s + in_s + self.skew_s.get(whose or "", 0.0)))
