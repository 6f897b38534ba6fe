"""Where component calls go. The hub never calls a module itself: it submits calls to a target and polls for answers.

The in-process batcher answers within `poll`; a component in another process or pod answers when it can, and wakes who
waits. Nobody is waited for in particular: a call may stay unanswered over any number of ticks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from stage_runtime.scripts.script import Call

OnAnswer = Callable[[], None]
"""Ends somebody's sleep. Any thread; takes no lock."""


class Answer(NamedTuple):
    """What became of a call: a value, or the error to raise at it."""

    call: Call
    value: Any = None
    error: Exception | None = None


class Target(Protocol):
    """Takes calls and gives each one answer, in any order."""

    def submit(self, calls: Sequence[Call]) -> None:
        """Take calls. Those of one submission may be merged."""

    def poll(self, timeout_s: float | None = None) -> Sequence[Answer]:
        """Answers that are there, waiting at most `timeout_s` seconds for the first (None: until there is one)."""

    def wake_by(self, wake: OnAnswer) -> None:
        """Have `wake` called whenever there is something to poll that was not there at the last poll."""

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request; a call of it that is not answered yet needs no answer any more."""
