"""Only records know models by name: nowhere else in the runtime does the source name one or compare with one."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from stage_runtime.pipelines.records import RECORDS

RUNTIME = Path(__file__).resolve().parents[3] / "worker" / "stage_runtime"
MAY_NAME_MODELS = {RUNTIME / "pipelines" / "records.py"}
OF_ANY_MODEL = {"DiffusionPipeline", "ModularPipeline", "ModelMixin"}
MODEL_CLASS = re.compile(r"^class (\w+(?:Pipeline|Model|ModelMixin|DModel))\(", re.MULTILINE)
NAMES = {record.name for record in RECORDS}


@cache
def model_classes() -> frozenset[str]:
    """Every class of diffusers that belongs to one model: pipelines and their denoisers."""
    spec = importlib.util.find_spec("diffusers")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    files = [*(root / "pipelines").rglob("*.py"), *(root / "models" / "transformers").glob("*.py")]
    return frozenset(name for file in files for name in MODEL_CLASS.findall(file.read_text())) - OF_ANY_MODEL


def named_models(source: str) -> Iterator[str]:
    """What in the code names one model: its classes anywhere, its record's name in a comparison or match."""
    tree = ast.parse(source)
    notes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes:
            names = [node.value]
        elif isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.alias):
            names = node.name.split(".")
        else:
            names = []
        yield from (name for name in names if name in model_classes())
        if isinstance(node, ast.Compare | ast.MatchValue):
            constants = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            yield from (value for value in constants if value in NAMES)


@pytest.mark.invariant("DIFF-MODEL-INV-002")
def test_nothing_outside_the_records_names_a_model() -> None:
    found = {
        f"{path.relative_to(RUNTIME)}: {name}"
        for path in RUNTIME.rglob("*.py")
        if path not in MAY_NAME_MODELS
        for name in named_models(path.read_text())
    }
    assert found == set()


@pytest.mark.parametrize(
    "source",
    [
        'if name == "flux": pass',
        'match name:\n    case "shapes": pass',
        'cls == "QwenImagePipeline"',
        "isinstance(pipe, FluxPipeline)",
        "diffusers.FluxPipeline",
        "from diffusers import WanTransformer3DModel",
        'TABLE = {"ZImagePipeline": 1}',
    ],
)
def test_a_model_name_is_noticed(source: str) -> None:
    assert list(named_models(source))


@pytest.mark.parametrize(
    "source", ['"""As FluxPipeline does."""', "x: DiffusionPipeline", 'folder = "shapes"']
)
def test_what_branches_on_no_model_is_let_through(source: str) -> None:
    assert not list(named_models(source))


@pytest.mark.invariant("DIFF-MODEL-INV-003")
def test_what_knows_models_knows_neither_schedule_nor_engine_nor_clients() -> None:
    allowed = {"stage_runtime.core", "stage_runtime.devices", "stage_runtime.pipelines"}
    for path in (RUNTIME / "pipelines").rglob("*.py"):
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        ours = {".".join(str(node.module).split(".")[:2]) for node in imports}
        assert {name for name in ours if name.startswith("stage_runtime")} <= allowed, path.name


@pytest.mark.invariant("DIFF-MODEL-INV-004")
def test_records_hold_values_and_no_behaviour_but_how_a_checkpoint_is_recognised() -> None:
    tree = ast.parse((RUNTIME / "pipelines" / "records.py").read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    keywords = [node for node in ast.walk(tree) if isinstance(node, ast.keyword)]
    lambdas = {word.arg for word in keywords if isinstance(word.value, ast.Lambda)}
    assert functions == {"classify"}
    assert lambdas == {"matches"}
