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
class _Asked:
    question: Question
    due: float
    wait_s: float


class Schedule:
    """When which pod is asked what."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}
        self._answered: dict[str, Question] = {}

    def due(self, pods: Iterable[Manifest], now: float, most: int) -> list[tuple[Question, Manifest]]:
        """The questions whose time has come, the one that has waited longest first. Pods that are gone are forgotten.

        `pods`: all that there are.
        """
        found: list[tuple[float, Question, Manifest]] = []
        there: set[str] = set()
        for pod in pods:
            uid = str(pod["metadata"].get("uid"))
            there.add(uid)
            asked = self._of(uid, question(pod), now)
            if asked is not None and asked.due <= now:
                found.append((asked.due, asked.question, pod))
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in there}
        self._answered = {uid: last for uid, last in self._answered.items() if uid in there}
        return [(what, pod) for _, what, pod in sorted(found, key=lambda one: one[0])[:most]]

    def asked(self, pod: Manifest, what: Question, now: float, *, answered: bool) -> None:
        """A question was asked just now."""
        uid = str(pod["metadata"].get("uid"))
        if answered and what is Question.FACTS:
            self._answered[uid] = what
        entry = self._asked.get(uid)
        if entry is not None and entry.question is what:
            entry.due, entry.wait_s = now + entry.wait_s, min(2 * entry.wait_s, PACES[what].longest_s)

    def _of(self, uid: str, what: Question | None, now: float) -> _Asked | None:
        if what is None or self._answered.get(uid) is what:
            self._asked.pop(uid, None)
            return None
        entry = self._asked.get(uid)
        if entry is None or entry.question is not what:
            pace = PACES[what]
            entry = self._asked[uid] = _Asked(what, now + pace.first_s, pace.again_s)
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
