"""What is asked about a pod beside its object, and when: each pod seldom, and the less the longer it stays as it is.

Pure, with the clock passed in. The answers are told to people; nothing about life and death is decided by them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from stage_api import names
from stage_operator.values import Manifest, Said


class Question(Enum):
    """Something that a pod's own object doesn't say."""

    STUCK = "why nothing of it starts"  # the cluster's events say
    START = "what its start is doing"  # the pod says
    FACTS = "what it can do"  # the pod says, once it is ready


@dataclass(frozen=True, slots=True)
class Pace:
    """After how long a question is asked, and asked again. Seconds."""

    first_s: float
    again_s: float
    longest_s: float
    """Each wait is twice the one before, up to this."""


PACES: Final = {
    # What passes by itself, such as a volume that is being attached, mostly does so before the first look.
    Question.STUCK: Pace(first_s=10, again_s=10, longest_s=60),
    Question.START: Pace(first_s=5, again_s=15, longest_s=15),
    # Once it is answered it isn't asked again.
    Question.FACTS: Pace(first_s=0, again_s=15, longest_s=300),
}


def question(pod: Manifest) -> Question | None:
    """What there is to ask about a pod as it is now."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    if metadata.get("deletionTimestamp") or status.get("phase") in ("Failed", "Succeeded"):
        return None
    if not (pod.get("spec") or {}).get("nodeName"):
        return None  # the scheduler's own condition says why
    if not any(_has_started(one) for one in _own(status)):
        return Question.STUCK
    if (metadata.get("labels") or {}).get(names.LABEL_RANK0) != "true" or not status.get("podIP"):
        return None
    ready = any(
        one.get("type") == "Ready" and one.get("status") == "True" for one in _list(status, "conditions")
    )
    return Question.FACTS if ready else Question.START


def still_true(said: Said, pod: Manifest) -> Said:
    """What was said of a pod, as far as it is about the pod as it is now."""
    what = question(pod)
    return replace(
        said,
        event=said.event if what is Question.STUCK else None,
        start=said.start if what is Question.START else None,
        unreachable=said.unreachable if what is Question.FACTS and said.facts is None else "",
    )


def port(pod: Manifest) -> int:
    """Where a pod answers over HTTP."""
    for container in _list(pod.get("spec") or {}, "containers"):
        for one in _list(container, "ports"):
            if one.get("name") == names.PORT_NAME:
                return int(one["containerPort"])
    return names.HTTP_PORT


@dataclass(slots=True)
class _Pod:
    """What is known of a pod, and what there is to ask about it."""

    version: str
    question: Question | None
    due: float = 0.0
    wait_s: float = 0.0
    told: bool = False
    """Its facts."""


class Schedule:
    """When which pod is asked what."""

    def __init__(self) -> None:
        self._pods: dict[str, _Pod] = {}

    def due(self, pods: Iterable[Manifest], now: float, most: int) -> list[tuple[Question, Manifest]]:
        """The questions whose time has come, the one that has waited longest first. Pods that are gone are forgotten.

        `pods`: all that there are.
        """
        found: list[tuple[float, Question, Manifest]] = []
        there: dict[str, _Pod] = {}
        for pod in pods:
            metadata = pod["metadata"]
            entry = there[metadata["uid"]] = self._met(pod, metadata, now)
            if entry.question is not None and entry.due <= now:
                found.append((entry.due, entry.question, pod))
        self._pods = there
        found.sort(key=lambda one: one[0])
        return [(what, pod) for _, what, pod in found[:most]]

    def asked(self, pod: Manifest, what: Question, now: float, *, answered: bool) -> None:
        """A question was asked just now."""
        entry = self._pods.get(pod["metadata"]["uid"])
        if entry is None:
            return
        if answered and what is Question.FACTS:
            entry.told = True
        if entry.question is what:
            entry.due, entry.wait_s = now + entry.wait_s, min(2 * entry.wait_s, PACES[what].longest_s)
            entry.question = None if entry.told and what is Question.FACTS else what

    def _met(self, pod: Manifest, metadata: Manifest, now: float) -> _Pod:
        version, entry = metadata["resourceVersion"], self._pods.get(metadata["uid"])
        if entry is not None and entry.version == version:
            return entry  # nearly all of them, at each look
        what = question(pod)
        if entry is None:
            entry = _Pod(version, None)
        if entry.told and what is Question.FACTS:
            what = None
        if what is not None and entry.question is not what:
            entry.due, entry.wait_s = now + PACES[what].first_s, PACES[what].again_s
        entry.version, entry.question = version, what
        return entry


def _own(status: Manifest) -> Iterable[Manifest]:
    for key, name in (
        ("containerStatuses", names.CONTAINER),
        ("initContainerStatuses", names.FETCH_CONTAINER),
    ):
        yield from (one for one in _list(status, key) if one.get("name") == name)


def _has_started(container: Manifest) -> bool:
    state = container.get("state") or {}
    return "running" in state or "terminated" in state


def _list(value: Manifest, name: str) -> list[dict[str, Any]]:
    return list(value.get(name) or ())
