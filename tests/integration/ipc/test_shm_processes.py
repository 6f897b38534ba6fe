"""Shared memory between processes that are killed: nothing is left, and the one that lives goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import psutil
import pytest

from stage_runtime.ipc.messages import ShmRef
from stage_runtime.ipc.shm import FOLDER, SMALLEST, Receiver
from support.segments import held, mapped
from support.stage_process import is_alive, until

SENDER = """
import sys
from stage_runtime.ipc.file_pipe import FilePipe
from stage_runtime.ipc.shm import Sender
sender = Sender(FilePipe.adopt(int(sys.argv[1])), 0)
for line in sys.stdin:
    size, fill = map(int, line.split())
    ref = sender.place(bytes([fill]) * size)
    print(ref.name, ref.offset, ref.size, ref.use, flush=True)
"""
RECEIVER = """
import os, subprocess, sys
from stage_runtime.ipc.messages import ShmRef
from stage_runtime.ipc.shm import Receiver
receiver = Receiver()
file_pipe = receiver.file_pipe()
sender = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(file_pipe.number)], pass_fds=[file_pipe.number],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
file_pipe.close()
print(sender.pid, flush=True)
for line in sys.stdin:
    print(line.strip(), file=sender.stdin, flush=True)
    name, *numbers = sender.stdout.readline().split()
    print(len(receiver.take(ShmRef(name, *map(int, numbers)))), flush=True)
"""


class Child:
    """A program that answers each line with a line."""

    def __init__(self, program: str, *arguments: str, keep: Sequence[int] = ()) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            pass_fds=keep,
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
def running(program: str, *arguments: str, keep: Sequence[int] = ()) -> Iterator[Child]:
    child = Child(program, *arguments, keep=keep)
    try:
        yield child
    finally:
        child.kill()
        for stream in (child.process.stdin, child.process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def sending_to(receiver: Receiver) -> Iterator[Child]:
    with (
        closing(receiver.file_pipe()) as file_pipe,
        running(SENDER, str(file_pipe.number), keep=[file_pipe.number]) as sender,
    ):
        file_pipe.close()
        yield sender


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    before = held()
    receiver = Receiver()
    yield receiver
    receiver.close()
    assert held() == before


def placed(sender: Child, size: int, fill: int) -> ShmRef:
    name, *numbers = sender.say(size, fill).split()
    return ShmRef(name, *map(int, numbers))


def test_bytes_cross_between_processes_in_one_block(receiver: Receiver) -> None:
    with sending_to(receiver) as sender:
        refs = []
        for fill in range(20):
            refs.append(placed(sender, SMALLEST, fill))
            assert receiver.take(refs[-1]) == bytes([fill]) * SMALLEST
        assert len({ref.name for ref in refs}) == 1


def test_what_a_killed_sender_had_told_can_still_be_taken(receiver: Receiver) -> None:
    with sending_to(receiver) as sender:
        refs = [placed(sender, SMALLEST, fill) for fill in (7, 8)]
        sender.kill()
        assert [receiver.take(ref)[:1] for ref in refs] == [b"\x07", b"\x08"]


def test_what_a_killed_sender_had_placed_and_nobody_took_goes_with_its_receiver(receiver: Receiver) -> None:
    with sending_to(receiver) as sender:
        placed(sender, SMALLEST, 7)
        sender.kill()


def test_a_process_has_its_own_hatch_and_no_other(receiver: Receiver) -> None:
    """Or a segment would live for as long as some process that knows nothing of it."""
    with sending_to(receiver) as first, sending_to(receiver) as second:
        for sender in (first, second):
            placed(sender, SMALLEST, 7)
            sockets = [link for link in links_of(sender.process.pid) if link.startswith("socket:")]
            assert len(sockets) == 1


def test_a_killed_receiver_leaves_its_sender_with_what_it_maps_and_nobody_with_a_name() -> None:
    before = set(os.listdir(FOLDER))
    with running(RECEIVER, SENDER) as receiver:
        sender = psutil.Process(int(receiver.hear()))
        assert receiver.say(SMALLEST, 7) == str(SMALLEST)
        assert (mapped(receiver.process.pid), mapped(sender.pid)) == (1, 1)
        receiver.kill()
    until(lambda: not is_alive(sender), "the sender has read to its end")
    assert set(os.listdir(FOLDER)) <= before


def links_of(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    return [os.readlink(f"{folder}/{file}") for file in os.listdir(folder)]
