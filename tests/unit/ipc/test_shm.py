"""Bytes cross shared memory whole, blocks are used again, and no name is left."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from stage_runtime.core.errors import OutOfMemory
from stage_runtime.ipc.codec import BadMessage
from stage_runtime.ipc.messages import ShmRef
from stage_runtime.ipc.shm import FOLDER, HEADER_BYTES, SMALLEST, Owner, Receiver, Sender, ShmFull

MAP_NORESERVE = 0x4000  # Linux's; this Python has no name for it


@pytest.fixture
def owner() -> Owner:
    return Owner.current()


@pytest.fixture
def receiver(owner: Owner) -> Iterator[Receiver]:
    receiver = Receiver(owner)
    yield receiver
    receiver.close()


@pytest.fixture
def sender(owner: Owner) -> Iterator[Sender]:
    sender = Sender(owner, 0, patience_s=0.0)
    yield sender
    sender.close()


def names(owner: Owner) -> list[str]:
    return [name for name in os.listdir(FOLDER) if name.startswith(owner.prefix)]


def some(size: int, start: int = 0) -> bytes:
    return (bytes(range(start, 256)) * (size // (256 - start) + 1))[:size]


@pytest.mark.parametrize("size", [0, 1, SMALLEST, SMALLEST + 1, 3_000_000])
def test_bytes_arrive_as_they_were(sender: Sender, receiver: Receiver, size: int) -> None:
    assert receiver.take(sender.place(some(size))) == some(size)


def test_an_array_arrives_as_its_bytes(sender: Sender, receiver: Receiver) -> None:
    np = pytest.importorskip("numpy")
    array = np.arange(40_000, dtype=np.float32).reshape(100, 400)
    assert receiver.take(sender.place(memoryview(array))) == array.tobytes()


def test_what_was_taken_is_the_takers_own(sender: Sender, receiver: Receiver) -> None:
    first = receiver.take(sender.place(some(SMALLEST)))
    second = receiver.take(sender.place(some(SMALLEST, start=7)))
    assert (first, second) == (some(SMALLEST), some(SMALLEST, start=7))


def test_a_block_is_used_again_once_it_is_taken(sender: Sender, receiver: Receiver) -> None:
    refs = []
    for _ in range(5):
        refs.append(sender.place(some(SMALLEST)))
        receiver.take(refs[-1])
    assert {ref.name for ref in refs} == {refs[0].name}
    assert [ref.use for ref in refs] == [1, 2, 3, 4, 5]
    assert sender.held_bytes == SMALLEST


def test_a_block_is_used_again_once_it_is_dropped(sender: Sender, receiver: Receiver) -> None:
    ref = sender.place(some(SMALLEST))
    receiver.drop(ref)
    assert sender.in_flight == 0
    assert sender.place(some(SMALLEST)).name == ref.name


def test_two_results_in_flight_have_two_blocks(sender: Sender, receiver: Receiver) -> None:
    first, second = sender.place(some(SMALLEST)), sender.place(some(SMALLEST, start=7))
    assert receiver.take(second) == some(SMALLEST, start=7)
    assert receiver.take(first) == some(SMALLEST)


def test_a_small_result_does_not_occupy_a_huge_block(sender: Sender, receiver: Receiver) -> None:
    receiver.take(sender.place(some(64 * SMALLEST)))
    sender.place(some(SMALLEST))
    assert sender.held_bytes == 65 * SMALLEST


def test_two_senders_of_one_rank_have_blocks_of_their_own(owner: Owner, receiver: Receiver) -> None:
    senders = [Sender(owner, 0), Sender(owner, 0)]
    refs = [one.place(some(SMALLEST, start=at)) for at, one in enumerate(senders)]
    assert [receiver.take(ref) for ref in refs] == [some(SMALLEST, start=at) for at in (0, 1)]
    for one in senders:
        one.close()


def test_a_name_is_gone_as_soon_as_the_receiver_has_the_segment(
    owner: Owner, sender: Sender, receiver: Receiver
) -> None:
    ref = sender.place(some(SMALLEST))
    assert names(owner) == [ref.name]
    receiver.take(ref)
    assert names(owner) == []


def test_others_on_this_machine_can_not_read_a_segment(sender: Sender) -> None:
    ref = sender.place(some(SMALLEST))
    assert (FOLDER / ref.name).stat().st_mode & 0o777 == 0o600


def test_what_was_placed_can_be_taken_after_its_sender_closed(sender: Sender, receiver: Receiver) -> None:
    ref = sender.place(some(SMALLEST))
    sender.close()
    sender.close()
    assert receiver.take(ref) == some(SMALLEST)


def test_a_receiver_that_closes_leaves_no_name(owner: Owner, sender: Sender, receiver: Receiver) -> None:
    receiver.take(sender.place(some(SMALLEST)))
    sender.place(some(4 * SMALLEST))
    receiver.close()
    receiver.close()
    assert names(owner) == []


# What does not fit


def test_too_many_in_flight_are_refused_once_the_patience_is_over(owner: Owner, receiver: Receiver) -> None:
    sender = Sender(owner, 0, patience_s=0.0, budget_bytes=2 * SMALLEST)
    for _ in range(2):
        sender.place(some(SMALLEST))
    with pytest.raises(ShmFull, match="the budget is 131072 bytes, 2 blocks are still being taken"):
        sender.place(some(SMALLEST))
    sender.close()


def test_a_sender_waits_until_a_block_is_free(owner: Owner, receiver: Receiver) -> None:
    sender = Sender(owner, 0, patience_s=60.0, budget_bytes=SMALLEST)
    ref = sender.place(some(SMALLEST))
    taking = threading.Timer(0.02, receiver.take, [ref])
    taking.start()
    assert receiver.take(sender.place(some(SMALLEST, start=7))) == some(SMALLEST, start=7)
    taking.join()
    sender.close()


def test_what_exceeds_the_budget_is_refused_at_once(owner: Owner, receiver: Receiver) -> None:
    sender = Sender(owner, 0, patience_s=60.0, budget_bytes=SMALLEST)
    receiver.take(sender.place(some(SMALLEST)))
    with pytest.raises(ShmFull, match="no room for 65537 bytes"):
        sender.place(some(SMALLEST + 1))
    assert sender.held_bytes == SMALLEST, "and nothing was given up for it"
    sender.close()


def test_free_blocks_make_room_for_a_larger_one(owner: Owner, receiver: Receiver) -> None:
    sender = Sender(owner, 0, patience_s=0.0, budget_bytes=4 * SMALLEST)
    for ref in [sender.place(some(SMALLEST)) for _ in range(4)]:
        receiver.take(ref)
    ref = sender.place(some(4 * SMALLEST))
    assert receiver.take(ref) == some(4 * SMALLEST)
    assert sender.held_bytes == 4 * SMALLEST
    sender.close()


def test_a_blocks_memory_is_free_as_soon_as_it_is_given_up(owner: Owner, receiver: Receiver) -> None:
    sender = Sender(owner, 0, patience_s=0.0, budget_bytes=2 * SMALLEST)
    small = sender.place(some(SMALLEST))
    file = os.open(FOLDER / small.name, os.O_RDONLY)
    receiver.take(small)
    sender.place(some(2 * SMALLEST))
    assert os.fstat(file).st_blocks * 512 == HEADER_BYTES
    os.close(file)
    sender.close()


def test_a_full_shared_memory_is_an_error_of_that_request(owner: Owner, receiver: Receiver) -> None:
    """A mapping that nobody touches stands for more bytes than there are."""
    size = (os.statvfs(FOLDER).f_frsize * os.statvfs(FOLDER).f_blocks) + (1 << 30)
    sender = Sender(owner, 0, budget_bytes=2 * size)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    with pytest.raises(ShmFull, match="No space left on device") as full:
        sender.place(memoryview(mmap.mmap(-1, size, flags=flags)))
    assert isinstance(full.value, OutOfMemory)
    assert names(owner) == []
    assert receiver.take(sender.place(some(SMALLEST))) == some(SMALLEST), "smaller ones still fit"
    sender.close()


# What can't be taken


def test_what_was_taken_can_not_be_taken_again(sender: Sender, receiver: Receiver) -> None:
    ref = sender.place(some(SMALLEST))
    receiver.take(ref)
    for again in (receiver.take, receiver.drop):
        with pytest.raises(BadMessage, match="freed already"):
            again(ref)


def test_a_late_drop_does_not_free_a_block_that_is_used_again(sender: Sender, receiver: Receiver) -> None:
    early = sender.place(some(SMALLEST))
    receiver.take(early)
    late = sender.place(some(SMALLEST, start=7))
    assert late.name == early.name
    with pytest.raises(BadMessage, match="use 1"):
        receiver.drop(early)
    assert sender.in_flight == 1
    assert receiver.take(late) == some(SMALLEST, start=7)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x",
        "../etc/passwd",
        "{prefix}",
        "{prefix}0-abc-1/../../etc/passwd",
        "{prefix}0-abc-1",
        "{prefix}0-\ud800-1",
    ],
)
def test_a_name_that_is_no_segment_of_this_receiver_is_refused(
    owner: Owner, receiver: Receiver, name: str
) -> None:
    with pytest.raises(BadMessage, match=r"no segment for this process|can't be opened"):
        receiver.take(ShmRef(name.format(prefix=owner.prefix), HEADER_BYTES, 1, 1))


def test_a_segment_of_another_receiver_is_refused(receiver: Receiver) -> None:
    other = Owner.current()
    sender = Sender(other, 0)
    ref = sender.place(some(SMALLEST))
    with pytest.raises(BadMessage, match="no segment for this process"):
        receiver.take(ref)
    Receiver(other).close()
    sender.close()


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (0, 1),
        (HEADER_BYTES - 1, 1),
        (HEADER_BYTES, SMALLEST + 1),
        (HEADER_BYTES, -1),
        (HEADER_BYTES + SMALLEST, 1),
    ],
)
def test_bytes_outside_the_block_are_not_read(
    sender: Sender, receiver: Receiver, offset: int, size: int
) -> None:
    ref = sender.place(some(SMALLEST))
    with pytest.raises(BadMessage, match="are not in the block"):
        receiver.take(replace(ref, offset=offset, size=size))
    assert receiver.take(ref) == some(SMALLEST), "and the block is still there"


def test_a_link_in_place_of_a_segment_is_not_followed(
    owner: Owner, receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(bytes(2 * HEADER_BYTES))
    name = f"{owner.prefix}0-abc-1"
    (FOLDER / name).symlink_to(tmp_path / "secret")
    with pytest.raises(BadMessage, match="can't be opened"):
        receiver.take(ShmRef(name, HEADER_BYTES, 1, 1))


def test_a_file_that_is_too_short_for_a_segment_is_refused(owner: Owner, receiver: Receiver) -> None:
    name = f"{owner.prefix}0-abc-1"
    (FOLDER / name).write_bytes(b"short")
    with pytest.raises(BadMessage, match="has 5 bytes only"):
        receiver.take(ShmRef(name, HEADER_BYTES, 1, 1))


# Sweeping


def test_segments_of_a_dead_owner_are_swept(owner: Owner, receiver: Receiver) -> None:
    dead = replace(Owner.current(), start_ticks=0)
    sender = Sender(dead, 0)
    sender.place(some(SMALLEST))
    receiver.sweep()
    assert names(dead) == []
    sender.close()


def test_segments_of_others_that_live_are_left(receiver: Receiver) -> None:
    """Also of one in another container, about whom nothing is known."""
    here = Owner.current()
    elsewhere = replace(here, start_ticks=0, namespace=here.namespace + 1)
    for other in (here, elsewhere):
        sender = Sender(other, 0)
        sender.place(some(SMALLEST))
        receiver.sweep()
        assert len(names(other)) == 1
        sender.close()
        Receiver(other).sweep_own()


def test_segments_of_one_rank_are_swept_and_no_others(owner: Owner, receiver: Receiver) -> None:
    senders = {rank: Sender(owner, rank) for rank in (1, 11)}
    refs = {rank: sender.place(some(SMALLEST)) for rank, sender in senders.items()}
    receiver.sweep_own(1)
    assert names(owner) == [refs[11].name]
    with pytest.raises(BadMessage, match="can't be opened"):
        receiver.take(refs[1])
    for sender in senders.values():
        sender.close()
