"""What has been said about each request: splits replies, pairs the halves of asynchronous outputs, drops late ones.

A request's device work ends with `Computed`, its output comes as `OutputReady`, and either may be first. What
comes for a request that has been dropped, or under the id of an earlier one, is dropped too, and its bytes are freed.
Pure: it decides with values, and copies nothing.

Upholds: DIFF-RUNTIME-INV-003, DIFF-RUNTIME-INV-005.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import Struct

from stage_runtime.core.errors import InternalError
from stage_runtime.core.outcome import Completed, Computed, ExecutorOutcome, Failed, Progressed
from stage_runtime.ipc.messages import OutputReady, Parcel, ShmRef, Ticked


class Delivery(Struct, frozen=True):
    """An outcome to tell, and where its bytes are when they are not in it."""

    outcome: ExecutorOutcome
    parcel: Parcel | None = None


class ReplyContent(Struct, frozen=True):
    """What follows from a reply."""

    deliveries: tuple[Delivery, ...] = ()
    dropped: tuple[ShmRef, ...] = ()
    """Bytes that nobody wants."""


@dataclass(slots=True)
class _Entry:
    wave_id: int
    """Of the command with which the request entered."""
    computed: bool = False
    ready: Delivery | None = None
    """An output that overtook its `Computed`."""
    ended: bool = False


class BadReply(InternalError):
    """A rank said what it can't: the group is not to be trusted any more."""


class Ledger:
    """The requests that ranks know, each from its entry until it is forgotten. Empty at rest."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def enter(self, request_ids: Iterable[str], wave_id: int) -> None:
        """These go to their ranks with this wave."""
        for request_id in request_ids:
            self._entries[request_id] = _Entry(wave_id)

    def forget(self, request_ids: Iterable[str]) -> tuple[ShmRef, ...]:
        """These ended, or nobody wants them. Returns bytes that are to be freed. Unknown ids are no error."""
        entries = [self._entries.pop(request_id, None) for request_id in request_ids]
        return tuple(
            entry.ready.parcel.ref for entry in entries if entry and entry.ready and entry.ready.parcel
        )

    def ticked(self, reply: Ticked) -> ReplyContent:
        """The outcomes of a tick, for those who still want them. Raises: BadReply."""
        parcels = {(parcel.request_id, parcel.preview): parcel for parcel in reply.parcels}
        deliveries: list[Delivery] = []
        for outcome in reply.outcomes:
            entry = self._entries.get(outcome.request_id)
            if entry is None or entry.wave_id > reply.wave_id or entry.ended:
                continue
            parcel = parcels.pop((outcome.request_id, isinstance(outcome, Progressed)), None)
            deliveries += self._tick(entry, outcome, parcel)
        return ReplyContent(tuple(deliveries), tuple(parcel.ref for parcel in parcels.values()))

    def ready(self, reply: OutputReady) -> ReplyContent:
        """An output that was on its way. Raises: BadReply."""
        outcome = reply.outcome
        if not isinstance(outcome, Completed | Failed):
            raise BadReply(f"rank {reply.rank} sent a {type(outcome).__name__} as an output")
        entry = self._entries.get(outcome.request_id)
        if entry is None or entry.wave_id != reply.wave_id or entry.ended:
            return ReplyContent(dropped=(reply.parcel.ref,) if reply.parcel is not None else ())
        if entry.ready is not None:
            raise BadReply(f"rank {reply.rank} sent the output of request {outcome.request_id} twice")
        delivery = Delivery(outcome, reply.parcel)
        if not entry.computed:
            entry.ready = delivery
            return ReplyContent()
        entry.ended = True
        return ReplyContent((delivery,))

    def _tick(self, entry: _Entry, outcome: ExecutorOutcome, parcel: Parcel | None) -> list[Delivery]:
        if entry.computed:
            raise BadReply(f"request {outcome.request_id} is computed, but a rank works on it")
        if not isinstance(outcome, Computed):
            entry.ended = not isinstance(outcome, Progressed)
            return [Delivery(outcome, parcel)]
        entry.computed = True
        said = [Delivery(outcome)]
        if entry.ready is not None:
            said.append(entry.ready)
            entry.ready, entry.ended = None, True
        return said
