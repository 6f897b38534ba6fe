"""What two ranks do in tests whose calls are answered from outside, or made by both of them."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import torch

from stage_runtime.assemble_rank import pipeline_parts
from stage_runtime.core.outcome import Completed, Failed
from stage_runtime.features.feature import Feature, Served
from stage_runtime.parallel.context import ParallelContext
from stage_runtime.parallel.leader_target import LeaderTarget
from stage_runtime.runner.base import RunnerOptions
from stage_runtime.runner.runner import Runner
from stage_runtime.scripts.target import Target
from support.hub_stage import LATENTS, ask
from support.small_features import LateTarget
from support.toy_pipeline import BASE, PickyDenoiser, ToyDenoiser, ToyPipeline, toy


class Outside(Feature):
    """The leader's calls are answered by another thread, and the other ranks are told."""

    data = ("copy",)
    late: LateTarget | None = None

    def target(self, inner: Target, served: Served) -> Target:
        """Asked by the leader only."""
        context = served.context
        assert context is not None
        if context.index == 0:
            self.late = LateTarget(inner)
        return LeaderTarget(self.late, context.control, context.data["copy"])

    def close(self) -> None:
        """End the thread."""
        if self.late is not None:
            self.late.close()


def late(context: ParallelContext) -> dict[str, Any]:
    """Four requests: one is held for a while, one is aborted while it is held, one fails. What became of each."""
    outside = Outside()
    runner = _runner(toy(ToyPipeline, PickyDenoiser), context, outside)
    names = {"a": "one", "bad": "poison", "lost": "two", "b": "three"}
    for seed, (name, prompt) in enumerate(names.items()):
        runner.add(ask(BASE, name, prompt, steps=3, seed=seed))
    if outside.late is not None:
        outside.late.hold("a", "lost")
    told = _play(runner, ["b", "bad", "a", "lost"], until=("b", "bad"))
    runner.forget(["lost"])
    if outside.late is not None:
        outside.late.let("a", "lost")
    told |= _play(runner, ["a"], until=("a",))
    held = runner.outstanding()
    calls = runner.counts.calls.get("transformer.forward", 0)
    runner.close()
    return {"told": told, "held": held, "collectives": context.collectives, "calls": calls > 0}


class JointFault(ToyDenoiser):
    """Can't do several rows at once, where `broken` is set."""

    broken = False

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> torch.Tensor:
        """Shapes: as the class above."""
        if self.broken and len(hidden_states) > 1:
            raise RuntimeError("too many rows for this rank")
        return super().forward(hidden_states, timestep, prompt_embeds)


def joint(context: ParallelContext) -> dict[str, Any]:
    """Both ranks make every call; joint ones fail on rank 1 alone."""
    pipeline = toy(ToyPipeline, JointFault)
    runner = _runner(pipeline, context)
    pipeline.transformer.broken = context.index == 1
    for seed, name in enumerate("abc"):
        runner.add(ask(BASE, name, name, steps=3, seed=seed))
    told = _play(runner, list("abc"), until=tuple("abc"))
    return {"told": told, "collectives": context.collectives, "calls": runner.counts.calls}


def _runner(pipeline: Any, context: ParallelContext, *features: Feature) -> Runner:
    return Runner(
        pipeline_parts(
            pipeline,
            lambda prompt, steps: {**BASE, "prompt": prompt, "num_inference_steps": steps},
            options=RunnerOptions(output=LATENTS),
            features=features,
            context=context,
        )
    )


def _play(runner: Runner, names: list[str], *, until: tuple[str, ...]) -> dict[str, str]:
    """Tick until these have ended; digests of outputs, and messages of failures."""
    told: dict[str, str] = {}
    until_s = time.monotonic() + 60
    while not set(until) <= told.keys():
        assert time.monotonic() < until_s
        for outcome in runner.tick([name for name in names if name not in told]):
            if isinstance(outcome, Completed):
                told[outcome.request_id] = hashlib.sha256(outcome.output.data).hexdigest()
            elif isinstance(outcome, Failed):
                told[outcome.request_id] = outcome.message
    runner.forget(told)
    return told
