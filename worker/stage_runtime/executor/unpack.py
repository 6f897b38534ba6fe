"""Outputs out of shared memory, each the engine's own from then on."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress

from stage_runtime.core.error_codec import words_of
from stage_runtime.core.outcome import ExecutorOutcome, failed
from stage_runtime.executor.ledger import Delivery
from stage_runtime.ipc.codec import attach
from stage_runtime.ipc.messages import ShmRef
from stage_runtime.ipc.shm import Receiver

log = logging.getLogger(__name__)


def unpacked(delivery: Delivery, receiver: Receiver) -> ExecutorOutcome:
    """The outcome with its bytes. One whose bytes can't be had fails its request, and no other."""
    outcome = delivery.outcome
    if delivery.parcel is None:
        return outcome
    try:
        return attach(outcome, delivery.parcel, receiver.take)
    except Exception as error:  # noqa: BLE001 - whatever it is, the client gets its cause
        log.warning(
            "output can't be unpacked", extra={"request_id": outcome.request_id, "why": words_of(error)}
        )
        return failed(outcome.request_id, error, "the output can't be unpacked")


def drop(refs: Iterable[ShmRef], receiver: Receiver) -> None:
    """Free bytes that nobody wants."""
    for ref in refs:
        with suppress(Exception):  # what can't be freed is freed with its segment
            receiver.drop(ref)
