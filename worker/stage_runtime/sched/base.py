"""The scheduler: single owner of every request's lifecycle, from admission to its one terminal event.

Knows no tensors, processes or pipelines, and has no clock: `now_s` comes in, in seconds of one monotonic clock.
Not thread-safe; its owner serialises the calls. No operation grows with the number of waiting requests, apart from
`fail_all`. A wave's KV fields are never set: no executor uses them, and executors refuse them.

Upholds: DIFF-RUNTIME-INV-001, DIFF-RUNTIME-INV-003, DIFF-RUNTIME-INV-005, BATCH-INV-001, BATCH-INV-003, BATCH-INV-004.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from stage_runtime.core.errors import InternalError, InvalidRequest
from stage_runtime.core.outcome import (
    Aborted,
    Completed,
    Computed,
    ExecutorOutcome,
    Failed,
    Outcome,
    Progressed,
    failed,
)
from stage_runtime.core.request import BatchKey, Request
from stage_runtime.core.wave import NewRequest, Wave
from stage_runtime.sched.admission import Coalescing, WaitingLine
from stage_runtime.sched.lifecycle import Record, Status, advance

_NO_COALESCING: Final = Coalescing()


class Snapshot(Struct, frozen=True, kw_only=True):
    """How busy the scheduler is, at one moment."""

    waiting: int = 0
    running: int = 0
    """Requests that take a slot."""
    preempted: int = 0
    materialising: int = 0
    live: int = 0
    """Requests without a terminal event so far."""
    untold: int = 0
    """Ended requests that the runner still has to forget."""
    oldest_age_s: float = 0.0
    """Seconds since the head of the line arrived; 0 when nobody waits."""
    outstanding_cost: int = 0
    """Row-step-pixels still to compute, of all live requests."""
    blocked_slots: int = 0
    """Slots that stayed empty at the last schedule because the head of the line has another batch key."""
    capacity: int = 0
    queue_limit: int = 0


class BaseScheduler(ABC):
    """First come, first served, with one batch key running at a time. A mode says when late ones may join."""

    def __init__(
        self, *, max_num_seqs: int = 1, max_queue_size: int = 64, coalescing: Coalescing = _NO_COALESCING
    ) -> None:
        """`max_num_seqs`: slots. `max_queue_size`: most outputs that may wait for one."""
        if max_num_seqs < 1 or max_queue_size < 1:
            raise InternalError(
                f"max_num_seqs={max_num_seqs}, max_queue_size={max_queue_size}: expected 1 or more"
            )
        self._capacity = max_num_seqs
        self._coalescing = coalescing
        self._line = WaitingLine(max_queue_size)
        self._records: dict[str, Record] = {}
        self._running: dict[str, Record] = {}
        self._materialising: dict[str, Record] = {}
        self._untold: dict[str, None] = {}
        """Ids that ended after they ran and that the runner hasn't been told yet, in order."""
        self._outstanding_cost = 0
        self._blocked_slots = 0
        self._moved_s = 0.0
        self._last_wave_id = 0

    @abstractmethod
    def _lets_join(self) -> bool:
        """May requests enter the running set now?"""

    # What callers do

    def add(self, requests: Sequence[Request], now_s: float) -> None:
        """Admit all of `requests`, or none.

        Raises: AdmissionFull when the line has no room for all of them; InvalidRequest when an id is taken, also by
        a request that ended but that the runner still has to forget.
        """
        ids = {request.request_id for request in requests}
        taken = [i for i in ids if i in self._records or i in self._untold]
        if taken or len(ids) < len(requests):
            raise InvalidRequest(f"request id in use: {', '.join(sorted(taken or ids))}", "request_id")
        self._line.check_room(len(requests))
        records = [Record(request, now_s) for request in requests]
        self._line.join(records, now_s)
        for record in records:
            self._records[record.request.request_id] = record
            self._outstanding_cost += record.cost_left

    def abort(self, request_id: str, now_s: float) -> Aborted | None:
        """End a live request at once, whatever its state. None when there is none with this id."""
        record = self._records.get(request_id)
        if record is None:
            return None
        self._end(record, Status.FINISHED_ABORTED)
        return Aborted(request_id)

    def preempt(self, request_id: str) -> None:
        """Take a running request off its slot and put it at the end of the line. The runner keeps its state.

        Raises: InternalError when it isn't running on a slot. The engine's loop doesn't call this.
        """
        record = self._running.get(request_id)
        if record is None:
            raise InternalError(f"request {request_id} takes no slot: it can't be preempted")
        advance(record, Status.PREEMPTED)
        del self._running[request_id]
        self._line.rejoin(record)

    def materialise(self, request_id: str, now_s: float) -> None:
        """Free the slot of a request that is computed while its output is on its way. Unknown ids are no error."""
        record = self._records.get(request_id)
        if record is None or record.materialising or record.first_scheduled_s is None:
            return
        if record.status is Status.PREEMPTED:  # its last step was under way when it was preempted
            self._line.leave(record)
            advance(record, Status.RUNNING)
        self._running.pop(request_id, None)
        self._move_on(record, record.request.steps)
        record.materialising, record.computed_s = True, now_s
        self._materialising[request_id] = record

    def fail_all(self, error: Exception, now_s: float) -> list[Failed]:
        """End every live request with `error`: the group died, or is closed."""
        outcomes = []
        for request_id, record in list(self._records.items()):
            self._end(record, Status.FINISHED_ERROR)
            outcomes.append(failed(request_id, error))
        return outcomes

    def close(self) -> None:
        """Forget the ended requests too: the runner that should have been told is going away."""
        self._untold.clear()

    # What the loop does

    @property
    def has_work(self) -> bool:
        """Is there anything to run, to wait for, or to tell the runner?"""
        return bool(self._records or self._untold)

    def hold_until(self, now_s: float) -> float | None:
        """Until when the next wave is held back, if nobody arrives; None when it isn't."""
        window = self._coalescing
        first = self._line.first()
        if window.max_wait_s <= 0 or self._capacity == 1 or self._running or first is None:
            return None
        head = list(islice(self._line, self._capacity))
        # Full, or it can't grow: nobody overtakes the first one with another key.
        if len(head) == self._capacity or any(r.request.key != first.request.key for r in head):
            return None
        until = min(self._line.latest_arrival_s + window.lull_s, first.arrival_s + window.max_wait_s)
        return until if until > now_s else None

    def schedule(self, now_s: float) -> Wave:
        """What to run next. An empty wave means: nothing to do.

        The ids that ended since the last call are in `finished_ids`, and are named once only.
        """
        cached = list(self._running)
        new: list[NewRequest] = []
        self._blocked_slots = 0
        if self._lets_join() and self.hold_until(now_s) is None:
            for record in self._fill_slots(now_s):
                if record.first_scheduled_s is None:
                    record.first_scheduled_s = now_s
                    new.append(NewRequest(request=record.request))
                else:
                    cached.append(record.request.request_id)
        return self._wave(tuple(new), tuple(cached))

    def clean_up(self) -> Wave:
        """A wave that runs nothing: it only names the ids that ended. What a paused engine may send."""
        return self._wave((), ())

    def update(self, outcomes: Iterable[ExecutorOutcome], now_s: float) -> list[Outcome]:
        """Take in what became of requests, by id, and return what consumers are to be told.

        A scheduled request without an outcome did not move, and stays. An outcome of a request that is gone is
        dropped: its consumer has had its terminal event. That a request is computed is told to nobody.
        """
        told: list[Outcome] = []
        for outcome in outcomes:
            record = self._records.get(outcome.request_id)
            if record is None or record.first_scheduled_s is None:
                continue
            self._moved_s = now_s
            match outcome:
                case Progressed(step=step):
                    self._move_on(record, step)
                case Computed():
                    self.materialise(outcome.request_id, now_s)
                    continue
                case Completed():
                    self._end(record, Status.FINISHED_COMPLETED)
                case Aborted():
                    self._end(record, Status.FINISHED_ABORTED)
                case Failed():
                    self._end(record, Status.FINISHED_ERROR)
            told.append(outcome)
        return told

    # What observers see

    @property
    def running_key(self) -> BatchKey | None:
        """The key that all running requests share; None when nothing runs."""
        return next((record.request.key for record in self._running.values()), None)

    @property
    def running_pixels(self) -> int:
        """Pixels of all requests that take a slot: the cost of advancing each by one step."""
        return sum(record.request.pixels for record in self._running.values())

    @property
    def untold(self) -> int:
        """Ended requests that the runner still has to forget."""
        return len(self._untold)

    @property
    def live(self) -> int:
        """Requests without a terminal event so far."""
        return len(self._records)

    @property
    def materialising(self) -> int:
        """Requests that are computed and whose output is on its way."""
        return len(self._materialising)

    @property
    def running(self) -> int:
        """Requests that take a slot."""
        return len(self._running)

    def is_running(self, request_id: str) -> bool:
        """True for a request that takes a slot."""
        return request_id in self._running

    def still_s(self, now_s: float) -> float:
        """Seconds since any running request last moved; 0 when none runs."""
        return now_s - self._moved_s if self._running else 0.0

    def note_moved(self, now_s: float) -> None:
        """Count stillness from now on: what runs was held back on purpose."""
        self._moved_s = now_s
        for record in self._materialising.values():
            record.computed_s = now_s

    def materialising_s(self, request_id: str, now_s: float) -> float | None:
        """For how many seconds a computed request's output has been on its way; None when it isn't."""
        record = self._materialising.get(request_id)
        return None if record is None else now_s - record.computed_s

    def longest_materialising(self, now_s: float) -> tuple[str, float] | None:
        """The request whose output has been on its way for longest, and for how many seconds."""
        record = next(iter(self._materialising.values()), None)
        return None if record is None else (record.request.request_id, now_s - record.computed_s)

    def snapshot(self, now_s: float) -> Snapshot:
        """How busy it is."""
        first = self._line.first()
        return Snapshot(
            waiting=self._line.waiting,
            running=len(self._running),
            preempted=len(self._line) - self._line.waiting,
            materialising=len(self._materialising),
            live=self.live,
            untold=self.untold,
            oldest_age_s=now_s - first.arrival_s if first else 0.0,
            outstanding_cost=self._outstanding_cost,
            blocked_slots=self._blocked_slots,
            capacity=self._capacity,
            queue_limit=self._line.limit,
        )

    # How

    def _fill_slots(self, now_s: float) -> list[Record]:
        """Move the head of the line onto free slots, and stop at the first one with another key."""
        joined: list[Record] = []
        key = self.running_key
        while len(self._running) < self._capacity and (record := self._line.first()) is not None:
            if key is not None and record.request.key != key:
                self._blocked_slots = self._capacity - len(self._running)
                break
            if not self._running:
                self._moved_s = now_s
            key = record.request.key
            self._line.leave(record)
            advance(record, Status.RUNNING)
            self._running[record.request.request_id] = record
            joined.append(record)
        return joined

    def _wave(self, new: tuple[NewRequest, ...], cached: tuple[str, ...]) -> Wave:
        """The next wave, with the ids that ended since the last one."""
        wave = Wave(
            wave_id=self._last_wave_id + 1,
            new=new,
            cached_ids=cached,
            finished_ids=tuple(self._untold),
        )
        self._untold.clear()
        if not wave.is_empty:
            self._last_wave_id = wave.wave_id
        return wave

    def _move_on(self, record: Record, step: int) -> None:
        """Count progress. Steps never run backwards, nor past what was asked for."""
        before = record.cost_left
        record.steps_done = min(max(step, record.steps_done), record.request.steps)
        self._outstanding_cost -= before - record.cost_left

    def _end(self, record: Record, status: Status) -> None:
        """The one way out: into `status`, off every list, and into `finished_ids` when a runner knows it."""
        request_id = record.request.request_id
        self._line.leave(record)
        if record.status is Status.PREEMPTED and status is Status.FINISHED_COMPLETED:
            advance(record, Status.RUNNING)  # its last step was under way when it was preempted
        advance(record, status)
        self._running.pop(request_id, None)
        self._materialising.pop(request_id, None)
        del self._records[request_id]
        self._outstanding_cost -= record.cost_left
        if record.first_scheduled_s is not None:
            self._untold[request_id] = None
