"""Which executor carries out a stage's waves: `uni`, `mp`, or a class that the stage brings. Loads no torch.

What can't be had is a fault at start, never another executor than the one that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from stage_api.config import StageConfig
from stage_api.errors import Fault, SpecError
from stage_api.spec import ExecutorKind
from stage_runtime.core.starting import Tell, untold
from stage_runtime.executor.base import Executor, ExecutorClass
from stage_runtime.pipelines.contract import ResolvedModel


def select(
    config: StageConfig,
    model: ResolvedModel,
    *,
    epoch: int = 0,
    own: ExecutorClass | None = None,
    tell: Tell = untold,
) -> Callable[[], Executor]:
    """What builds the executor, on the thread that will use it. `tell` gets what that is doing.

    Raises: SpecError when `uni` is asked for with more than one rank.
    """
    if own is not None:
        return lambda: own(config, model, epoch=epoch)
    ranks = config.topology().world_size
    if config.engine.executor is ExecutorKind.UNI:
        if ranks > 1:
            raise SpecError([Fault("spec.engine.executor", f"mp for {ranks} ranks", "uni")])
        return lambda: _uni(config, model, tell)
    return lambda: _mp(config, epoch, tell)


def default_kind(ranks: int) -> str:
    """What is taken where nobody asked: `uni` for one rank, `mp` for more."""
    return "uni" if ranks == 1 else "mp"


def _uni(config: StageConfig, model: ResolvedModel, tell: Tell) -> Executor:
    from stage_runtime.assemble_rank import build_worker
    from stage_runtime.executor.uni import UniExecutor

    return UniExecutor(lambda: build_worker(config, model, tell=tell))


def _mp(config: StageConfig, epoch: int, tell: Tell) -> Executor:
    from stage_runtime.executor.mp import MpExecutor

    return MpExecutor(config, epoch=epoch, tell=tell)
