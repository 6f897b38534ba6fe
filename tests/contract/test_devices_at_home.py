"""Kinds of accelerators are named in their home only: the table of the contract and the runtime's package `devices`."""

from __future__ import annotations

import re

from check_sizes import ROOT, tracked_python_files

HOME = ("crds/stage_api/devices.py", "worker/stage_runtime/devices/")
PROGRAMS = ("crds/", "operator/", "worker/")
NAMES = re.compile(r"cuda|nvidia|rocm|[nrxh]ccl|torch_npu|\b(xpu|npu|mps|hip|amd)\b", re.IGNORECASE)
KIND_OF_A_DEVICE = re.compile(
    r"device\.type\s*([!=]=\s*[\"']|in\b|not in)|pin_memory|torch\.(Stream|Event)\(|torch\.accelerator"
)


def found(pattern: re.Pattern[str]) -> list[str]:
    lines = []
    for path in tracked_python_files(ROOT):
        place = path.relative_to(ROOT).as_posix()
        if not place.startswith(PROGRAMS) or place.startswith(HOME):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if pattern.search(line):
                lines.append(f"{place}:{number}: {line.strip()}")
    return lines


def test_nothing_else_names_a_kind_of_accelerator() -> None:
    assert found(NAMES) == []


def test_nothing_else_asks_of_which_kind_a_device_is_or_does_what_only_some_do() -> None:
    assert found(KIND_OF_A_DEVICE) == []


def test_the_search_finds_such_a_name() -> None:
    said = [
        "torch.cuda.synchronize()",
        'device="cuda"',
        "nvidia.com/gpu",
        "ProcessGroupNCCL",
        "CUDA_VISIBLE_DEVICES",
    ]
    assert [line for line in said if not NAMES.search(line)] == []
    assert KIND_OF_A_DEVICE.search('if device.type == "cpu":')
