"""A model on the CPU takes the cores that its container is given, not those of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stage_runtime.worker.threads import cpu_quota, cpu_threads


def group(folder: Path, **files: str) -> Path:
    """A control group with these files."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu_dot_max": "200000 100000\n"}, 2.0),
        ({"cpu_dot_max": "50000 100000\n"}, 0.5),
        ({"cpu_dot_max": "max 100000\n"}, None),
        ({"cpu__cpu_dot_cfs_quota_us": "150000\n", "cpu__cpu_dot_cfs_period_us": "100000\n"}, 1.5),
        ({"cpu__cpu_dot_cfs_quota_us": "-1\n", "cpu__cpu_dot_cfs_period_us": "100000\n"}, None),
        ({"cpu_dot_max": "rubbish"}, None),
        ({}, None),
    ],
)
def test_the_quota_is_read_as_the_kernel_writes_it(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    assert cpu_quota(group(tmp_path, **files)) == quota


def test_a_container_gets_no_more_threads_than_whole_cores_and_at_least_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert cpu_threads(group(tmp_path, cpu_dot_max="50000 100000")) == 1
    assert cpu_threads(tmp_path / "no quota") == len(os.sched_getaffinity(0))


def test_whoever_sets_the_number_of_threads_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert cpu_threads() is None
