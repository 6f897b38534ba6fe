"""A cluster of one stage in memory: an API server, a scheduler and kubelets, as far as a plan can see them.

Nothing happens by itself: each part does its next step when it is told to, and time passes when it is told to.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

from stage_api import names
from stage_operator.decide.plan import plan
from stage_operator.decide.remembered_status import time_text
from stage_operator.observed.gone_pods import Departed
from stage_operator.values import (
    Action,
    Api,
    Apply,
    ChildKey,
    CreatePod,
    DeletePod,
    Emit,
    Objects,
    Plan,
    PlanSettings,
    Refusal,
    Remove,
    Said,
)

Raw = dict[str, Any]

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

    def __init__(self, raw: Raw, nodes: int = 3) -> None:
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
        pod["metadata"] |= {"uid": f"uid-{next(self._uids)}", "creationTimestamp": self._now()}
        pod["status"] = {"phase": "Pending"}
        self.pods[name] = pod
        return pod

    def apply(self, manifest: Raw) -> None:
        """A child as it should be."""
        key = ChildKey.of(manifest)
        old = self.children.get(key, {"metadata": {"uid": f"child-{next(self._uids)}"}})
        at = old["metadata"].get("creationTimestamp", self._now())
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
            pod["metadata"]["deletionTimestamp"] = time_text(self.now_s + grace_s)
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
                self._condition(pod, "PodScheduled", "True", "")
            else:
                self._condition(pod, "PodScheduled", "False", "Unschedulable", "0/3 nodes have room")

    def start(self) -> None:
        """Start what is bound."""
        for pod in self._on_live_nodes():
            if pod["status"]["phase"] == "Pending":
                pod["status"]["phase"] = "Running"
                self._state(pod, {"running": {"startedAt": self._now()}})
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

    def come_up(self) -> None:
        """Every part does its step once."""
        for step in (self.reap, self.schedule, self.start, self.warm):
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
        over = {"exitCode": code, "reason": reason, "finishedAt": self._now(), "message": message}
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
        ready = {"type": "Ready", "status": status, "lastTransitionTime": self._now()}
        if name in self.nodes:
            self.nodes[name]["status"]["conditions"] = [ready]

    def _state(self, pod: Raw, state: Raw) -> None:
        pod["status"]["containerStatuses"] = [{"name": names.CONTAINER, "state": state}]

    def _condition(self, pod: Raw, type_: str, status: str, reason: str, message: str = "") -> None:
        kept = [one for one in pod["status"].get("conditions", ()) if one["type"] != type_]
        old = next((one for one in pod["status"].get("conditions", ()) if one["type"] == type_), None)
        at = old["lastTransitionTime"] if old and old["status"] == status else self._now()
        new = {
            "type": type_,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": at,
        }
        pod["status"]["conditions"] = [*kept, new]

    def _now(self) -> str:
        return str(time_text(self.now_s))


class Crash(Exception):
    """The operator's process ends here."""


class SimOperator:
    """Plans and acts as the real one does, one stage, one step after the other. It may see pods late."""

    def __init__(self, cluster: SimCluster, api: Api | None = None) -> None:
        self.cluster = cluster
        self.api = Api(server_minor=37) if api is None else api
        self.seen: dict[str, Raw] = {}
        self.departed = Departed()
        self.refusals: tuple[Refusal, ...] = ()
        self.told: list[Emit] = []
        self.said: dict[str, Said] = {}
        self.last: Plan | None = None
        self.see_all()

    def see_all(self) -> None:
        """A list."""
        for name in self.seen.keys() - self.cluster.pods.keys():
            self.departed.note(self.seen[name])
        self.seen = copy.deepcopy(self.cluster.pods)

    def see(self, name: str) -> None:
        """An event about one pod."""
        if name in self.cluster.pods:
            self.seen[name] = copy.deepcopy(self.cluster.pods[name])
        elif name in self.seen:
            self.departed.note(self.seen.pop(name))

    def decide(self, jitter: float = 0.0) -> Plan:
        """What follows from what is seen."""
        objects = Objects(
            stage=copy.deepcopy(self.cluster.stage),
            api=self.api,
            pods=tuple(copy.deepcopy(pod) for _, pod in sorted(self.seen.items())),
            nodes=copy.deepcopy(self.cluster.nodes),
            children=copy.deepcopy(self.cluster.children),
            refusals=self.refusals,
            said=self.said,
            gone=self.departed.of(self.cluster.stage),
        )
        self.last = plan(objects, now_s=self.cluster.now_s, jitter=jitter, settings=SETTINGS)
        return self.last

    def turn(self, jitter: float = 0.0, crash_after: int | None = None) -> Plan:
        """One turn. `crash_after`: so many steps are done, then it raises Crash."""
        made = self.decide(jitter)
        left = itertools.count(crash_after or 0, -1) if crash_after is not None else None

        def step() -> None:
            if left is not None and next(left) <= 0:
                raise Crash

        if made.status_first:
            step()
            self.cluster.store_status(made.status)
        refusals: list[Refusal] = []
        for action in made.actions:
            step()
            if isinstance(found := self._do(action), Refusal):
                refusals.append(found)
        self.refusals = tuple(refusals)
        step()
        self.cluster.store_status(made.status)
        return made

    def _do(self, action: Action) -> Refusal | None:
        self.cluster.log.append(action)
        match action:
            case CreatePod(manifest):
                made = self.cluster.create(manifest)
                if isinstance(made, Refusal):
                    return made
                self.see(manifest["metadata"]["name"])
            case DeletePod(name, uid, grace_s, force):
                self.cluster.delete(name, uid, grace_s, force=force)
                self.see(name)
            case Apply(manifest):
                self.cluster.apply(manifest)
            case Remove(_, kind, name, uid):
                self.cluster.remove(kind, name, uid)
            case Emit():
                self.told.append(action)
        return None

    def settle(self, rounds: int = 60) -> int:
        """Turn after turn, with all parts doing their steps, until nothing changes. How many it took."""
        for i in range(rounds):
            before = (copy.deepcopy(self.cluster.status), copy.deepcopy(self.cluster.pods))
            self.see_all()
            made = self.turn()
            self.cluster.come_up()
            if before == (self.cluster.status, self.cluster.pods) and not _acts(made):
                if made.wake_at_s is None or made.wake_at_s > self.cluster.now_s + 20_000:
                    return i
                self.cluster.now_s = max(self.cluster.now_s, made.wake_at_s)
        raise AssertionError(f"still not at rest after {rounds} rounds")


def _acts(made: Plan) -> bool:
    return any(isinstance(action, CreatePod | DeletePod | Remove) for action in made.actions)
