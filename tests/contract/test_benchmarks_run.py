"""`make bench` works and compares pictures before it times anything. What it measures is nobody's pass or fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from benchmarks.engine import pictures

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 100

EVERY_MODULE = """
import importlib, pkgutil
import benchmarks.machine
for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
    importlib.import_module(module.name) if not module.name.endswith("__main__") else None
    print(module.name)
"""

TWICE = """
import sys
from benchmarks import __main__ as runner
from benchmarks.engine import sides
first = runner.main(["--quick", "--only", "hub,scheduler", "--json", sys.argv[1]])
print("SECOND", flush=True)
print("SECOND", file=sys.stderr, flush=True)
real = sides.Diffusers.draw
def another_seed(self, prompts, seeds, *rest):
    return real(self, prompts, [seed + 1 for seed in seeds], *rest)
sides.Diffusers.draw = another_seed
print("CODES", first, runner.main(["--quick", "--only", "hub"]))
"""
"""A run as it should be, then one whose pictures are compared with those of other seeds; in one process, for time."""

OLD_PROGRAM = """
import json, pathlib, sys
import stage_runtime
only, written = sys.argv[sys.argv.index("--only") + 1], pathlib.Path(sys.argv[sys.argv.index("--json") + 1])
if only != "scheduler":
    sys.exit(2)
row = {"what": "mean requests in a wave of 8: one shape", "value": 9.0, "unit": stage_runtime.WHOSE, "ratio": None,
       "timed": False, "at_least": False, "load": {"others_cores": 0.0}}
written.write_text(json.dumps({"rows": [row, row | {"what": "gone since"}]}))
"""


class Ran(NamedTuple):
    """What two runs in one process said: the good one, then the one with wrong pictures."""

    out: tuple[str, str]
    err: tuple[str, str]
    codes: list[str]
    figures: dict[str, object]


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    threads = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}  # which it has to overrule
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, **threads},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Both runs."""
    written = tmp_path_factory.mktemp("bench") / "figures.json"
    done = _run("-c", TWICE, str(written))
    assert done.returncode == 0, done.stderr
    said, _, codes = done.stdout.rpartition("CODES")
    first, _, second = said.partition("SECOND\n")
    warned, _, warned_then = done.stderr.partition("SECOND\n")
    return Ran((first, second), (warned, warned_then), codes.split(), json.loads(written.read_text()))


def test_every_benchmark_finds_what_it_imports() -> None:
    done = _run("-c", EVERY_MODULE)
    assert done.returncode == 0, done.stderr
    assert {"benchmarks.engine.alone", "benchmarks.fleet.run"} <= set(done.stdout.split())


def test_a_quick_run_prints_its_table_and_writes_its_json(ran: Ran) -> None:
    out, figures = ran.out[0], ran.figures
    assert ran.codes[0] == "0", ran.err[0]
    for said in ("hub, a call of one request", "10,000 waiting", "mean requests in a wave", "aim", "peer"):
        assert said in out
    assert "load average" in out
    assert not {"met", "missed"} & set(out.split()), "a quick run judges no times"
    assert figures["machine"]["threads"] == 1
    assert figures["settings"]["model"] == "shapes"
    (full,) = (row for row in figures["rows"] if row["what"].endswith("one shape"))
    assert full["value"] == 8.0


def test_a_wrong_picture_ends_the_run(ran: Ran) -> None:
    assert ran.codes[1] == "1", ran.out[1] + ran.err[1]
    assert "wrong picture" in ran.err[1]
    assert "ratio" not in ran.out[1]


@pytest.mark.sweep
@pytest.mark.timeout(600)
def test_every_item_runs_in_quick_form() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick"], cwd=ROOT, capture_output=True, text=True, timeout=590
    )
    assert done.returncode == 0, done.stderr


def test_a_checkout_is_measured_beside_another_with_each_one_s_own_code(tmp_path: Path) -> None:
    for package in ("crds/stage_api", "worker/stage_runtime", "benchmarks"):
        (tmp_path / package).mkdir(parents=True)
    (tmp_path / "crds/stage_api/__init__.py").touch()
    (tmp_path / "worker/stage_runtime/__init__.py").write_text("WHOSE = 'theirs'\n")
    (tmp_path / "benchmarks/run.py").write_text(OLD_PROGRAM)
    written = tmp_path / "figures.json"
    done = _run(
        *("-m", "benchmarks", "against", str(tmp_path), "--quick"),
        *("--only", "scheduler,hub", "--json", str(written)),
    )
    assert done.returncode == 0, done.stderr
    (compared,) = json.loads(written.read_text())
    assert compared["what"] == "mean requests in a wave of 8: one shape"
    assert (compared["ours"], compared["theirs"]) == ([8.0, 8.0], [9.0, 9.0])
    assert "gone since: not compared" in done.stdout
    assert "hub: not compared" in done.stdout
    turns = [line.rpartition(": ")[2] for line in done.stderr.splitlines() if "scheduler, round" in line]
    assert turns == [str(tmp_path), str(ROOT), str(ROOT), str(tmp_path)]


def test_a_folder_that_is_no_checkout_is_not_measured(tmp_path: Path) -> None:
    done = _run("-m", "benchmarks", "against", str(tmp_path), "--quick")
    assert done.returncode == 2
    assert f"{tmp_path} is no checkout" in done.stderr


@pytest.mark.parametrize(
    ("changed", "within", "wrong"), [(0, 0, False), (1, 0, True), (1, 1, False), (2, 1, True)]
)
def test_pictures_may_differ_by_what_was_allowed(changed: int, within: int, wrong: bool) -> None:
    theirs = np.full((4, 4, 3), 100, np.uint8)
    ours = theirs.copy()
    ours[2, 3, 1] += changed
    if wrong:
        with pytest.raises(pictures.WrongPicture, match=f"by {changed}/255"):
            pictures.check_same("here", [ours], [theirs], within=within)
    else:
        assert pictures.check_same("here", [ours], [theirs], within=within) == changed


def test_a_picture_that_misses_or_has_another_shape_is_wrong() -> None:
    picture = np.zeros((4, 4, 3), np.uint8)
    with pytest.raises(pictures.WrongPicture, match="0 pictures, expected 1"):
        pictures.check_same("here", [], [picture])
    with pytest.raises(pictures.WrongPicture, match=r"\(2, 4, 3\)"):
        pictures.check_same("here", [picture[:2]], [picture])
