"""The shape of the repository: sizes, names, the torch line, and what README promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from check_sizes import ROOT, oversized, tracked_python_files
from stage_api.manifest import load_manifest, parse_manifest

RUNTIME = ROOT / "worker" / "stage_runtime"
VAGUE = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "managers"}
HEAVY = ("accelerate", "diffusers", "greenlet", "safetensors", "torch", "transformers")

BELOW = (
    "assemble_rank.py",
    "batching",
    "devices",
    "executor/uni.py",
    "features",
    "parallel",
    "pipelines",
    "rank.py",
    "runner",
    "scripts",
    "worker",
)  # the torch line


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def above_the_line() -> list[str]:
    """Every module of the contract, and of the runtime above the executor line; also those that import late."""
    runtime = [path for path in RUNTIME.rglob("*.py") if not below(path)]
    contract = (ROOT / "crds" / "stage_api").rglob("*.py")
    return sorted(module_name(path) for path in [*runtime, *contract])


def below(path: Path) -> bool:
    place = path.relative_to(RUNTIME).as_posix()
    return any(place == part or place.startswith(f"{part}/") for part in BELOW)


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_no_file_and_no_function_is_too_long() -> None:
    assert [fault for path in tracked_python_files(ROOT) for fault in oversized(path)] == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = [path for path in tracked_python_files(ROOT) if {path.stem, path.parent.name} & VAGUE]
    assert vague == []


def test_the_operator_folder_never_shadows_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_a_long_function_is_noticed(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("def f():\n" + "    x = 1\n" * 60)
    assert [fault.split(": ", 1)[1] for fault in oversized(module)] == ["f has 61 lines, at most 60"]


def test_nothing_above_the_executor_line_loads_torch() -> None:
    modules = above_the_line()
    assert "stage_runtime.core.wave" in modules
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        f"    loaded = [heavy for heavy in {HEAVY!r} if heavy in sys.modules]\n"
        "    assert not loaded, f'{name} loads {loaded}'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *modules],
        env={"PYTHONPATH": f"{ROOT / 'crds'}:{ROOT / 'worker'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_target_that_a_page_names_exists(page: str) -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z0-9]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert named
    assert named <= targets


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_a_valid_manifest(example: Path) -> None:
    assert load_manifest(example)


def test_the_manifests_in_the_readme_are_valid() -> None:
    manifests = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert manifests
    assert all(parse_manifest(manifest) for manifest in manifests)


@pytest.mark.parametrize("page", [path.relative_to(ROOT).as_posix() for path in pages()])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert missing == []


def test_every_file_that_the_architecture_page_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text())
    assert named
    assert [name for name in named if not (RUNTIME / name).exists() and not (ROOT / name).exists()] == []
