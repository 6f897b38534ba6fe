"""Bytes cross shared memory whole, blocks are used again, and nothing is left."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from msgspec.structs import replace

from stage_api.errors import SpecError
from stage_runtime.core.errors import OutOfMemory
from stage_runtime.ipc.codec import BadMessage
from stage_runtime.ipc.file_pipe import FilePipe
from stage_runtime.ipc.messages import ShmRef
from stage_runtime.ipc.shm import FOLDER, HEADER_BYTES, SMALLEST, Receiver, Sender, ShmFull, check_folder
from support.segments import held

MAP_NORESERVE = 0x4000  # Linux's; this Python has no name for it


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def file_pipe(receiver: Receiver) -> Iterator[FilePipe]:
    with closing(receiver.file_pipe()) as file_pipe:
        yield file_pipe


@pytest.fixture
def sender(file_pipe: FilePipe) -> Iterator[Sender]:
    sender = Sender(file_pipe, 0, patience_s=0.0)
    yield sender
    sender.close()


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


def test_two_senders_of_one_rank_have_blocks_of_their_own(file_pipe: FilePipe, receiver: Receiver) -> None:
    senders = [Sender(file_pipe, 0), Sender(file_pipe, 0)]
    refs = [one.place(some(SMALLEST, start=at)) for at, one in enumerate(senders)]
    assert [receiver.take(ref) for ref in refs] == [some(SMALLEST, start=at) for at in (0, 1)]
    for one in senders:
        one.close()


def test_a_segment_never_has_a_name(file_pipe: FilePipe, receiver: Receiver) -> None:
    """Not even while nobody has taken anything from it: there is nothing that a killed process could leave."""
    before = set(os.listdir(FOLDER))
    sender = Sender(file_pipe, 0)
    ref = sender.place(some(SMALLEST))
    assert set(os.listdir(FOLDER)) <= before
    assert receiver.take(ref) == some(SMALLEST)
    sender.close()


def test_what_was_placed_can_be_taken_after_its_sender_closed(sender: Sender, receiver: Receiver) -> None:
    ref = sender.place(some(SMALLEST))
    sender.close()
    sender.close()
    assert receiver.take(ref) == some(SMALLEST)


def test_nothing_is_held_once_both_are_closed(file_pipe: FilePipe, receiver: Receiver) -> None:
    """Neither what was taken, nor what came and was not, nor what is on its way."""
    before = held()
    sender = Sender(file_pipe, 0)
    placed = [sender.place(some(size * SMALLEST)) for size in (1, 1, 1)]
    receiver.take(placed[0])
    sender.place(some(4 * SMALLEST))
    sender.close()
    assert held() > before
    receiver.close()
    receiver.close()
    assert held() == before


# What does not fit


def test_too_many_in_flight_are_refused_once_the_patience_is_over(
    file_pipe: FilePipe, receiver: Receiver
) -> None:
    sender = Sender(file_pipe, 0, patience_s=0.0, budget_bytes=2 * SMALLEST)
    for _ in range(2):
        sender.place(some(SMALLEST))
    with pytest.raises(ShmFull, match="the budget is 131072 bytes, 2 blocks are still being taken"):
        sender.place(some(SMALLEST))
    sender.close()


def test_a_sender_waits_until_a_block_is_free(file_pipe: FilePipe, receiver: Receiver) -> None:
    sender = Sender(file_pipe, 0, patience_s=60.0, budget_bytes=SMALLEST)
    ref = sender.place(some(SMALLEST))
    taking = threading.Timer(0.02, receiver.take, [ref])
    taking.start()
    assert receiver.take(sender.place(some(SMALLEST, start=7))) == some(SMALLEST, start=7)
    taking.join()
    sender.close()


def test_what_exceeds_the_budget_is_refused_at_once(file_pipe: FilePipe, receiver: Receiver) -> None:
    sender = Sender(file_pipe, 0, patience_s=60.0, budget_bytes=SMALLEST)
    receiver.take(sender.place(some(SMALLEST)))
    with pytest.raises(ShmFull, match="no room for 65537 bytes"):
        sender.place(some(SMALLEST + 1))
    assert sender.held_bytes == SMALLEST, "and nothing was given up for it"
    sender.close()


def test_free_blocks_make_room_for_a_larger_one(file_pipe: FilePipe, receiver: Receiver) -> None:
    sender = Sender(file_pipe, 0, patience_s=0.0, budget_bytes=4 * SMALLEST)
    for ref in [sender.place(some(SMALLEST)) for _ in range(4)]:
        receiver.take(ref)
    ref = sender.place(some(4 * SMALLEST))
    assert receiver.take(ref) == some(4 * SMALLEST)
    assert sender.held_bytes == 4 * SMALLEST
    sender.close()


def test_a_blocks_memory_is_free_as_soon_as_it_is_given_up(file_pipe: FilePipe, receiver: Receiver) -> None:
    near, far = FilePipe.pair()
    sender = Sender(far, 0, patience_s=0.0, budget_bytes=2 * SMALLEST)
    small = sender.place(some(SMALLEST))
    file = near.pull()[small.name]
    file_pipe.push(small.name, file)
    receiver.take(small)
    sender.place(some(2 * SMALLEST))
    assert os.fstat(file).st_blocks * 512 == HEADER_BYTES
    os.close(file)
    for one in (sender, near, far):
        one.close()


def test_a_full_shared_memory_is_an_error_of_that_request(file_pipe: FilePipe, receiver: Receiver) -> None:
    """A mapping that nobody touches stands for more bytes than there are."""
    size = (os.statvfs(FOLDER).f_frsize * os.statvfs(FOLDER).f_blocks) + (1 << 30)
    sender = Sender(file_pipe, 0, budget_bytes=2 * size)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    with pytest.raises(ShmFull, match="No space left on device") as full:
        sender.place(memoryview(mmap.mmap(-1, size, flags=flags)))
    assert isinstance(full.value, OutOfMemory)
    assert sender.held_bytes == 0
    assert receiver.take(sender.place(some(SMALLEST))) == some(SMALLEST), "smaller ones still fit"
    sender.close()


@pytest.mark.parametrize("what", ["missing", "a file"])
def test_a_place_that_can_hold_no_segment_is_found_out_at_once(tmp_path: Path, what: str) -> None:
    place = tmp_path / "shm"
    if what == "a file":
        place.write_text("")
    with pytest.raises(SpecError, match="a folder for shared memory") as refused:
        check_folder(place)
    assert refused.value.faults[0].path == str(place)
    check_folder()


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


@pytest.mark.parametrize("name", ["", "x", "../etc/passwd", "0-abc-1", "0-\ud800-1"])
def test_a_segment_that_has_not_come_is_refused(receiver: Receiver, name: str) -> None:
    with pytest.raises(BadMessage, match=r"no segment .* has come"):
        receiver.take(ShmRef(name, HEADER_BYTES, 1, 1))


def test_a_segment_of_another_receiver_is_refused(receiver: Receiver) -> None:
    other = Receiver()
    with closing(other), closing(other.file_pipe()) as file_pipe, closing(Sender(file_pipe, 0)) as sender:
        ref = sender.place(some(SMALLEST))
        with pytest.raises(BadMessage, match=r"no segment .* has come"):
            receiver.take(ref)


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


def test_a_file_that_is_too_short_for_a_segment_is_refused(file_pipe: FilePipe, receiver: Receiver) -> None:
    with TemporaryFile() as file:
        file.write(b"short")
        file.flush()
        file_pipe.push("0-abc-1", file.fileno())
    with pytest.raises(BadMessage, match="has 5 bytes only"):
        receiver.take(ShmRef("0-abc-1", HEADER_BYTES, 1, 1))


def test_a_receiver_that_takes_nothing_makes_its_sender_wait_and_not_fail(
    file_pipe: FilePipe, receiver: Receiver
) -> None:
    """A file_pipe holds a few hundred segments; then there is no room until some are taken."""
    sender = Sender(file_pipe, 0, patience_s=0.0)
    refs: list[ShmRef] = []
    with pytest.raises(ShmFull, match="still being taken"):
        refs.extend(sender.place(b"x") for _ in range(10_000))
    assert len(refs) > 100
    for ref in refs:
        receiver.take(ref)
    assert receiver.take(sender.place(b"y")) == b"y"
    sender.close()
