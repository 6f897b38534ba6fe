"""Classes that a stage brings: by path or as objects, checked before anything starts, every fault told at once."""

from __future__ import annotations

from typing import Any

import pytest

from stage_api.config import StageConfig
from stage_api.errors import SpecError
from stage_api.manifest import parse_stage
from stage_api.outcome import ExitCode
from stage_api.spec import ExtensionsSpec
from stage_runtime.assemble import build_engine
from stage_runtime.engine.engine import Engine
from stage_runtime.exit import exit_code_of
from stage_runtime.extensions import Given, StageClasses, stage_classes, with_runner
from stage_runtime.pipelines.served_checkpoint import resolve_model
from support.own_classes import (
    AbstractScheduler,
    CarelessEngine,
    OwnEngine,
    OwnExecutor,
    OwnScheduler,
)

HERE = "support.own_classes"


def config(**extensions: str) -> StageConfig:
    """A stage of the shapes model with these classes."""
    value: dict[str, Any] = {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "DiffusionStage",
        "metadata": {"name": "own"},
        "spec": {"model": {"source": {"embedded": "shapes"}}, "engine": {"extensions": extensions}},
    }
    return StageConfig.from_stage(parse_stage(value))


def test_a_stage_that_brings_nothing_gets_the_runtimes_own() -> None:
    assert stage_classes(ExtensionsSpec(), Given()) == StageClasses()


def test_classes_are_found_by_their_import_paths() -> None:
    asked = ExtensionsSpec(
        executor=f"{HERE}:OwnExecutor", engine=f"{HERE}:OwnEngine", scheduler=f"{HERE}:OwnScheduler"
    )
    found = stage_classes(asked, Given())
    assert (found.executor, found.engine, found.scheduler) == (OwnExecutor, OwnEngine, OwnScheduler)


def test_a_class_given_as_an_object_wins_over_the_path_in_the_spec() -> None:
    asked = ExtensionsSpec(scheduler="no.such.module:Scheduler")
    assert stage_classes(asked, Given(scheduler=OwnScheduler)).scheduler is OwnScheduler


def test_the_engine_is_made_of_the_classes_that_the_stage_brings() -> None:
    stage = config(
        executor=f"{HERE}:OwnExecutor", engine=f"{HERE}:OwnEngine", scheduler=f"{HERE}:OwnScheduler"
    )
    engine = build_engine(stage, resolve_model(stage.model), epoch=7)
    assert type(engine) is OwnEngine
    executor = engine._build_executor()
    assert isinstance(executor, OwnExecutor)
    assert executor.made_with[2] == 7
    assert isinstance(engine._table._scheduler, OwnScheduler)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no.such.module:Class", "No module named"),
        (f"{HERE}:Missing", "has no Missing"),
        (f"{HERE}:a_function", "a builtin_function_or_method"),
        (f"{HERE}:OwnScheduler", "which is none"),
        ("antigravity_that_raises", "antigravity_that_raises"),
    ],
)
def test_what_can_not_be_had_is_named_with_its_path_and_ends_with_64(path: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as refused:
        stage_classes(ExtensionsSpec.model_construct(**_nothing() | {"engine": path}), Given())
    assert [fault.path for fault in refused.value.faults] == ["spec.engine.extensions.engine"]
    assert exit_code_of(refused.value) is ExitCode.CONFIG


def _nothing() -> dict[str, None]:
    return dict.fromkeys(ExtensionsSpec.model_fields)


def test_every_wrong_class_is_told_at_once() -> None:
    asked = ExtensionsSpec(
        executor=f"{HERE}:HalfExecutor", engine="gone:Engine", scheduler=f"{HERE}:AbstractScheduler"
    )
    with pytest.raises(SpecError) as refused:
        stage_classes(asked, Given())
    told = {fault.path.rpartition(".")[2]: fault.got for fault in refused.value.faults}
    assert set(told) == {"executor", "engine", "scheduler"}
    assert "lacks abort, capability, close, control" in told["executor"]
    assert "lacks _lets_join" in told["scheduler"]


@pytest.mark.parametrize("given", [AbstractScheduler, OwnEngine, 5, lambda: None])
def test_an_object_that_is_no_such_class_is_refused(given: object) -> None:
    with pytest.raises(SpecError, match="subclass of BaseScheduler"):
        stage_classes(ExtensionsSpec(), Given(scheduler=given))


def test_the_runner_of_the_spec_wins_over_the_one_that_the_engine_wants() -> None:
    assert with_runner(config(), Engine).engine.extensions.runner is None
    assert with_runner(config(), OwnEngine).engine.extensions.runner == OwnEngine.default_runner_class
    explicit = config(runner="my.own:Runner")
    assert with_runner(explicit, OwnEngine).engine.extensions.runner == "my.own:Runner"


def test_an_engine_that_wants_a_runner_that_can_not_be_imported_is_refused() -> None:
    with pytest.raises(SpecError, match="default_runner_class"):
        with_runner(config(), CarelessEngine)
