"""What should become of one stage: from what there is, its spec, its status and the time.

Pure: the same objects, time and chance give the same plan. A plan begins by judging what has ended, then settles
which replicas should be there, and says at last what is to be done and shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from stage_api import names
from stage_api.errors import Fault, SpecError
from stage_api.manifest import parse_stage
from stage_api.stage import DiffusionStage
from stage_api.status import DiffusionStageStatus, TopologyStatus
from stage_api.topology import derive
from stage_operator.decide import children, conditions, events, told_by_pods
from stage_operator.decide.conditions import View
from stage_operator.decide.remembered_status import Memory, read, recall, written
from stage_operator.decide.replica import LIVE, Life, Replica, advance, deletions, gather
from stage_operator.decide.rollout import (
    Settled,
    Wish,
    asked_restart,
    is_available,
    settle,
    spelled_revision,
    wanted_revision,
)
from stage_operator.decide.stage_phase import phase
from stage_operator.decide.timer import Timer
from stage_operator.decide.views import Sight, observe
from stage_operator.manifests.refusal import refused
from stage_operator.values import Action, CreatePod, Manifest, Objects, Plan, PlanSettings, Refusal

_GOLDEN: Final = 0.6180339887498949  # spreads one number of chance over many replicas


def plan(objects: Objects, *, now_s: float, jitter: float, settings: PlanSettings) -> Plan:
    """What should be, and what is to be done about it. `now_s` is UNIX time, `jitter` in [-1, 1]."""
    raw = objects.stage
    if raw["metadata"].get("deletionTimestamp") is not None:
        return Plan(status=dict(raw.get("status") or {}))  # its children go with it, and none may come
    try:
        stage = parse_stage({name: value for name, value in raw.items() if name != "status"}, executable=True)
    except SpecError as error:
        return _refused(raw, "SpecInvalid", error.faults, now_s)
    if faults := refused(stage, objects.api, settings):
        return _refused(raw, "NotAllowed", faults, now_s)
    return _Planning(objects, stage, Timer(now_s), jitter, settings).plan()


class _Planning:
    """One plan for a stage whose spec is sound."""

    def __init__(
        self, objects: Objects, stage: DiffusionStage, timer: Timer, jitter: float, settings: PlanSettings
    ) -> None:
        self.objects = objects
        self.stage = stage
        self.timer = timer
        self.jitter = jitter
        self.settings = settings
        self.sight: Sight = observe(objects)
        self.memory: Memory = recall(objects.stage, self.sight.pods, self.sight.gone)
        self.topology = derive(stage.spec.parallelism, stage.spec.ranks_per_pod)
        revision = wanted_revision(stage)
        self.wish = Wish(
            spec=stage.spec,
            revision=revision,
            pods=self.topology.pods,
            first_epoch=self.memory.first_epoch,
            same=frozenset({revision, spelled_revision(stage)}),
        )

    def plan(self) -> Plan:
        """The whole of it."""
        known = gather(self._remembered(), self.sight.pods)
        advanced = {one.index: self._advanced(one) for one in known}
        judged = gather(advanced, self.sight.pods)
        settled = settle(judged, self.wish, self.sight, self.timer, self._over_quota(judged))
        replicas = gather(settled.lives, self.sight.pods)
        view = self._view(settled, replicas)
        found = {finding.type: finding for finding in conditions.findings(view)}
        before = self.memory.status.conditions
        actions: list[Action] = [
            *events.of_replicas(
                self.memory.lives, replicas, settled.stopped, self.objects.stage, self.timer.now_s
            ),
            *events.of_conditions(before, found, self.objects.stage),
            *self._deletions(replicas),
            *children.keep(self.objects, self.stage, self.wish, replicas, self.settings),
            *self._creations(replicas),
        ]
        return Plan(
            status=self._status(view, found).fitted().to_json(),
            actions=tuple(actions),
            status_first=self._is_evident(settled.lives),
            wake_at_s=self.timer.wake_at_s,
        )

    def _remembered(self) -> dict[int, Life]:
        """What is remembered; of lives of this spec it is known how many pods they have.

        Their revision is called by its name of today from now on, whatever an older operator called it.
        """
        wish = self.wish
        return {
            index: replace(life, pods=wish.pods, revision=wish.revision)
            if life.revision in wish.same
            else life
            for index, life in self.memory.lives.items()
        }

    def _advanced(self, replica: Replica) -> Life:
        chance = (self.jitter + 1) / 2 + replica.index * _GOLDEN
        jitter = 2 * (chance % 1) - 1 if replica.index else self.jitter
        return advance(replica, self.stage.metadata.name, self.stage.spec, self.sight, self.timer, jitter)

    def _view(self, settled: Settled, replicas: list[Replica]) -> View:
        said = self.objects.said
        return View(
            stage=self.stage,
            wish=self.wish,
            replicas=replicas,
            settled=settled,
            available=frozenset(one.index for one in replicas if is_available(one, self.wish, self.timer)),
            refusals=(*self.objects.refusals, *self._in_the_way(replicas)),
            before=self.memory.status.conditions,
            sight=self.sight,
            timer=self.timer,
            said=said,
            facts=told_by_pods.facts(replicas, said, self.wish.revision, self.memory.status.facts),
        )

    def _names_wanted(self, replica: Replica) -> Iterator[tuple[int, str]]:
        if replica.life.phase not in LIVE or replica.life.revision != self.wish.revision:
            return
        for ordinal in replica.missing:
            yield (
                ordinal,
                names.pod_name(self.stage.metadata.name, replica.index, replica.life.epoch, ordinal),
            )

    def _over_quota(self, replicas: list[Replica]) -> frozenset[int]:
        """Replicas of which a pod isn't made since the namespace has too many."""
        names_refused = {one.name for one in self.objects.refusals if one.is_over_quota}
        return frozenset(
            replica.index
            for replica in replicas
            if any(name in names_refused for _, name in self._names_wanted(replica))
        )

    def _in_the_way(self, replicas: list[Replica]) -> Iterator[Refusal]:
        for replica in replicas:
            for _, name in self._names_wanted(replica):
                if name in self.sight.strangers:
                    message = "exists already and belongs to somebody else"
                    yield Refusal("Pod", name, "AlreadyExists", message)

    def _creations(self, replicas: list[Replica]) -> Iterator[CreatePod]:
        for replica in replicas:
            wanted = [pair for pair in self._names_wanted(replica) if pair[1] not in self.sight.strangers]
            if wanted:
                others = [other.life for other in replicas]
                made = children.life_pods(self.stage, replica.life, self.objects.api, self.settings, others)
                yield from (CreatePod(made[ordinal]) for ordinal, _ in wanted)

    def _deletions(self, replicas: list[Replica]) -> Iterator[Action]:
        for replica in replicas:
            yield from deletions(replica, self.stage.spec, self.sight, self.timer)

    def _is_evident(self, lives: Mapping[int, Life]) -> bool:
        """Whether a life is over that was not over before: to be remembered before anything follows from it."""
        lived = ((index, was) for index, was in self.memory.lives.items() if was.phase in LIVE)
        return any(not _goes_on(was, lives.get(index)) for index, was in lived)

    def _status(self, view: View, found: Mapping[str, conditions.Finding]) -> DiffusionStageStatus:
        before, generation = self.memory.status, self.stage.metadata.generation
        restarts, disruptions = self._counted(view.settled.lives)
        return DiffusionStageStatus(
            conditions=conditions.merged(before.conditions, found.values(), generation, self.timer.now_s),
            observed_generation=generation,
            model=self.stage.served_name,
            phase=phase(view, found),
            replicas=len(view.replicas),
            ready_replicas=view.serving,
            ready=f"{view.serving}/{self.wish.replicas}",
            selector=conditions.selector(self.stage.metadata.name),
            restarts=restarts,
            topology=TopologyStatus.of(self.topology),
            updated_replicas=view.updated,
            disruptions=disruptions,
            facts=view.facts,
            revision=self.wish.revision,
            observed_restart=asked_restart(self.stage),
            first_epoch=view.settled.first_epoch or None,
            replica_statuses=tuple(
                written(replica, told_by_pods.start(replica, view.said)) for replica in view.replicas
            ),
        )

    def _counted(self, lives: Mapping[int, Life]) -> tuple[int, int]:
        """All restarts and disruptions so far. Those of replicas that are no more stay counted."""
        restarts, disruptions = self.memory.status.restarts or 0, self.memory.status.disruptions or 0
        for index, life in lives.items():
            was = self.memory.lives.get(index)
            restarts += life.history.restarts - (0 if was is None else was.history.restarts)
            disruptions += life.history.disruptions - (0 if was is None else was.history.disruptions)
        return restarts, disruptions


def _refused(raw: Manifest, reason: str, faults: tuple[Fault, ...], now_s: float) -> Plan:
    """A stage whose spec can't be executed: it is told so, and everything that it has is left alone."""
    before = read(raw)
    message = "; ".join(str(fault) for fault in faults)
    found = {finding.type: finding for finding in conditions.refused(reason, message)}
    generation = raw["metadata"].get("generation")
    status = before.model_copy(
        update={
            "conditions": conditions.merged(before.conditions, found.values(), generation, now_s),
            "observed_generation": generation,
            "phase": "Refused",
        }
    )
    return Plan(status=status.to_json(), actions=tuple(events.of_conditions(before.conditions, found, raw)))


def _goes_on(was: Life, now: Life | None) -> bool:
    """Whether a life is still the same one."""
    return now is not None and now.phase in LIVE and now.epoch == was.epoch
