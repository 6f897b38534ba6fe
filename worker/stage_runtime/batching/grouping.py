"""Group what fits, run each group in one go, and have those of a group that failed run one by one.

The one place of that rule, for the component calls of pipelines and for the methods of step models: one request's
fault never fails its neighbours.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from typing import Any, Final, Protocol, TypeVar

from stage_runtime.core.error_codec import contained, words_of

log = logging.getLogger(__name__)

ALONE: Final = object()
"""The key of what fits nothing else."""

A = TypeVar("A")
B = TypeVar("B")
A_contra = TypeVar("A_contra", contravariant=True)
B_co = TypeVar("B_co", covariant=True)


class Group(Protocol[A_contra, B_co]):
    """How the members of one kind of work run."""

    def key(self, item: A_contra) -> Hashable:
        """Items with equal keys may run together; `ALONE` runs by itself. What it raises is that item's answer."""

    def together(self, items: Sequence[A_contra]) -> Sequence[B_co]:
        """An answer each, in their order; `items` are at least two. Raises: what the model does."""

    def alone(self, item: A_contra) -> B_co:
        """The answer to one. Raises: what the model does."""

    def failed(self, items: Sequence[A_contra], error: Exception) -> None:
        """`items` ended with `error`. Raises DeviceLost when the device itself is gone."""

    def agreed(self, items: Sequence[A_contra], failed: bool) -> bool:
        """True when a joint run counts as failed: wherever several ranks make it, they decide together."""


def run_grouped(items: Sequence[A], group: Group[A, B]) -> list[B | Exception]:
    """An answer or an error for each of `items`, in their order.

    Groups run in the order in which the first item of each stands: by order and never by the clock, so that ranks
    with equal items make equal calls.
    """
    if len(items) == 1:
        return [_alone(items[0], group)]
    answers: list[Any] = [None] * len(items)
    groups: dict[Hashable, list[int]] = {}
    for place, item in enumerate(items):
        try:
            key = group.key(item)
            groups.setdefault((ALONE, place) if key is ALONE else key, []).append(place)
        except BaseException as error:  # noqa: BLE001 - it is that item's end, and no other's
            answers[place] = _failed([item], error, group)
    for places in groups.values():
        members = [items[place] for place in places]
        for place, answer in zip(places, _run_group(members, group), strict=True):
            answers[place] = answer
    return answers


def _run_group(members: Sequence[A], group: Group[A, B]) -> Sequence[B | Exception]:
    return [_alone(members[0], group)] if len(members) == 1 else _together(members, group)


def _together(members: Sequence[A], group: Group[A, B]) -> Sequence[B | Exception]:
    answers: Sequence[B] = ()
    why = "another rank could not do it"
    try:
        answers = group.together(members)
        failed = False
    except BaseException as error:  # noqa: BLE001 - whatever a model raises, its neighbours go on
        failed, why = True, words_of(_failed(members, error, group))[:200]
    if not group.agreed(members, failed):
        return answers
    log.warning("a joint call failed; its members run alone", extra={"why": why})
    return [_alone(member, group) for member in members]


def _alone(item: A, group: Group[A, B]) -> B | Exception:
    try:
        return group.alone(item)
    except BaseException as error:  # noqa: BLE001 - raised again inside the request
        return _failed([item], error, group)


def _failed(items: Sequence[A], error: BaseException, group: Group[A, B]) -> Exception:
    what = contained(error)
    group.failed(items, what)
    return what
