"""How fast the device is, from what was measured, and what follows: when a tick hangs, when to come back.

Not thread-safe; its owner serialises the calls. Times in seconds, work in row-step-pixels.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from stage_runtime.core.request import BatchKey
from stage_runtime.sched.base import Snapshot

_WEIGHT: Final = 0.2  # of the newest tick in the running mean
_MAX_KEYS: Final = 256
_LONGEST_RETRY_S: Final = 600.0


@dataclass(slots=True)
class _Measured:
    """What was seen of one batch key."""

    longest_s: float = 0.0
    worst_rate: float = 0.0
    """Most seconds per row-step-pixel."""
    proven: bool = False
    """A request of this key has run to its end, so its slow ticks (encode, decode) have been seen too."""


class Pace:
    """Measured tick times, by batch key."""

    def __init__(self, *, startup_timeout_s: float, tolerance: float = 10.0, floor_s: float = 10.0) -> None:
        """`tolerance`: how many times the worst seen a tick may take. `floor_s`: what any tick may take."""
        self._startup_timeout_s = startup_timeout_s
        self._tolerance = tolerance
        self._floor_s = floor_s
        self._by_key: OrderedDict[BatchKey, _Measured] = OrderedDict()
        self._mean_rate: float | None = None
        self._longest_output_s: float | None = None

    def observe(self, key: BatchKey, pixels: int, elapsed_s: float, *, completed: bool) -> None:
        """A tick advanced requests of `pixels` in all by a step. `completed`: one of them ran to its end."""
        rate = elapsed_s / max(pixels, 1)
        if self._mean_rate is None:
            self._mean_rate = rate
        self._mean_rate += _WEIGHT * (rate - self._mean_rate)
        measured = self._by_key.setdefault(key, _Measured())
        self._by_key.move_to_end(key)
        if len(self._by_key) > _MAX_KEYS:
            self._by_key.popitem(last=False)
        measured.longest_s = max(measured.longest_s, elapsed_s)
        measured.worst_rate = max(measured.worst_rate, rate)
        measured.proven = measured.proven or completed

    def observe_output(self, elapsed_s: float) -> None:
        """The output of a computed request was on its way for `elapsed_s`."""
        self._longest_output_s = max(self._longest_output_s or 0.0, elapsed_s)

    @property
    def output_limit_s(self) -> float:
        """How long the output of a computed request may be on its way before it counts as lost."""
        if self._longest_output_s is None:
            return self._startup_timeout_s
        return max(self._floor_s, self._tolerance * self._longest_output_s)

    def limit_s(self, key: BatchKey | None, pixels: int) -> float:
        """How long a tick of this key and size may take before it counts as hung. Key None: nothing takes a slot."""
        measured = None if key is None else self._by_key.get(key)
        if measured is None or not measured.proven:
            return self._startup_timeout_s
        worst_s = max(measured.longest_s, measured.worst_rate * pixels)
        return max(self._floor_s, self._tolerance * worst_s)

    def expected_s(self, cost: int) -> float | None:
        """How long work of `cost` row-step-pixels takes; None before anything was measured."""
        return None if self._mean_rate is None else cost * self._mean_rate

    def retry_after_s(self, load: Snapshot, count: int) -> float:
        """When `count` of the outstanding outputs will be done, so that as many fit in again."""
        outputs = load.waiting + load.running + load.preempted + load.materialising
        clear_s = self.expected_s(load.outstanding_cost)
        if clear_s is None or outputs == 0:
            return 1.0
        return min(max(1.0, clear_s * count / outputs), _LONGEST_RETRY_S)
