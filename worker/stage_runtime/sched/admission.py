"""Who may wait, and for how long a wave may be held back so that more can join it.

The line is bounded and counted in outputs. Every operation is O(1) however many wait.
Upholds: BATCH-INV-003.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Self

from msgspec import Struct

from stage_runtime.core.errors import AdmissionFull, InvalidRequest
from stage_runtime.sched.lifecycle import Record, Status


class Coalescing(Struct, frozen=True):
    """How long an idle scheduler may hold back a wave that isn't full. Seconds; the default holds nothing back.

    Source: vLLM-Omni's windows, but the wait counts from the arrival of the first waiter, so that one who
    has queued behind a long wave doesn't pay it again.
    """

    max_wait_s: float = 0.0
    longest_lull_s: float = 0.05
    lull_share: float = 0.2
    """The wave starts when nobody has arrived for min(longest_lull_s, max_wait_s × lull_share)."""

    @classmethod
    def data_parallel(cls, max_wait_s: float) -> Self:
        """The wider window for groups in which each data rank takes one request of the wave."""
        return cls(max_wait_s, longest_lull_s=0.3, lull_share=0.5)

    @property
    def lull_s(self) -> float:
        """Seconds without an arrival after which waiting longer isn't worth it."""
        return min(self.longest_lull_s, self.max_wait_s * self.lull_share)


class WaitingLine:
    """First come, first served: WAITING records, bounded, and PREEMPTED ones, which were admitted before.

    NB: an OrderedDict, since it removes from the front and from the middle in O(1). Popping the front of a plain
    dict walks over all the holes that earlier pops left.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Most outputs that may be WAITING at once."""
        self.waiting = 0
        """Outputs that are WAITING; preempted ones aren't counted."""
        self.latest_arrival_s = 0.0
        self._records: OrderedDict[str, Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def check_room(self, count: int) -> None:
        """Raises: AdmissionFull when `count` more outputs don't fit; InvalidRequest when they never will."""
        if count > self.limit:
            raise InvalidRequest(f"{count} outputs at once; this stage queues at most {self.limit}", "n")
        if self.waiting + count > self.limit:
            raise AdmissionFull(f"{self.waiting} outputs wait, {count} more pass the limit of {self.limit}")

    def join(self, records: Sequence[Record], now_s: float) -> None:
        """Append WAITING `records`, for which `check_room` found room."""
        self._records.update((record.request.request_id, record) for record in records)
        self.waiting += len(records)
        self.latest_arrival_s = now_s

    def rejoin(self, record: Record) -> None:
        """Append a PREEMPTED record: it gives way to all who wait now."""
        self._records[record.request.request_id] = record

    def first(self) -> Record | None:
        """Who is next; None when nobody waits."""
        return next(iter(self._records.values()), None)

    def leave(self, record: Record) -> None:
        """Take `record` out of the line; nothing happens when it isn't in it. Call before its status moves."""
        if self._records.pop(record.request.request_id, None) is not None and record.status is Status.WAITING:
            self.waiting -= 1
