"""Open files go through a file_pipe, whole and to one who may outlive their sender."""

from __future__ import annotations

import os
from collections.abc import Iterator
from tempfile import TemporaryFile

import pytest

from stage_runtime.ipc.file_pipe import FilePipe


@pytest.fixture
def ends() -> Iterator[tuple[FilePipe, FilePipe]]:
    near, far = FilePipe.pair()
    yield near, far
    near.close()
    far.close()


def push(file_pipe: FilePipe, label: str) -> None:
    """A file that holds its own label."""
    with TemporaryFile() as file:
        file.write(label.encode())
        file.flush()
        file_pipe.push(label, file.fileno())


def read(number: int) -> bytes:
    with os.fdopen(number, "rb") as file:
        file.seek(0)
        return file.read()


def test_what_was_pushed_is_pulled_once_and_under_its_label(ends: tuple[FilePipe, FilePipe]) -> None:
    near, far = ends
    for label in ("a", "b"):
        push(far, label)
    assert {label: read(file) for label, file in near.pull().items()} == {"a": b"a", "b": b"b"}
    assert near.pull() == {}


def test_what_was_pushed_can_be_pulled_after_its_sender_is_gone(ends: tuple[FilePipe, FilePipe]) -> None:
    near, far = ends
    push(far, "a")
    far.close()
    assert {label: read(file) for label, file in near.pull().items()} == {"a": b"a"}
    assert near.pull() == {}


def test_a_pulled_file_is_not_inherited(ends: tuple[FilePipe, FilePipe]) -> None:
    near, far = ends
    push(far, "a")
    (file,) = near.pull().values()
    assert not os.get_inheritable(file)
    os.close(file)


def test_an_adopted_end_is_not_inherited_further(ends: tuple[FilePipe, FilePipe]) -> None:
    near, far = ends
    number = os.dup(far.number)
    os.set_inheritable(number, True)
    adopted = FilePipe.adopt(number)
    push(adopted, "a")
    assert not os.get_inheritable(adopted.number)
    assert [read(file) for file in near.pull().values()] == [b"a"]
    adopted.close()


def test_nobody_waits_at_a_full_hatch_and_pulling_makes_room(ends: tuple[FilePipe, FilePipe]) -> None:
    near, far = ends
    with pytest.raises(BlockingIOError):
        any(push(far, str(number)) for number in range(100_000))
    for file in near.pull().values():
        os.close(file)
    push(far, "a")
    assert [read(file) for file in near.pull().values()] == [b"a"]


def test_pushing_to_one_who_is_gone_is_an_error(ends: tuple[FilePipe, FilePipe]) -> None:
    near, far = ends
    near.close()
    with pytest.raises(OSError, match=r"Broken pipe|Connection reset"):
        push(far, "a")
