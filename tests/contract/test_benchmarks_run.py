"""`make bench` works and compares pictures before it times anything. What it measures is nobody's pass or fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 100

SABOTAGE = """
import sys
from benchmarks import __main__ as runner
from benchmarks.engine import sides
real = sides.Diffusers.draw
def another_seed(self, prompts, seeds, *rest):
    return real(self, prompts, [seed + 1 for seed in seeds], *rest)
sides.Diffusers.draw = another_seed
sys.exit(runner.main(["--quick", "--only", {only!r}]))
"""


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


def test_a_quick_run_prints_its_table_and_writes_its_json(tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    done = _run("-m", "benchmarks", "--quick", "--only", "hub,scheduler", "--json", str(written))
    assert done.returncode == 0, done.stderr
    for said in ("hub, a call of one request", "10,000 waiting", "mean requests in a wave", "aim", "peer"):
        assert said in done.stdout
    assert "load average" in done.stdout
    assert not {"met", "missed"} & set(done.stdout.split()), "a quick run judges no times"
    figures = json.loads(written.read_text())
    assert figures["machine"]["threads"] == 1
    assert figures["settings"]["model"] == "shapes"
    (full,) = (row for row in figures["rows"] if row["what"].endswith("one shape"))
    assert full["value"] == 8.0


def test_a_wrong_picture_ends_the_run() -> None:
    done = _run("-c", SABOTAGE.format(only="hub"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "wrong picture" in done.stderr
    assert "ratio" not in done.stdout


@pytest.mark.parametrize(
    ("changed", "within", "wrong"), [(0, 0, False), (1, 0, True), (1, 1, False), (2, 1, True)]
)
def test_pictures_may_differ_by_what_was_allowed(changed: int, within: int, wrong: bool) -> None:
    np = pytest.importorskip("numpy")
    from benchmarks.engine import pictures

    theirs = np.full((4, 4, 3), 100, np.uint8)
    ours = theirs.copy()
    ours[2, 3, 1] += changed
    if wrong:
        with pytest.raises(pictures.WrongPicture, match=f"by {changed}/255"):
            pictures.check_same("here", [ours], [theirs], within=within)
    else:
        assert pictures.check_same("here", [ours], [theirs], within=within) == changed


def test_a_picture_that_misses_or_has_another_shape_is_wrong() -> None:
    np = pytest.importorskip("numpy")
    from benchmarks.engine import pictures

    picture = np.zeros((4, 4, 3), np.uint8)
    with pytest.raises(pictures.WrongPicture, match="0 pictures, expected 1"):
        pictures.check_same("here", [], [picture])
    with pytest.raises(pictures.WrongPicture, match=r"\(2, 4, 3\)"):
        pictures.check_same("here", [picture[:2]], [picture])
