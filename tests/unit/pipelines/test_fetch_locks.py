"""A lock that outlives its owner is recovered from, and one that is held is waited for by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stage_runtime.core.errors import FetchFailed
from stage_runtime.pipelines.fetch_locks import LOOK_S, PLACE, STILL_S, await_lock, knows_flock

FILE = "transformer/model.safetensors"


class Clock:
    """Time that passes in sleep alone; `each` is done in every second of it."""

    def __init__(self, each: Callable[[float], object] = lambda now_s: None) -> None:
        self.now_s, self.each = 0.0, each

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.each(self.now_s)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / PLACE / f"{FILE}.lock"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def waited(folder: Path, clock: Clock, deadline_s: float = 10_000.0) -> float:
    await_lock(folder, FILE, deadline_s, clock=clock, sleep=clock.sleep)
    return clock.now_s


def test_nothing_is_waited_for_where_nobody_fetches(tmp_path: Path) -> None:
    assert waited(tmp_path, Clock()) == 0.0


def test_a_lock_whose_file_stands_still_is_taken_away(lock: Path, tmp_path: Path) -> None:
    (lock.parent / "model.safetensors.0123.incomplete").write_bytes(b"half")
    other = lock.parent / "other.safetensors.lock"
    other.touch()
    assert STILL_S <= waited(tmp_path, Clock()) <= STILL_S + LOOK_S
    assert not lock.exists()
    assert other.exists()


def test_a_lock_whose_file_grows_is_waited_for_until_it_goes(lock: Path, tmp_path: Path) -> None:
    part = lock.parent / "model.safetensors.0123.incomplete"

    def grow(now_s: float) -> None:
        part.write_bytes(b"x" * int(now_s // 60))
        if now_s >= 5 * STILL_S:
            lock.unlink(missing_ok=True)

    assert waited(tmp_path, Clock(grow)) == 5 * STILL_S


def test_a_lock_that_another_owner_took_anew_is_waited_for_anew(lock: Path, tmp_path: Path) -> None:
    def retake(now_s: float) -> None:
        if now_s == STILL_S - 1:
            lock.unlink()
            lock.write_text("another")

    assert waited(tmp_path, Clock(retake)) >= 2 * STILL_S - 1


def test_what_is_waited_for_is_named_at_the_deadline(lock: Path, tmp_path: Path) -> None:
    grow = Clock(lambda now_s: (lock.parent / "model.safetensors.part").write_bytes(b"x" * int(now_s)))
    with pytest.raises(FetchFailed, match=rf"{FILE} could not be fetched in time: {lock} is held"):
        waited(tmp_path, grow, deadline_s=300.0)
    assert lock.exists()


def test_a_usual_folder_knows_flock_and_is_left_as_it_was(tmp_path: Path) -> None:
    assert knows_flock(tmp_path)
    assert not list(tmp_path.iterdir())
