"""An owner is a process, told from any other that had or will have its number."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from msgspec.structs import replace

from stage_runtime.ipc.owner import Owner, owner_of, started


def test_an_owner_is_the_same_after_it_was_text() -> None:
    owner = Owner.current()
    assert Owner.parse(owner.text) == owner


def test_an_owner_is_found_in_a_folders_name() -> None:
    owner = Owner.current()
    assert owner_of(f"{owner.prefix}x7c_ab1") == owner


@pytest.mark.parametrize(
    "name", ["", "omnistage-", "omnistage-1-2-3", "sem.other", "psm_12345", "omnistage-a-b-c-d-0"]
)
def test_other_names_have_no_owner(name: str) -> None:
    assert owner_of(name) is None


def test_two_owners_in_one_process_are_two() -> None:
    assert Owner.current() != Owner.current()


def test_text_that_is_no_owner_is_refused() -> None:
    with pytest.raises(ValueError, match="'12' is no owner"):
        Owner.parse("12")


def test_a_process_that_runs_is_not_dead() -> None:
    assert not Owner.current().dead


def test_a_later_process_under_the_same_number_is_another() -> None:
    owner = Owner.current()
    assert replace(owner, start_ticks=owner.start_ticks - 1).dead


def test_a_process_that_ended_is_dead_although_nobody_has_asked_for_its_code() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    ticks = started(process.pid)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert replace(Owner.current(), pid=process.pid, start_ticks=ticks or 0).dead
    process.wait()


def test_nothing_is_known_about_a_process_of_another_namespace() -> None:
    owner = Owner.current()
    assert not replace(owner, namespace=owner.namespace + 1, start_ticks=0).dead
