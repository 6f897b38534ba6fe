"""Shared memory between processes that are killed: nothing is left, and the one that lives goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stage_runtime.ipc.codec import BadMessage
from stage_runtime.ipc.messages import ShmRef
from stage_runtime.ipc.shm import FOLDER, SMALLEST, Owner, Receiver, Sender, ShmFull

SENDER = """
import sys
from stage_runtime.ipc.shm import Owner, Sender
sender = Sender(Owner.parse(sys.argv[1]), 0)
for line in sys.stdin:
    size, fill = map(int, line.split())
    ref = sender.place(bytes([fill]) * size)
    print(ref.name, ref.offset, ref.size, ref.use, flush=True)
"""
RECEIVER = """
import sys
from stage_runtime.ipc.messages import ShmRef
from stage_runtime.ipc.shm import Owner, Receiver
owner = Owner.current()
receiver = Receiver(owner)
print(owner.text, flush=True)
for line in sys.stdin:
    name, *numbers = line.split()
    print(len(receiver.take(ShmRef(name, *map(int, numbers)))), flush=True)
"""


class Child:
    """A program that answers each line with a line."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, *words: object) -> str:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)
        return self.hear()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running(program: str, *arguments: str) -> Iterator[Child]:
    child = Child(program, *arguments)
    try:
        yield child
    finally:
        child.kill()
        for stream in (child.process.stdin, child.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver(Owner.current())
    yield receiver
    receiver.close()


def placed(sender: Child, size: int, fill: int) -> ShmRef:
    name, *numbers = sender.say(size, fill).split()
    return ShmRef(name, *map(int, numbers))


def names(owner: Owner) -> list[str]:
    return [name for name in os.listdir(FOLDER) if name.startswith(owner.prefix)]


def test_bytes_cross_between_processes_in_one_block() -> None:
    owner = Owner.current()
    receiver = Receiver(owner)
    with running(SENDER, owner.text) as sender:
        refs = []
        for fill in range(20):
            refs.append(placed(sender, SMALLEST, fill))
            assert receiver.take(refs[-1]) == bytes([fill]) * SMALLEST
        assert len({ref.name for ref in refs}) == 1
    receiver.close()
    assert names(owner) == []


def test_what_a_killed_sender_had_told_can_still_be_taken() -> None:
    owner = Owner.current()
    receiver = Receiver(owner)
    with running(SENDER, owner.text) as sender:
        ref = placed(sender, SMALLEST, 7)
        sender.kill()
        assert receiver.take(ref) == bytes([7]) * SMALLEST
    assert names(owner) == []
    receiver.close()


def test_what_a_killed_sender_had_placed_and_nobody_took_is_swept() -> None:
    owner = Owner.current()
    receiver = Receiver(owner)
    with running(SENDER, owner.text) as sender:
        ref = placed(sender, SMALLEST, 7)
        sender.kill()
        assert names(owner) == [ref.name]
        receiver.sweep_own(0)
    assert names(owner) == []
    with pytest.raises(BadMessage, match="can't be opened"):
        receiver.take(ref)
    receiver.close()


def test_a_killed_receiver_leaves_only_what_it_had_not_seen_and_the_next_one_sweeps_that(
    receiver: Receiver,
) -> None:
    with running(RECEIVER) as child:
        owner = Owner.parse(child.hear())
        sender = Sender(owner, 0, patience_s=0.0, budget_bytes=3 * SMALLEST)
        seen = sender.place(bytes(SMALLEST))
        assert child.say(seen.name, seen.offset, seen.size, seen.use) == str(SMALLEST)
        unseen = [sender.place(bytes(SMALLEST)), sender.place(bytes(SMALLEST))]
        receiver.sweep()
        assert sorted(names(owner)) == sorted(ref.name for ref in unseen if ref.name != seen.name)
        child.kill()
        sender.place(bytes(SMALLEST))
        with pytest.raises(ShmFull, match="3 blocks are still being taken"):
            sender.place(bytes(SMALLEST))
        receiver.sweep()
        assert names(owner) == []
        sender.close()
