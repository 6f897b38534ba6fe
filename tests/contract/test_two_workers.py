"""Tests share two workers, and what has to be alone is."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

from support.stage_process import until
from support.two_workers import turn


def test_two_run_together(tmp_path: Path) -> None:
    with turn(tmp_path, alone=False), turn(tmp_path, alone=False):
        pass


def test_one_that_runs_alone_waits_for_those_before_it_and_holds_up_those_after_it(tmp_path: Path) -> None:
    story: list[str] = []

    def one(name: str, alone: bool) -> None:
        with turn(tmp_path, alone=alone):
            story.extend((f"{name} begins", f"{name} ends"))

    def door_is_shut() -> bool:
        with (tmp_path / "door").open("w") as door:
            try:
                fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    measures = threading.Thread(target=one, args=("measures", True), name="measures")
    later = threading.Thread(target=one, args=("later", False), name="later")
    with turn(tmp_path, alone=False):
        measures.start()
        until(door_is_shut, "the one that measures waits")
        later.start()
        story.append("first ends")
    for thread in (measures, later):
        thread.join()
    assert story == ["first ends", "measures begins", "measures ends", "later begins", "later ends"]
