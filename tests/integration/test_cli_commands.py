"""The `omnistage` command as a user meets it: texts, exit codes, and how little it loads."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.stage_process import EXAMPLE, ROOT, environment, omnistage

BAD = """\
apiVersion: omnistage.io/v1alpha1
kind: DiffusionStage
metadata: {name: Bad_Name}
spec:
  model: {source: {embedded: shapes, hostPath: {path: relative}}}
  engine: {maxNumSeqs: 0, mode: fast, extra: 1}
"""
PATHS = (
    "metadata.name",
    "spec.model.source.hostPath.path",
    "spec.engine.maxNumSeqs",
    "spec.engine.mode",
    "spec.engine.extra",
)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    return file


@pytest.mark.parametrize("command", ["validate", "run", "topology"])
def test_a_bad_manifest_is_64_with_every_fault_on_a_line_of_its_own(command: str, bad: Path) -> None:
    done = omnistage(command, bad)
    assert done.returncode == 64
    lines = done.stderr.splitlines()
    blamed = [line.removeprefix(f"{bad}: ").split(": expected ")[0] for line in lines]
    assert set(PATHS) <= set(blamed), done.stderr
    assert all(" expected " in line and ", got " in line for line in lines)
    assert done.stdout == ""


def test_generate_refuses_a_bad_manifest_alike(bad: Path, tmp_path: Path) -> None:
    done = omnistage("generate", bad, "a red circle", "-o", tmp_path / "out")
    assert done.returncode == 64
    assert f"{bad}: spec.engine.mode: expected" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_file_is_judged(bad: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    done = omnistage("validate", EXAMPLE, bad, missing, EXAMPLE)
    assert done.returncode == 64
    assert done.stdout.splitlines() == [f"{EXAMPLE}: shapes: ok"] * 2
    assert f"{bad}: spec.engine.extra: " in done.stderr
    assert f"{missing}: expected a readable file, got No such file or directory" in done.stderr


def test_an_unsupported_degree_is_refused_and_its_topology_is_shown_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "stage.yaml"
    file.write_text(EXAMPLE.read_text() + "  parallelism: {cfg: 2, tensor: 2}\n")
    done = omnistage("validate", file)
    assert done.returncode == 64
    assert "spec.parallelism.tensor: expected 1 in this version, got 2" in done.stderr
    assert "spec.parallelism.cfg" not in done.stderr
    shown = omnistage("topology", file)
    assert shown.returncode == 0
    assert shown.stdout.splitlines()[0].startswith("shapes: 4 ranks in 1 pod, digest ")
    assert [line.split() for line in shown.stdout.splitlines()[1:]] == [
        ["rank", "pod", "local", "tensor", "ulysses", "ring", "pipeline", "cfg", "data"],
        ["0", "0", "0", "0", "0", "0", "0", "0", "0"],
        ["1", "0", "1", "1", "0", "0", "0", "0", "0"],
        ["2", "0", "2", "0", "0", "0", "0", "1", "0"],
        ["3", "0", "3", "1", "0", "0", "0", "1", "0"],
    ]


def test_an_unsupported_degree_is_listed_beside_all_other_faults(bad: Path) -> None:
    bad.write_text(BAD + "  parallelism: {tensor: 3}\n  replicas: many\n  drain: {timeoutSeconds: -1}\n")
    lines = omnistage("validate", bad).stderr.splitlines()
    assert f"{bad}: spec.parallelism.tensor: expected 1 in this version, got 3" in lines
    blamed = {line.removeprefix(f"{bad}: ").split(": expected ")[0] for line in lines}
    assert {*PATHS, "spec.replicas", "spec.drain.timeoutSeconds"} <= blamed


def test_the_version_is_the_distributions() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert omnistage("--version").stdout == f"omnistage {declared}\n"


@pytest.mark.parametrize(
    "command", [["validate", EXAMPLE], ["topology", EXAMPLE]], ids=lambda command: command[0]
)
def test_looking_at_a_manifest_loads_neither_torch_nor_a_server(command: list[object]) -> None:
    script = (
        "import sys\n"
        "from stage_runtime.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "heavy = {'torch', 'fastapi', 'uvicorn', 'diffusers', 'numpy', 'PIL', 'msgspec'} & set(sys.modules)\n"
        "sys.exit(f'loads {heavy}' if heavy else code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, command)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_package_loads_nothing_but_itself() -> None:
    script = (
        "import sys, stage_runtime\n"
        "dir(stage_runtime)\n"
        "third = {'stage_api', 'pydantic', 'msgspec', 'numpy', 'torch'} & set(sys.modules)\n"
        "ours = [name for name in sys.modules if name.startswith('stage_runtime')]\n"
        "sys.exit(f'loads {third} {ours}' if third or ours != ['stage_runtime'] else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("folder", ["", "{file}", "{file}/below/it"])
def test_generate_refuses_a_folder_that_can_not_be_before_anything_is_drawn(
    folder: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    done = omnistage("generate", "shapes", "a red circle", "-o", folder.format(file=file))
    assert done.returncode == 2
    assert "expected a folder that can be written to" in done.stderr
    assert "loading" not in done.stderr
