"""The live requests: scheduler, mailboxes and pace behind one lock.

Any thread may call it, and it answers at once also while a long tick runs: it never touches the executor. It is
the one place that hands terminal events to consumers.

Upholds: DIFF-RUNTIME-INV-001, DIFF-RUNTIME-INV-003, DIFF-RUNTIME-INV-005.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition

from msgspec import Struct

from stage_runtime.core.errors import AdmissionFull, NotAdmitting, StageError
from stage_runtime.core.outcome import Completed, Computed, ExecutorOutcome, Failed, Outcome, Progressed
from stage_runtime.core.request import BatchKey, Request
from stage_runtime.core.wave import Wave
from stage_runtime.engine.base import Refusal
from stage_runtime.engine.failures import log_failure
from stage_runtime.engine.observer import Nobody, Observer
from stage_runtime.engine.pace import Pace
from stage_runtime.engine.streams import Mailbox, Stream
from stage_runtime.sched.base import BaseScheduler, Snapshot


class Turn(Struct, frozen=True):
    """What one tick is to do."""

    wave: Wave
    polls: bool
    """Something runs or materialises, so that outcomes may come."""
    key: BatchKey | None
    pixels: int
    """Row-pixels of the wave: its cost for one step each."""
    limit_s: float | None
    """How long nothing may move before it counts as a hang; None while paused."""
    patience_s: float | None
    """What is left of that now, in seconds."""


class RequestTable:
    """Owns the scheduler and one mailbox per live request."""

    def __init__(
        self, scheduler: BaseScheduler, pace: Pace, clock: Callable[[], float], wake: Callable[[], None]
    ) -> None:
        """`wake` gets the loop's attention: it takes no lock and may be called inside the garbage collector."""
        self._scheduler = scheduler
        self._pace = pace
        self._clock = clock
        self._wake = wake
        self._observer: Observer = Nobody()
        self._changed = Condition()
        """Guards everything here; told when the last request has gone."""
        self._mailboxes: dict[str, Mailbox] = {}
        self._admitted_s: dict[str, float] = {}
        """When each live request was admitted, but for warm-up: who is observed."""
        self._dropped: deque[Mailbox] = deque()
        """Mailboxes whose consumer was collected. NB: filled inside the garbage collector, so without the lock."""
        self._refusal: Refusal | None = lambda: NotAdmitting("the stage is starting")

    def observe(self, observer: Observer) -> None:
        with self._changed:
            self._observer = observer

    # Callers

    def admit(self, requests: Sequence[Request], *, warm_up: bool = False) -> list[Stream]:
        """Admit all or none, and give each request's stream. Warm-up requests pass while it is shut.

        Raises: AdmissionFull, InvalidRequest, or the error that `shut` set.
        """
        with self._changed:
            self._take_back_dropped()
            if self._refusal is not None and not warm_up:
                raise self._refusal()
            now_s = self._clock()
            try:
                self._scheduler.add(requests, now_s)
            except AdmissionFull as full:
                retry_after_s = self._pace.retry_after_s(self._scheduler.snapshot(now_s), len(requests))
                raise AdmissionFull(str(full), retry_after_s) from None
            mailboxes = [Mailbox(request) for request in requests]
            self._mailboxes.update((mailbox.request_id, mailbox) for mailbox in mailboxes)
            if not warm_up:
                self._admitted_s.update((mailbox.request_id, now_s) for mailbox in mailboxes)
        self._wake()
        return [Stream(mailbox, self) for mailbox in mailboxes]

    def abort(self, request_id: str) -> None:
        """End a request now. Unknown and ended ids are no error."""
        with self._changed:
            self._abort(request_id)
        self._wake()

    def take_back(self, mailbox: Mailbox) -> None:
        """End the request of this mailbox, and not one that came later under the same id."""
        with self._changed:
            if self._mailboxes.get(mailbox.request_id) is mailbox:
                self._abort(mailbox.request_id)
        self._wake()

    def note_dropped(self, mailbox: Mailbox) -> None:
        """A consumer was collected: its request ends at the next call of anybody."""
        if mailbox.terminal is None:
            self._dropped.append(mailbox)
            self._wake()

    def snapshot(self) -> Snapshot:
        """How busy the scheduler is, now."""
        with self._changed:
            self._take_back_dropped()
            return self._scheduler.snapshot(self._clock())

    def outstanding(self) -> dict[str, int]:
        """What is held for requests, by kind. All 0 at rest."""
        with self._changed:
            return {
                "records": self._scheduler.live,
                "streams": len(self._mailboxes),
                "untold": self._scheduler.untold,
            }

    # The loop

    def begin_turn(self, *, paused: bool = False) -> Turn:
        """Decide what runs next; while paused nothing does, but what is on its way may still come."""
        with self._changed:
            self._take_back_dropped()
            now_s = self._clock()
            wave = self._scheduler.clean_up() if paused else self._scheduler.schedule(now_s)
            for new in wave.new:
                if (admitted_s := self._admitted_s.get(new.request.request_id)) is not None:
                    self._observer.on_started(now_s - admitted_s)
            key, pixels = self._scheduler.running_key, self._scheduler.running_pixels
            if not self._scheduler.has_work:
                self._changed.notify_all()
            limit_s = None if paused else self._limit_s(key, pixels)
            return Turn(
                wave,
                polls=self._scheduler.running + self._scheduler.materialising > 0,
                key=key,
                pixels=pixels,
                limit_s=limit_s,
                patience_s=None if limit_s is None else self._patience_s(limit_s, now_s),
            )

    def end_turn(self, turn: Turn, outcomes: Sequence[ExecutorOutcome]) -> str | None:
        """Take in what a turn gave and tell the consumers. Returns what hangs, if anything does, in words."""
        with self._changed:
            now_s = self._clock()
            # One tick advances each request by about one step, in every mode.
            moved = {o.request_id for o in outcomes if self._scheduler.is_running(o.request_id)}
            if moved:
                elapsed_s = self._scheduler.still_s(now_s)
                if any(request_id in self._admitted_s for request_id in moved):
                    self._observer.on_wave(len(moved), 1, elapsed_s)
                if turn.key is not None:
                    ended = any(isinstance(outcome, Completed | Computed) for outcome in outcomes)
                    self._pace.observe(turn.key, turn.pixels, elapsed_s, completed=ended)
            for outcome in outcomes:
                since_s = self._scheduler.materialising_s(outcome.request_id, now_s)
                if isinstance(outcome, Completed) and since_s is not None:
                    self._pace.observe_output(since_s)
            for outcome in self._scheduler.update(outcomes, now_s):
                self._tell(outcome)
            return None if turn.limit_s is None else self._what_hangs(turn.limit_s, now_s)

    def note_moved(self) -> None:
        """Count stillness from now on: what runs was held back on purpose."""
        with self._changed:
            self._scheduler.note_moved(self._clock())

    def pause_s(self) -> float | None:
        """How long the loop may sleep unless it is woken, in seconds; None when nothing is to be done."""
        with self._changed:
            if not self._scheduler.has_work:
                return None
            now_s = self._clock()
            until_s = self._scheduler.hold_until(now_s)
            return 0.0 if until_s is None else max(0.0, until_s - now_s)

    # Life

    def open(self) -> None:
        """Admit requests from now on."""
        with self._changed:
            self._refusal = None

    def shut(self, refusal: Refusal) -> None:
        """Admit nothing from now on."""
        with self._changed:
            self._refusal = refusal

    def end_all(self, error: StageError, refusal: Refusal) -> None:
        """Shut, end every live request with `error`, and forget what the runner still had to be told."""
        with self._changed:
            self._refusal = refusal
            ended = self._scheduler.fail_all(error, self._clock())
            self._scheduler.close()
            for outcome in ended:
                self._tell(outcome)
            self._changed.notify_all()

    def wait_empty(self, patience_s: float) -> bool:
        """Wait until every request has ended and the runner has forgotten it. False when that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._scheduler.has_work, patience_s)

    # How

    def _take_back_dropped(self) -> None:
        while self._dropped:
            mailbox = self._dropped.popleft()
            if self._mailboxes.get(mailbox.request_id) is mailbox:
                self._abort(mailbox.request_id)

    def _limit_s(self, key: BatchKey | None, pixels: int) -> float:
        """How long nothing may move; where all is computed, how long outputs may be on their way."""
        return self._pace.output_limit_s if key is None else self._pace.limit_s(key, pixels)

    def _patience_s(self, limit_s: float, now_s: float) -> float:
        """How much longer may pass before something counts as a hang."""
        patience_s = limit_s - self._scheduler.still_s(now_s)
        late = self._scheduler.longest_materialising(now_s)
        return patience_s if late is None else min(patience_s, self._pace.output_limit_s - late[1])

    def _what_hangs(self, limit_s: float, now_s: float) -> str | None:
        still_s = self._scheduler.still_s(now_s)
        if still_s > limit_s:
            return f"nothing has moved for {still_s:.1f} s; expected within {limit_s:.1f} s"
        late = self._scheduler.longest_materialising(now_s)
        if late is not None and late[1] > (output_limit_s := self._pace.output_limit_s):
            request_id, since_s = late
            return (
                f"the output of request {request_id} has been on its way for {since_s:.1f} s; "
                f"expected within {output_limit_s:.1f} s"
            )
        return None

    def _abort(self, request_id: str) -> None:
        aborted = self._scheduler.abort(request_id, self._clock())
        if aborted is not None:
            self._tell(aborted)

    def _tell(self, outcome: Outcome) -> None:
        """Hand an outcome to its consumer; after a terminal one nothing is kept here."""
        if isinstance(outcome, Progressed):
            if (mailbox := self._mailboxes.get(outcome.request_id)) is not None:
                mailbox.put(outcome)
            return
        if (admitted_s := self._admitted_s.pop(outcome.request_id, None)) is not None:
            self._observer.on_ended(outcome, self._clock() - admitted_s)
        if (mailbox := self._mailboxes.pop(outcome.request_id, None)) is not None:
            if isinstance(outcome, Failed):
                log_failure(mailbox.request, outcome)
            mailbox.put(outcome)
        if not self._scheduler.has_work:
            self._changed.notify_all()
