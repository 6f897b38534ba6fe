"""A runner without a model whose requests named late… are answered from another thread, step by step."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from stage_runtime.core.outcome import ExecutorOutcome
from support.light_runner import LightRunner


class LateRunner(LightRunner):
    """What is late moves with the tick after its answer came; others move with each tick."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._asked: set[str] = set()
        self._answered: set[str] = set()
        self._left_waiting = False
        self._wake: Any = lambda: None

    @property
    def waits(self) -> bool:
        """True when the last tick left one where it was."""
        return self._left_waiting

    def wake_by(self, wake: Any) -> None:
        """By the answering thread."""
        self._wake = wake

    def tick(self, request_ids: Sequence[str]) -> list[ExecutorOutcome]:
        """One step each, of those that can."""
        ready = [name for name in request_ids if not name.startswith("late") or name in self._answered]
        for name in set(request_ids) - set(ready) - self._asked:
            self._asked.add(name)
            threading.Thread(target=self._answer, args=(name,), daemon=True).start()
        self._left_waiting = len(ready) < len(request_ids)
        self._answered -= set(ready)
        return super().tick(ready)

    def _answer(self, name: str) -> None:
        self._asked.discard(name)
        self._answered.add(name)
        self._wake()
