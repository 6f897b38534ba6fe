"""The boundary between policy and execution: what the scheduler decided to run next.

Source: vLLM-Omni's DiffusionSchedulerOutput. Executor and runner only carry it out.
"""

from __future__ import annotations

from msgspec import Struct

from stage_runtime.core.errors import InternalError
from stage_runtime.core.request import Request


class KvPrefetch(Struct, frozen=True):
    """Cached keys and values to fetch for a waiting request. Refused while no executor uses it."""

    request_id: str
    source: str


class NewRequest(Struct, frozen=True, kw_only=True):
    """The envelope of a request that enters the runner: sent whole once, by id from then on."""

    request: Request
    kv_metadata: dict[str, int] | None = None
    """Paged key/value metadata of this request. Refused while no executor uses it."""


class Wave(Struct, frozen=True, kw_only=True):
    """Requests that run together for one tick.

    A wave with nothing to run but with `finished_ids` is legal: it cleans up, so that nothing stays on the device
    when the engine goes idle.
    """

    wave_id: int
    new: tuple[NewRequest, ...] = ()
    cached_ids: tuple[str, ...] = ()
    """Requests whose state the runner holds."""
    finished_ids: tuple[str, ...] = ()
    """Requests that ended since the last wave; named once. The runner forgets them before it runs anything."""
    kv_prefetch: KvPrefetch | None = None

    @property
    def scheduled_ids(self) -> tuple[str, ...]:
        """Ids to run, new ones first."""
        return (*(envelope.request.request_id for envelope in self.new), *self.cached_ids)

    def refuse_kv(self) -> None:
        """For an executor that uses no key/value fields. Raises: InternalError where there are some."""
        if self.kv_prefetch is not None or any(envelope.kv_metadata is not None for envelope in self.new):
            raise InternalError("the wave carries key/value fields, which nothing here uses")

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to run and nothing to clean up."""
        return not (self.new or self.cached_ids or self.finished_ids or self.kv_prefetch)
