"""A rank tells where it computes and what its start is doing, and tells of no later load."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from stage_api.startup_progress import Activity, StartProgress
from stage_runtime.devices.compute import ComputeDevice
from stage_runtime.worker.starting import host_memory, log_place, told

MEMINFO = "MemTotal:       16000 kB\nMemFree: 1 kB\nMemAvailable:    9000 kB\nHugePages_Total:       0\n"


def test_device_threads_and_memory_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_place(ComputeDevice(torch.device("cpu")))
    (record,) = caplog.records
    assert record.__dict__["device"] == "cpu"
    assert record.__dict__["threads"] == torch.get_num_threads()
    assert 0 < record.__dict__["free_bytes"] <= record.__dict__["memory_bytes"]


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, (9000 << 10, 16000 << 10)),
        ({"memory.max": "max\n", "memory.current": "5"}, (9000 << 10, 16000 << 10)),
        ({"memory.max": "1000000\n", "memory.current": "400000"}, (600000, 1000000)),
        ({"memory.max": "1000000\n", "memory.current": "2000000"}, (0, 1000000)),
        (
            {"memory/memory.limit_in_bytes": "8000000", "memory/memory.usage_in_bytes": "1000000"},
            (7000000, 8000000),
        ),
        (
            {"memory/memory.limit_in_bytes": str(1 << 63), "memory/memory.usage_in_bytes": "1"},
            (9000 << 10, 16000 << 10),
        ),
    ],
)
def test_memory_is_the_host_s_or_what_its_container_may_use(
    tmp_path: Path, files: dict[str, str], found: tuple[int, int]
) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert tuple(host_memory(tmp_path, tmp_path / "meminfo")) == found


def test_the_first_load_tells_each_part_and_a_later_one_nothing() -> None:
    def load(device: torch.device, on_part: Any = None) -> str:
        if on_part is not None:
            on_part("transformer", 0, 2)
            on_part("vae", 1, 2)
        return str(device)

    heard: list[StartProgress] = []
    loading = told(load, heard.append)
    assert loading(torch.device("cpu")) == "cpu"
    words = [one.text() for one in heard]
    assert words == [
        "loading the model",
        "loading the model: transformer, 0 of 2 components",
        "loading the model: vae, 1 of 2 components",
        "probing the model",
    ]
    assert loading(torch.device("cpu")) == "cpu"
    assert len(heard) == 4
    assert heard[-1].activity is Activity.PROBING
