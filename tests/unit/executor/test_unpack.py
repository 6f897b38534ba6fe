"""Outputs out of shared memory: whole, or their request's failure with the cause."""

from __future__ import annotations

from stage_runtime.core.outcome import Completed, Failed, Modality, Output
from stage_runtime.executor.ledger import Delivery
from stage_runtime.executor.unpack import unpacked
from stage_runtime.ipc.messages import Parcel, ShmRef
from stage_runtime.ipc.shm import Receiver

OUTPUT = Output(modality=Modality.IMAGE, data=b"", shape=(1, 1, 3), dtype="uint8")


def test_bytes_that_are_not_there_fail_their_request_and_say_what_could_not_be_done() -> None:
    receiver = Receiver()
    gone = Parcel("a", False, ShmRef("nothing-of-this-name", 0, 3))
    outcome = unpacked(Delivery(Completed("a", OUTPUT, 4), gone), receiver)
    receiver.close()
    assert isinstance(outcome, Failed)
    assert (outcome.request_id, outcome.status) == ("a", 500)
    assert outcome.message.startswith("the output can't be unpacked: ")
