"""An operator for a cluster in memory: it decides with the real plan, and acts one step after the other."""

from __future__ import annotations

import copy
import itertools

from stage_operator.decide import moments
from stage_operator.decide.plan import plan
from stage_operator.observed.gone_pods import Departed
from stage_operator.observed.sightings import Sightings, uid_of
from stage_operator.values import (
    Action,
    Api,
    Apply,
    CreatePod,
    DeletePod,
    Emit,
    Objects,
    Plan,
    Refusal,
    Remove,
    Said,
)
from support.sim_cluster import SETTINGS, Raw, SimCluster


class Crash(Exception):
    """The operator's process ends here."""


_MOMENTS = {"Stage": moments.of_stage, "Pod": moments.of_pod, "Node": moments.of_node}


class SimOperator:
    """Plans and acts as the real one does, one stage, one step after the other. It may see pods late."""

    def __init__(self, cluster: SimCluster, api: Api | None = None, clock_s: float = 0.0) -> None:
        self.cluster = cluster
        self.api = Api() if api is None else api
        self.seen: dict[str, Raw] = {}
        self.departed = Departed()
        self.refusals: tuple[Refusal, ...] = ()
        self.told: list[Emit] = []
        self.said: dict[str, Said] = {}
        self.last: Plan | None = None
        self.clock_s = clock_s
        """How far ahead its own clock is."""
        self.sights = {kind: Sightings(of, self.now_s) for kind, of in _MOMENTS.items()}
        self.see_all()
        self._look()
        for sights in self.sights.values():
            sights.caught_up()

    def now_s(self) -> float:
        """Its own time."""
        return self.cluster.now_s + self.clock_s

    def see_all(self) -> None:
        """A list."""
        for name in self.seen.keys() | self.cluster.pods.keys():
            self.see(name)
        self._look()

    def see(self, name: str) -> None:
        """An event about one pod."""
        if name in self.cluster.pods:
            self.seen[name] = copy.deepcopy(self.cluster.pods[name])
            self.sights["Pod"].note(self.seen[name])
        elif name in self.seen:
            self.sights["Pod"].forget(self.seen[name])
            self.departed.note(self.seen.pop(name))

    def _look(self) -> None:
        """At what it always sees."""
        self.sights["Stage"].note(self.cluster.stage)
        for node in self.cluster.nodes.values():
            self.sights["Node"].note(node)

    def decide(self, jitter: float = 0.0) -> Plan:
        """What follows from what is seen."""
        self._look()
        objects = Objects(
            stage=copy.deepcopy(self.cluster.stage),
            api=self.api,
            pods=tuple(copy.deepcopy(pod) for _, pod in sorted(self.seen.items())),
            nodes=copy.deepcopy(self.cluster.nodes),
            children=copy.deepcopy(self.cluster.children),
            refusals=self.refusals,
            said=self.said,
            gone=self.departed.of(self.cluster.stage),
            seen={
                uid_of(obj): self.sights[kind].of(obj)
                for kind, objs in (
                    ("Stage", (self.cluster.stage,)),
                    ("Pod", self.seen.values()),
                    ("Node", self.cluster.nodes.values()),
                )
                for obj in objs
            },
        )
        self.last = plan(objects, now_s=self.now_s(), jitter=jitter, settings=SETTINGS)
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
            self._store(made.status)
        refusals: list[Refusal] = []
        for action in made.actions:
            step()
            if isinstance(found := self._do(action), Refusal):
                refusals.append(found)
        self.refusals = tuple(refusals)
        step()
        self._store(made.status)
        return made

    def _store(self, status: Raw) -> None:
        self.cluster.store_status(status)
        self._look()

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
                if made.wake_at_s is None or made.wake_at_s > self.now_s() + 20_000:
                    return i
                self.cluster.now_s = max(self.cluster.now_s, made.wake_at_s - self.clock_s)
        raise AssertionError(f"still not at rest after {rounds} rounds")


def _acts(made: Plan) -> bool:
    return any(isinstance(action, CreatePod | DeletePod | Remove) for action in made.actions)
