"""What is asked about pods beside their objects: seldom, few at a time, and only as long as it matters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stage_api import names
from stage_operator.client.kube import Refused, Trouble
from stage_operator.client.pod_http import Unreachable
from stage_operator.observed.cache import POD, STAGE, Cache
from stage_operator.observed.inquirer import FORBIDDEN_S, MOST, Inquirer, latest
from stage_operator.observed.questions import Question, Schedule, port, question
from stage_operator.values import Api, PodEvent, Said, StageKey

RUNNING = {"containerStatuses": [{"name": names.CONTAINER, "state": {"running": {}}}], "podIP": "10.0.0.7"}
READY = {**RUNNING, "conditions": [{"type": "Ready", "status": "True"}]}
WAITING = {
    "containerStatuses": [{"name": names.CONTAINER, "state": {"waiting": {"reason": "PodInitializing"}}}]
}
FETCHING = {
    "initContainerStatuses": [{"name": names.FETCH_CONTAINER, "state": {"running": {}}}],
    "podIP": "10.0.0.7",
}
MODELS = {"data": [{"pipeline": "P", "modality": "image", "capability": {"batches": True}}]}


def pod(status: dict[str, Any], name: str = "s-0-e0-0", version: int = 1, **metadata: Any) -> dict[str, Any]:
    first = {names.LABEL_RANK0: "true"} if name.endswith("-0") else {}
    labels = {names.LABEL_STAGE: "s", **first}
    identity = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(version)}
    ports = [{"name": names.PORT_NAME, "containerPort": 9000}]
    return {
        "kind": "Pod",
        "metadata": {**identity, "labels": labels, **metadata},
        "spec": {"nodeName": "n", "containers": [{"name": names.CONTAINER, "ports": ports}]},
        "status": status,
    }


@pytest.mark.parametrize(
    ("one", "asked"),
    [
        (pod({}), Question.STUCK),
        (pod(WAITING), Question.STUCK),
        (pod(WAITING, "s-0-e0-1"), Question.STUCK),
        (pod(FETCHING), Question.START),
        (pod(RUNNING), Question.START),
        (pod(RUNNING, "s-0-e0-1"), None),
        (pod(READY), Question.FACTS),
        (pod(READY, "s-0-e0-1"), None),
        (pod({**READY, "podIP": ""}), None),
        (pod({**RUNNING, "phase": "Failed"}), None),
        (pod({**READY, "phase": "Succeeded"}), None),
        (pod(READY, deletionTimestamp="2027-01-01T00:00:00Z"), None),
        ({**pod({}), "spec": {}}, None),
    ],
)
def test_a_pod_is_asked_what_its_object_does_not_say(one: dict[str, Any], asked: Question | None) -> None:
    assert question(one) is asked


def test_a_pod_answers_where_its_container_says_so() -> None:
    assert port(pod(RUNNING)) == 9000
    assert port({**pod(RUNNING), "spec": {}}) == names.HTTP_PORT


def times(schedule: Schedule, one: dict[str, Any], *, answered: bool, until: int) -> list[int]:
    """At which seconds it is asked."""
    found = []
    for now in range(until):
        for what, due in schedule.due([one], now, MOST):
            found.append(now)
            schedule.asked(due, what, now, answered=answered)
    return found


def test_a_pod_that_does_not_start_is_looked_into_within_a_minute_and_then_less_and_less() -> None:
    assert times(Schedule(), pod(WAITING), answered=True, until=240) == [10, 20, 40, 80, 140, 200]


def test_a_start_is_asked_what_it_does_every_quarter_of_a_minute() -> None:
    assert times(Schedule(), pod(RUNNING), answered=True, until=60) == [5, 20, 35, 50]


def test_facts_are_read_once_in_a_life_and_asked_for_less_and_less_where_nobody_answers() -> None:
    schedule = Schedule()
    assert times(schedule, pod(READY), answered=True, until=5000) == [0]
    silent = times(Schedule(), pod(READY), answered=False, until=1500)
    assert silent == [0, 15, 45, 105, 225, 465, 765, 1065, 1365]


def test_a_pod_whose_state_is_another_is_asked_something_else_in_its_own_time() -> None:
    schedule = Schedule()
    assert schedule.due([pod(WAITING)], 0, MOST) == []
    assert [what for what, _ in schedule.due([pod(WAITING)], 10, MOST)] == [Question.STUCK]
    assert schedule.due([pod(RUNNING, version=2)], 11, MOST) == []
    assert [what for what, _ in schedule.due([pod(RUNNING, version=2)], 16, MOST)] == [Question.START]
    assert [what for what, _ in schedule.due([pod(READY, version=3)], 17, MOST)] == [Question.FACTS]


def test_of_many_the_ones_that_have_waited_longest_are_asked_first() -> None:
    schedule = Schedule()
    old, young = [pod(READY, f"s-{i}-e0-0") for i in range(2)], [pod(READY, f"s-{i}-e0-0") for i in (2, 3)]
    schedule.due(old, 0, 0)
    schedule.due([*young, *old], 1, 0)
    assert [one["metadata"]["name"] for _, one in schedule.due([*young, *old], 2, 2)] == [
        "s-0-e0-0",
        "s-1-e0-0",
    ]


class World:
    """An inquirer over a cache with one stage; what the cluster and the pods answer is the test's."""

    def __init__(self) -> None:
        self.now = 0.0
        self.acts = True
        self.asked: list[str] = []
        self.news: list[StageKey] = []
        self.answer: Callable[[str], dict[str, Any]] = lambda path: {}
        self.cache = Cache()
        stage = {
            "kind": names.KIND,
            "metadata": {"name": "s", "namespace": "ns", "uid": "s", "resourceVersion": "1"},
        }
        self.cache.put(STAGE, stage)
        kube: Any = self
        pods: Any = self
        self.inquirer = Inquirer(
            kube,
            pods,
            self.cache,
            may_act=lambda: self.acts,
            on_news=self.news.extend,
            clock=lambda: self.now,
        )

    async def fetch(self, path: str, **_: Any) -> dict[str, Any]:
        self.asked.append(path)
        return self.answer(path)

    async def get(self, address: str, port: int, path: str) -> dict[str, Any]:
        self.asked.append(f"{address}:{port}{path}")
        return self.answer(path)

    def round(self, after_s: float = 0) -> None:
        self.now += after_s
        asyncio.run(self.inquirer.round())

    def said(self) -> Any:
        objects = self.cache.objects(StageKey("ns", "s"), Api())
        assert objects is not None
        return objects.said.get("uid-s-0-e0-0")


