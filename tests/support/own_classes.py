"""Classes as a stage may bring them, right and wrong. Loads no torch."""

from __future__ import annotations

from stage_api.config import StageConfig
from stage_runtime.engine.engine import Engine
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.sched.base import BaseScheduler
from stage_runtime.sched.step import StepScheduler
from support.scripted import ScriptedExecutor


class OwnExecutor(ScriptedExecutor):
    """Made as a stage's executor is."""

    def __init__(self, config: StageConfig, model: ResolvedModel, *, epoch: int) -> None:
        super().__init__()
        self.made_with = (config, model, epoch)


class OwnScheduler(StepScheduler):
    """A scheduler like any other."""


class OwnEngine(Engine):
    """Wants a runner of its own."""

    default_runner_class = "support.own_classes:OwnRunner"


class CarelessEngine(Engine):
    """Names a runner that can't be imported."""

    default_runner_class = "no import path"


class OwnRunner:
    """Looks like a runner, as far as its methods go."""


class AbstractScheduler(BaseScheduler):
    """Leaves open when requests may join."""


class HalfExecutor:
    """Can be polled, and no more."""

    def poll(self) -> None:
        """Nothing."""


a_function = len
