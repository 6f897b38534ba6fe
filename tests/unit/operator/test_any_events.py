"""Whatever befalls a stage, in whatever order, and wherever the operator crashes meanwhile."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from stage_api import names
from stage_operator.decide.replica import LIVE, WHOLE
from stage_operator.values import CreatePod, DeletePod
from support.sim_cluster import SimCluster, stage
from support.sim_operator import Crash, SimOperator

_MAX_RESTARTS, _WINDOW_S = 3, 3600
_NODES = ("node-0", "node-1", "node-2")
_CODES = st.sampled_from([0, 1, 64, 65, 70, 71, 72, 73, 74, 137])
_STRANGER = "pics-7-e0-0"
_OVER_BY_ITSELF = ("Terminating", "BackOff", "Held")

Raw = dict[str, Any]


class AnyEvents(RuleBasedStateMachine):
    """Users, pods, nodes, time and the operator each do their next step."""

    def __init__(self) -> None:
        super().__init__()
        self.judged: set[tuple[int, int]] = set()
        self.over: set[tuple[int, int]] = set()
        self.whole: set[tuple[int, int]] = set()
        self.causes: dict[tuple[int, int], int | None] = {}
        self.counted: dict[int, list[float]] = {}
        self.made: set[str] = set()

    @initialize(pods=st.integers(1, 2), replicas=st.integers(1, 3))
    def apply(self, pods: int, replicas: int) -> None:
        """A user applies the stage; somebody else's pod is there already."""
        self.pods = pods
        policy = {"maxRestarts": _MAX_RESTARTS, "windowSeconds": _WINDOW_S}
        world = {"parallelism": {"data": pods}, "topology": {"ranksPerPod": 1}}
        self.cluster = SimCluster(stage(replicas=replicas, failurePolicy=policy, **world))
        labels = {names.LABEL_STAGE: "pics", names.LABEL_REPLICA: "7", names.LABEL_EPOCH: "0"}
        self.stranger = {
            "metadata": {
                "name": _STRANGER,
                "uid": "other",
                "labels": {**labels, names.LABEL_ORDINAL: "0"},
                "ownerReferences": [{"uid": "another-stage", "controller": True}],
            },
            "spec": {},
            "status": {"phase": "Failed"},
        }
        self.cluster.pods[_STRANGER] = copy.deepcopy(self.stranger)
        self.cluster.on_create.append(self._no_two_lives)
        self.cluster.on_delete.append(self._only_what_may_go)
        self.cluster.on_status.append(self._counts_are_exact)
        self.operator = SimOperator(self.cluster)
        self.everything_comes_up()

    # The operator.

    @rule(jitter=st.floats(-1, 1), sees=st.randoms(use_true_random=False), all_=st.booleans())
    def turn(self, jitter: float, sees: Any, all_: bool) -> None:
        """A turn of the operator, which may not have seen everything."""
        self._see(sees, all_)
        self.operator.turn(jitter)

    @rule(jitter=st.floats(-1, 1), steps=st.integers(0, 12), which=st.integers(0, 5), code=_CODES)
    def crash(self, jitter: float, steps: int, which: int, code: int) -> None:
        """A container ends, and the turn about it is cut off after some steps; another operator begins with a list."""
        self.container_exits(calm=True, which=which, code=code)
        self.operator.see_all()
        with contextlib.suppress(Crash):
            self.operator.turn(jitter, crash_after=steps)
        self._begin_another()

    @rule(steps=st.integers(0, 12))
    def crash_in_the_midst(self, steps: int) -> None:
        """As above, whatever is under way."""
        self.operator.see_all()
        with contextlib.suppress(Crash):
            self.operator.turn(crash_after=steps)
        self._begin_another()

    # The cluster.

    @rule(step=st.sampled_from(["reap", "schedule", "start", "warm"]))
    def cluster_step(self, step: str) -> None:
        """A part of the cluster does its work."""
        getattr(self.cluster, step)()

    @rule()
    def everything_comes_up(self) -> None:
        """Turns and steps enough for what is under way."""
        for _ in range(3):
            self.operator.see_all()
            self.operator.turn()
            self.cluster.come_up()

    @rule(seconds=st.sampled_from([1, 11, 46, 130, 700, 4000]))
    def time_passes(self, seconds: int) -> None:
        """Nothing else happens."""
        self.cluster.now_s += seconds

    @rule(calm=st.booleans(), which=st.integers(0, 5), code=_CODES)
    def container_exits(self, calm: bool, which: int, code: int) -> None:
        """A container ends by itself, in the midst of something or when all is well."""
        if calm:
            self.everything_comes_up()
        if (name := self._running(which)) is not None:
            self._blame(name, code)
            self.cluster.exit(name, code, "why", "OOMKilled" if code == 137 else None)

    @rule(
        calm=st.booleans(),
        which=st.integers(0, 5),
        how=st.sampled_from(["evict", "delete", "force", "unready"]),
    )
    def pod_is_taken(self, calm: bool, which: int, how: str) -> None:
        """Something befalls a pod."""
        if calm:
            self.everything_comes_up()
        if (name := self._running(which)) is None:
            return
        uid = self.cluster.pods[name]["metadata"]["uid"]
        if how != "unready":
            self._blame(name, None)
        if how in ("delete", "force"):
            with self._by_hand():
                self.cluster.delete(name, uid, None, force=how == "force")
        else:
            getattr(self.cluster, how)(name)

    @rule(which=st.integers(0, 5))
    def pod_is_taken_before_it_runs(self, which: int) -> None:
        """Somebody deletes one that may not even be written of yet."""
        pending = [n for n, pod in sorted(self.cluster.pods.items()) if pod["status"]["phase"] == "Pending"]
        if pending:
            name = pending[which % len(pending)]
            self._blame(name, None)
            with self._by_hand():
                self.cluster.delete(name, self.cluster.pods[name]["metadata"]["uid"], None, force=True)

    @rule(
        name=st.sampled_from(_NODES),
        what=st.sampled_from(["power_off", "power_on", "remove_node", "cordon", "uncordon", "add"]),
    )
    def node_changes(self, name: str, what: str) -> None:
        """Something befalls a node."""
        for pod in list(self.cluster.pods.values()):
            if pod["spec"].get("nodeName") == name:
                self._blame(pod["metadata"]["name"], None, at_last=what in ("add", "remove_node"))
        if what == "add":
            if name not in self.cluster.nodes:
                self.cluster.add_node(name)
        elif name not in self.cluster.nodes:
            self.cluster.collect_garbage()
        elif what == "uncordon":
            self.cluster.cordon(name, False)
        elif what != "power_on" or name in self.cluster.off:
            getattr(self.cluster, what)(name)

    @rule()
    def garbage_is_collected(self) -> None:
        """Pods of nodes that are gone go."""
        for pod in self.cluster.pods.values():
            if self._is_off(pod):
                self._blame(pod["metadata"]["name"], None, at_last=True)
        self.cluster.collect_garbage()

    # Users.

    @rule(dtype=st.sampled_from(["bfloat16", "float16", "float32"]))
    def spec_changes(self, dtype: str) -> None:
        """Another revision, or an old one again."""
        self.cluster.edit(engine={"device": "cpu", "dtype": dtype})

    @rule(replicas=st.integers(0, 3))
    def stage_is_scaled(self, replicas: int) -> None:
        """Another number."""
        self.cluster.edit(replicas=replicas)

    @rule(suspend=st.booleans())
    def stage_is_suspended(self, suspend: bool) -> None:
        """Suspended, or resumed."""
        self.cluster.edit(suspend=suspend)

    @rule(
        surge=st.integers(0, 2),
        away=st.integers(0, 2),
        paused=st.booleans(),
        partition=st.integers(0, 2),
        ready=st.sampled_from([0, 30]),
    )
    def rollout_changes(self, surge: int, away: int, paused: bool, partition: int, ready: int) -> None:
        """Another way to replace replicas."""
        rollout = {"maxSurge": surge, "maxUnavailable": away if surge or away else 1}
        more = {"paused": paused, "partition": partition, "minReadySeconds": ready}
        self.cluster.edit(rollout={**rollout, **more})

    @rule(word=st.sampled_from(["a", "b"]))
    def restart_is_asked_for(self, word: str) -> None:
        """By the annotation."""
        self.cluster.annotate(word)

    # What must hold.

    def teardown(self) -> None:
        """Once nothing happens any more, the stage gets what it asks for, and then nothing is done."""
        if not hasattr(self, "cluster"):
            return
        for name in _NODES:
            self.cluster.collect_garbage()
            if name not in self.cluster.nodes:
                self.cluster.add_node(name)
            if name in self.cluster.off:
                self.cluster.power_on(name)
            self.cluster.cordon(name, False)
        self.cluster.edit(suspend=False, rollout={"maxUnavailable": 1})
        self.operator.see_all()
        self.operator.settle(300)
        self.cluster.annotate("again")
        self.operator.settle(300)
        status, wanted = self.cluster.status, self.cluster.stage["spec"]["replicas"]
        assert status["ready"] == f"{wanted}/{wanted}"
        assert status["updatedReplicas"] == wanted
        assert {name for name in self.cluster.pods if name != _STRANGER} == {
            names.pod_name("pics", one["index"], one["epoch"], ordinal)
            for one in status["replicaStatuses"]
            for ordinal in range(self.cluster.stage["spec"]["parallelism"]["data"])
        }
        assert self.cluster.pods[_STRANGER] == self.stranger
        kinds = [key.kind for key in self.cluster.children]
        assert kinds.count("ConfigMap") == 1
        assert kinds.count("PodDisruptionBudget") == (1 if self.pods == 1 else wanted)
        again = self.operator.turn()
        assert again.status == status
        assert not [action for action in again.actions if isinstance(action, CreatePod | DeletePod)]

    def _no_two_lives(self, manifest: Raw) -> None:
        labels, name = manifest["metadata"]["labels"], manifest["metadata"]["name"]
        assert name not in self.made, f"{name} is made a second time"
        replica, epoch = labels[names.LABEL_REPLICA], int(labels[names.LABEL_EPOCH])
        assert (int(replica), epoch) not in self.whole, "a life goes on without one of its pods"
        for pod in self.cluster.of(int(replica)):
            other = int(pod["metadata"]["labels"][names.LABEL_EPOCH])
            if pod["metadata"]["uid"] != "other" and other != epoch:
                assert other < epoch
                over = pod["status"]["phase"] in ("Failed", "Succeeded")
                assert over or self._is_off(pod), f"{pod['metadata']['name']} still runs"
        self.made.add(name)

    def _begin_another(self) -> None:
        """What the one before saw and did not write down, nobody knows."""
        self.operator = SimOperator(self.cluster)
        self.made = set()

    def _only_what_may_go(self, pod: Raw, force: bool) -> None:
        assert pod["metadata"]["uid"] != "other"
        if force and not self.by_hand:
            assert self._is_off(pod)

    by_hand = False

    @contextlib.contextmanager
    def _by_hand(self) -> Any:
        self.by_hand = True
        yield
        self.by_hand = False

    def _counts_are_exact(self, old: Raw, new: Raw) -> None:
        was = {one["index"]: one for one in old.get("replicaStatuses", ())}
        more = 0
        for one in new["replicaStatuses"]:
            before, index = was.get(one["index"], {}), one["index"]
            history, earlier = one.get("history") or {}, before.get("history") or {}
            delta = history.get("restarts", 0) - earlier.get("restarts", 0)
            more += delta
            if history.get("epoch") != earlier.get("epoch"):
                life = (index, history["epoch"])
                assert life not in self.judged
                self.judged.add(life)
                if (cause := self.causes.get(life)) is not None and self.pods == 1:
                    assert history["last"].get("exitCode") == cause
                assert delta == (history.get("held") is None)
                disrupted = history.get("disruptions", 0) > earlier.get("disruptions", 0)
                if delta and not disrupted:
                    self.counted.setdefault(index, []).append(self.cluster.now_s)
            else:
                assert delta == 0
            self._budget(one, before)
            self._over_is_over(one)
        assert new.get("restarts", 0) - old.get("restarts", 0) == more

    def _budget(self, one: Raw, before: Raw) -> None:
        lifted = one["revision"] != before.get("revision") or before.get("phase") in ("Suspended", "Held")
        if lifted and one["phase"] != "Held":
            self.counted[one["index"]] = []
        recent = [t for t in self.counted.get(one["index"], ()) if t > self.cluster.now_s - _WINDOW_S]
        assert len(recent) <= _MAX_RESTARTS

    def _over_is_over(self, one: Raw) -> None:
        life = (one["index"], one["epoch"])
        if one["phase"] in WHOLE:
            self.whole.add(life)
        if one["phase"] in LIVE:
            assert life not in self.over
        else:
            self.over.add(life)
        if one["phase"] in _OVER_BY_ITSELF:
            assert life in self.judged

    def _is_off(self, pod: Raw) -> bool:
        node = pod["spec"].get("nodeName")
        return node is not None and (node in self.cluster.off or node not in self.cluster.nodes)

    def _blame(self, name: str, code: int | None, *, at_last: bool = False) -> None:
        """Note what ended a life first; None for what is no exit, or hides what came before it."""
        labels = self.cluster.pods[name]["metadata"]["labels"]
        life = (int(labels[names.LABEL_REPLICA]), int(labels[names.LABEL_EPOCH]))
        if at_last:
            self.causes[life] = None
        else:
            self.causes.setdefault(life, code)

    def _running(self, which: int) -> str | None:
        able = [
            name
            for name, pod in sorted(self.cluster.pods.items())
            if pod["status"]["phase"] == "Running" and not self._is_off(pod)
        ]
        return able[which % len(able)] if able else None

    def _see(self, sees: Any, all_: bool) -> None:
        if all_:
            self.operator.see_all()
            return
        for name in sorted({*self.cluster.pods, *self.operator.seen}):
            if sees.random() < 0.5:
                self.operator.see(name)


AnyEvents.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyEvents = AnyEvents.TestCase
