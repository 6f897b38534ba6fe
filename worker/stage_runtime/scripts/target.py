"""Where component calls go. The hub never calls a module itself: it submits calls to a target and polls for answers.

The in-process batcher is the one kind so far; a component in another pod is another, with the same two methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from stage_runtime.scripts.script import Call


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
        """Answers that are there, waiting at most `timeout_s` seconds (None: until there is one)."""

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request."""
