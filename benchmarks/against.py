"""Two checkouts measured in turn: `python -m benchmarks against CHECKOUT`. `make bench AGAINST=CHECKOUT` runs it.

Each checkout's own benchmark program measures its own code: whatever moved between them, the program moved along.
Both run in this interpreter, with the same libraries, so that nothing else is between them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import compare
from benchmarks.engine.run import ITEMS, OF_A_MODEL
from benchmarks.machine import BUSY_CORES

ROOT: Final = Path(__file__).resolve().parents[1]
LEAST_ROUNDS: Final = 5
QUICK_ROUNDS: Final = 2
SOURCES: Final = ("", "crds", "operator", "worker")
UNKNOWN_NAME: Final = 2
"""What a program leaves with that doesn't know an option's value."""


class NotMeasured(Exception):
    """A checkout's benchmarks could not run."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A working tree with its own code and its own benchmarks."""

    root: Path

    def environment(self) -> dict[str, str]:
        """Its sources come before all that is installed."""
        path = os.pathsep.join(str(self.root / part) for part in SOURCES)
        return {**os.environ, "PYTHONPATH": path}

    def check(self) -> None:
        """Raises: NotMeasured when what would be measured is another checkout's code."""
        ask = (
            "import stage_api, stage_runtime; print(stage_api.__path__[0]); print(stage_runtime.__path__[0])"
        )
        done = self._run("-c", ask)
        found = [Path(line).resolve() for line in done.stdout.splitlines()]
        if done.returncode != 0 or not all(one.is_relative_to(self.root) for one in found):
            raise NotMeasured(f"{self.root} is no checkout: its code is {done.stdout or done.stderr}")

    def measure(self, item: str, model: str, *, quick: bool) -> compare.Round | None:
        """The rows of one item; None where it has no such item. Raises: NotMeasured."""
        with tempfile.TemporaryDirectory(prefix="omnistage-bench-") as folder:
            written = Path(folder) / "figures.json"
            program = ["-m", "benchmarks"]
            if not (
                self.root / "benchmarks" / "__main__.py"
            ).exists():  # as it was before there was a package
                program = [str(self.root / "benchmarks" / "run.py")]
            options = [
                "--only",
                item,
                "--model",
                model,
                "--json",
                str(written),
                *(["--quick"] if quick else []),
            ]
            done = self._run(*program, *options)
            if done.returncode == UNKNOWN_NAME:
                return None
            if done.returncode != 0:
                raise NotMeasured(
                    f"{item} of {self.root} ended with {done.returncode}:\n{done.stderr[-2000:]}"
                )
            return {row["what"]: row for row in json.loads(written.read_text())["rows"]}

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=self.root, env=self.environment(), capture_output=True, text=True, check=False
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table. 1: something is worse; 2: something could not be measured."""
    asked = _parse(arguments)
    ours, theirs = Checkout(ROOT), Checkout(asked.checkout.resolve())
    found: list[compare.Comparison] = []
    others_cores = 0.0
    try:
        for checkout in (ours, theirs):
            checkout.check()
        for item in asked.only:
            runs = _in_turn(item, ours, theirs, asked)
            if runs is None:
                print(f"{item}: not compared, {theirs.root} doesn't have it")
                continue
            found += compare.compare(*runs)
            for what in compare.only_one_has(*runs):
                print(f"{what}: not compared, only one checkout has it")
            loads = [row["load"]["others_cores"] for side in runs for run in side for row in run.values()]
            others_cores = max(others_cores, *loads)
    except NotMeasured as error:
        print(error, file=sys.stderr)
        return 2
    _tell(found, others_cores, asked)
    return 0 if asked.quick else int(any(one.worse for one in found))


def _in_turn(
    item: str, ours: Checkout, theirs: Checkout, asked: argparse.Namespace
) -> tuple[list[compare.Round], list[compare.Round]] | None:
    """Each once a round, and another one first each time; None where one doesn't have the item."""
    runs: dict[Checkout, list[compare.Round]] = {ours: [], theirs: []}
    for number in range(asked.rounds):
        for checkout in (ours, theirs) if number % 2 else (theirs, ours):
            print(f"… {item}, round {number + 1}: {checkout.root}", file=sys.stderr, flush=True)
            rows = checkout.measure(item, asked.model, quick=asked.quick)
            if rows is None:
                return None
            runs[checkout].append(rows)
    return runs[ours], runs[theirs]


def _tell(found: Sequence[compare.Comparison], others_cores: float, asked: argparse.Namespace) -> None:
    print(f"\n{compare.table(found, verdicts=not asked.quick)}")
    print(f"\n{asked.rounds} rounds; other processes kept up to {others_cores:.2f} cores busy")
    if others_cores > BUSY_CORES:
        print("THE MACHINE WAS BUSY: measure again before you believe a wall time")
    if asked.quick:
        print("a quick run shows that everything works; its times say nothing")
    if asked.json is not None:
        figures = [
            {"what": one.what, "ours": one.ours, "theirs": one.theirs, "verdict": one.verdict}
            for one in found
        ]
        asked.json.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks against", description=__doc__)
    parser.add_argument("checkout", type=Path, help="the working tree to compare with")
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS, help=f"of both; at least {LEAST_ROUNDS}")
    parser.add_argument(
        "--only", metavar="NAMES", type=lambda text: text.split(","), help="some of the items"
    )
    parser.add_argument("--model", choices=("shapes", "tiny"), default="shapes")
    parser.add_argument("--quick", action="store_true", help="two short rounds, no verdict")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write every round's figure there, too")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.only or () if name not in ITEMS]:
        parser.error(f"--only {', '.join(unknown)}: expected some of {', '.join(ITEMS)}")
    asked.only = asked.only or list(ITEMS if asked.model == "shapes" else OF_A_MODEL)
    if asked.quick:
        asked.rounds = QUICK_ROUNDS
    elif asked.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds {asked.rounds}: expected at least {LEAST_ROUNDS}, so that there is a spread")
    return asked
