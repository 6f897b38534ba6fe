"""Classes that a stage brings for what lies above the ranks: executor, engine, scheduler. Loads no torch itself.

Runner and worker extension are the ranks' own business, since they may import what the parent never does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, cast

from stage_api.config import StageConfig
from stage_api.errors import Fault, SpecError
from stage_api.spec import ExtensionsSpec
from stage_runtime.core.import_path import Place, has_all, members_of, resolve, subclass_of
from stage_runtime.engine.engine import Engine
from stage_runtime.executor.base import Executor, ExecutorClass
from stage_runtime.sched.base import BaseScheduler

IMPORT_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Classes given as objects, from Python. They win over what the spec says."""

    executor: object = None
    scheduler: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageClasses:
    """What to build a stage of; None is the runtime's own."""

    engine: type[Engine] = Engine
    executor: ExecutorClass | None = None
    scheduler: type[BaseScheduler] | None = None


def stage_classes(extensions: ExtensionsSpec, given: Given) -> StageClasses:
    """The classes that a stage asks for. Raises: SpecError with everything that is wrong with any of them."""
    found = resolve(
        (
            Place(
                "executor",
                given.executor or extensions.executor,
                "a class with the methods of an Executor",
                has_all(members_of(Executor)),
            ),
            Place("engine", extensions.engine, "a subclass of Engine", subclass_of(Engine)),
            Place(
                "scheduler",
                given.scheduler or extensions.scheduler,
                "a subclass of BaseScheduler",
                subclass_of(BaseScheduler),
            ),
        )
    )
    return StageClasses(
        engine=found.get("engine", Engine),
        executor=cast("ExecutorClass | None", found.get("executor")),
        scheduler=found.get("scheduler"),
    )


def with_runner(config: StageConfig, engine: type[Engine]) -> StageConfig:
    """The config as the ranks get it: the runner that it names, or else the one that its engine wants.

    Raises: SpecError when what the engine wants is no import path.
    """
    wanted = engine.default_runner_class
    extensions = config.engine.extensions
    if wanted is None or extensions.runner is not None:
        return config
    if not IMPORT_PATH.fullmatch(str(wanted)):
        expected = "an engine whose default_runner_class is package.module:Class"
        raise SpecError([Fault("spec.engine.extensions.engine", expected, repr(wanted))])
    settled = extensions.model_copy(update={"runner": wanted})
    return config.model_copy(update={"engine": config.engine.model_copy(update={"extensions": settled})})
