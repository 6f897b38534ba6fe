"""Who runs what: places each request on one copy of the model, and says when a copy gets its next command.

Pure bookkeeping of what the scheduler decided: a copy that is still busy keeps what it has, and is named again once it
is idle. It admits nothing and reorders nothing (DIFF-RUNTIME-INV-002).
"""

from __future__ import annotations

from collections.abc import Iterable

from stage_runtime.core.errors import InternalError
from stage_runtime.core.wave import NewRequest, Wave
from stage_runtime.ipc.messages import Run


class Dispatch:
    """The requests on each copy of the model (index on the data axis), and which copies are idle."""

    def __init__(self, copies: int) -> None:
        self._places: dict[str, int] = {}
        self._entering: dict[str, NewRequest] = {}
        """Requests that their copy hasn't been told of, since it was busy."""
        self._load = [0] * copies
        """Requests on each copy that take a slot."""
        self._computed: set[str] = set()
        self._busy: set[int] = set()

    def plan(self, wave: Wave) -> Run | None:
        """The command that carries out a wave as far as copies are idle; None when there is nothing to say.

        Raises: InternalError for an id that was never placed, and for KV fields.
        """
        wave.refuse_kv()
        self.forget(wave.finished_ids)
        for envelope in wave.new:
            self._place(envelope)
        ids = [i for i in wave.scheduled_ids if self._place_of(i) not in self._busy]
        new = tuple(self._entering.pop(i) for i in ids if i in self._entering)
        entering = {envelope.request.request_id for envelope in new}
        self._busy.update(self._places[i] for i in ids)
        if not (ids or wave.finished_ids):
            return None
        return Run(
            wave=Wave(
                wave_id=wave.wave_id,
                new=new,
                cached_ids=tuple(i for i in ids if i not in entering),
                finished_ids=wave.finished_ids,
            ),
            places={i: self._places[i] for i in entering},
        )

    def place_of(self, request_id: str) -> int | None:
        """The copy that a request runs on; None for one that isn't here."""
        return self._places.get(request_id)

    def idle(self, copy: int) -> None:
        """A copy waits for its next command."""
        self._busy.discard(copy)

    @property
    def busy(self) -> set[int]:
        """The copies that are at work, and look at their channel only after their tick."""
        return set(self._busy)

    def computed(self, request_id: str) -> None:
        """A request takes no slot any more."""
        if request_id in self._places and request_id not in self._computed:
            self._computed.add(request_id)
            self._load[self._places[request_id]] -= 1

    def forget(self, request_ids: Iterable[str]) -> None:
        """These ended. Unknown ids are no error."""
        for request_id in request_ids:
            self.computed(request_id)
            self._computed.discard(request_id)
            self._places.pop(request_id, None)
            self._entering.pop(request_id, None)

    @property
    def placed(self) -> int:
        """Requests that are here. 0 at rest."""
        return len(self._places)

    def _place(self, envelope: NewRequest) -> None:
        """On the copy with the fewest requests, the first of several."""
        request_id = envelope.request.request_id
        if request_id in self._places:
            raise InternalError(f"request {request_id} is new, but runs already")
        copy = min(range(len(self._load)), key=self._load.__getitem__)
        self._places[request_id] = copy
        self._entering[request_id] = envelope
        self._load[copy] += 1

    def _place_of(self, request_id: str) -> int:
        try:
            return self._places[request_id]
        except KeyError:
            raise InternalError(f"request {request_id} is scheduled, but was never sent") from None