def event(at: str, reason: str, kind: str = "Warning") -> dict[str, Any]:
    return {"type": kind, "reason": reason, "note": f"{reason}!", "deprecatedLastTimestamp": at}


def test_the_events_of_a_pod_that_does_not_start_are_read_and_the_last_one_is_news_once() -> None:
    world = World()
    world.cache.put(POD, pod(WAITING))
    world.answer = lambda path: {
        "items": [event("2027-01-01T00:00:02Z", "FailedMount"), event("2027", "Scheduled")]
    }
    world.round()
    assert world.asked == []
    world.round(after_s=10)
    (path,) = world.asked
    assert path.startswith(
        "/apis/events.k8s.io/v1/namespaces/ns/events?fieldSelector=regarding.uid%3Duid-s-0-e0-0&limit="
    )
    assert world.said().event == PodEvent(is_warning=True, reason="FailedMount", note="FailedMount!")
    assert world.news == [("ns", "s")]
    world.round(after_s=10)
    assert world.news == [("ns", "s")]
    world.cache.put(POD, pod(RUNNING, version=2))
    assert world.said().event is None, "it is not about the pod as it is now"


@pytest.mark.parametrize("fault", [Trouble("away"), Refused("forbidden", code=403)])
def test_events_that_cannot_be_read_are_no_news_and_forbidden_ones_are_left_alone_for_long(
    fault: Exception,
) -> None:
    world = World()
    world.cache.put(POD, pod(WAITING))

    def fail(path: str) -> dict[str, Any]:
        raise fault

    world.answer = fail
    for _ in range(50):
        world.round(after_s=10)
    assert world.news == []
    assert len(world.asked) == 1 if isinstance(fault, Refused) else len(world.asked) > 5
    world.round(after_s=FORBIDDEN_S)
    world.round(after_s=60)
    assert len(world.asked) > 1


def test_a_pod_tells_its_facts_once_and_they_outlast_its_readiness() -> None:
    world = World()
    world.cache.put(POD, pod(READY))
    world.answer = lambda path: MODELS if path == "/v1/models" else {"progress": {"activity": "loading"}}
    world.round()
    world.round(after_s=1000)
    assert world.asked == ["10.0.0.7:9000/v1/models"]
    assert world.said().facts.capability.batches is True
    world.cache.put(POD, pod(RUNNING, version=2))
    world.round()
    world.round(after_s=5)
    assert world.said().facts is not None
    assert world.said().start.text() == "loading the model"
    world.cache.put(POD, pod(READY, version=3))
    assert world.said().start is None


def test_a_pod_that_gives_no_answer_or_no_facts_yet_is_asked_again() -> None:
    world = World()
    world.cache.put(POD, pod(READY))

    def fail(path: str) -> dict[str, Any]:
        raise Unreachable("10.0.0.7:9000: no answer within 3 s")

    world.answer = fail
    world.round()
    assert world.said().unreachable == "10.0.0.7:9000: no answer within 3 s"
    world.answer = lambda path: {"data": [{"capability": None}]}
    world.round(after_s=15)
    assert (world.said().unreachable, world.said().facts) == ("", None)
    world.answer = lambda path: MODELS
    world.round(after_s=30)
    assert world.said().facts is not None


def test_what_was_said_goes_with_its_pod() -> None:
    world = World()
    world.cache.put(POD, pod(READY))
    world.answer = lambda path: MODELS
    world.round()
    world.cache.drop(POD, pod(READY, version=2))
    assert world.said() is None
    late = pod(READY)
    assert world.cache.tell(late, Said(unreachable="x")) == frozenset()


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], None),
        ([{"reason": "A", "eventTime": "2027-01-01T00:00:01.5Z"}, event("2027-01-01T00:00:02Z", "B")], "B"),
        (
            [
                {"reason": "A", "series": {"lastObservedTime": "2027-01-01T00:00:03.000001Z"}},
                event("2027-01-01T00:00:02Z", "B"),
            ],
            "A",
        ),
        ([{"reason": "A", "metadata": {"creationTimestamp": "2027-01-01T00:00:03Z"}}, {"reason": "B"}], "A"),
        ([{"reason": None, "type": None}], "Unknown"),
    ],
)
def test_the_last_event_is_the_one_that_was_seen_last_whichever_field_says_so(
    events: list[dict[str, Any]], reason: str | None
) -> None:
    found = latest(events)
    assert (None if found is None else found.reason) == reason
