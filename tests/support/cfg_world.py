"""What ranks of one group do in tests: functions for `support.ranks`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stage_runtime.assemble_rank import pipeline_parts
from stage_runtime.core.errors import EngineDeadError, InternalError
from stage_runtime.core.outcome import Completed, Failed, Outcome, Progressed
from stage_runtime.core.request import Request
from stage_runtime.features.guidance.feature import Guidance
from stage_runtime.parallel.context import ParallelContext
from stage_runtime.runner.base import RunnerOptions
from stage_runtime.runner.output import PIXELS, OutputFormat
from stage_runtime.runner.runner import Runner
from support import tiny_models
from support.hub_stage import LATENTS, array, ask, relative
from support.ranks import ROOT
from support.tiny_models import load_plain
from support.toy_pipeline import BASE, PickyDenoiser, ToyPipeline, embed, toy

FAMILIES = (*tiny_models.NAMES, "shapes")
SHAPES = ROOT / "models" / "shapes" / "checkpoint"


def families(context: ParallelContext) -> dict[str, Any]:
    """Each family in a mixed wave, by the group and by this rank alone: the errors and the work."""
    return {name: _family(context, name) for name in FAMILIES}


def _family(context: ParallelContext, name: str) -> dict[str, Any]:
    pipeline, base = _loaded(name)
    alone, group = _runner(pipeline, base, None), _runner(pipeline, base, context)
    off = {"true_cfg_scale" if "true_cfg_scale" in base else "guidance_scale": 1.0}
    requests = [
        ask(base, "a", "a red circle", steps=3, seed=11),
        ask(base, "b", "a large green square on a blue background", steps=5, seed=22),
        ask(base, "c", "two dogs beside a bed", steps=4, seed=33, **off),
        ask(base, "lost", "a red circle", steps=5, seed=44),
    ]
    want, got = _play(alone, requests, lost_after=2), _play(group, requests, lost_after=2)
    errors = {
        name: relative(array(got[name].output), array(outcome.output))
        for name, outcome in want.items()
        if isinstance(outcome, Completed) and isinstance(got[name], Completed)
    }
    denoiser = f"{group.capability.denoisers[0]}.forward"
    return {
        "errors": errors,
        "resumable": [alone.capability.resumable, group.capability.resumable],
        "rows": [alone.counts.rows[denoiser], group.counts.rows[denoiser]],
        "held": group.outstanding(),
        "collectives": _collectives(context),
    }


def _loaded(name: str) -> tuple[Any, dict[str, Any]]:
    if name == "shapes":
        base = {"height": 64, "width": 64, "true_cfg_scale": 3.0, "negative_prompt": ""}
        return load_plain(SHAPES), base
    arguments = tiny_models.reference_arguments(name)
    base = {key: value for key, value in arguments.items() if key != "num_inference_steps"}
    if name == "flux":
        base |= {"true_cfg_scale": 3.0, "negative_prompt": "ugly"}
    with tempfile.TemporaryDirectory() as folder:
        return load_plain(tiny_models.build(name, Path(folder))), base


def _runner(
    pipeline: Any, base: dict[str, Any], context: ParallelContext | None, output: OutputFormat = LATENTS
) -> Runner:
    parts = pipeline_parts(
        pipeline,
        lambda prompt, steps: {**base, "prompt": prompt, "num_inference_steps": steps},
        options=RunnerOptions(output=output),
        features=() if context is None else (Guidance(context.size),),
        context=context,
    )
    return Runner(parts)


def _play(runner: Runner, requests: Sequence[Request], lost_after: int = 1000) -> dict[str, Outcome]:
    """Run to the end; "lost" is aborted after so many ticks. Progress is kept under `<id>@<step>`."""
    for request in requests:
        runner.add(request)
    left = [request.request_id for request in requests]
    told: dict[str, Outcome] = {}
    ticks = 0
    while left:
        for outcome in runner.tick(left):
            if isinstance(outcome, Progressed):
                told[f"{outcome.request_id}@{outcome.step}"] = outcome
            else:
                told[outcome.request_id] = outcome
                left.remove(outcome.request_id)
                runner.forget([outcome.request_id])
        ticks += 1
        if ticks == lost_after and "lost" in left:
            left.remove("lost")
            runner.forget(["lost"])
    return told


def _collectives(context: ParallelContext) -> int:
    return context.collectives


def pictures(context: ParallelContext) -> dict[str, Any]:
    """Previews and results of shapes in pixels, by the group and alone."""
    pipeline, base = _loaded("shapes")
    requests = [ask(base, n, "a red circle", steps=4, seed=i, preview_steps=(2,)) for i, n in enumerate("ab")]
    want = _play(_runner(pipeline, base, None, PIXELS), requests)
    got = _play(_runner(pipeline, base, context, PIXELS), requests)

    def gap(name: str) -> int | None:
        mine, theirs = _picture(got[name]), _picture(want[name])
        return None if mine is None or theirs is None else int(abs(mine - theirs).max())

    return {name: gap(name) for name in ("a@2", "b@2", "a", "b")}


def _picture(outcome: Outcome) -> Any:
    output = outcome.output if isinstance(outcome, Completed) else getattr(outcome, "preview", None)
    return None if output is None else array(output).astype(int)


class GuidedToy(ToyPipeline):
    """Makes one doubled batch a step. Fails by itself on the rank of the group that `fails_at` names."""

    index = 0
    fails_at = -1
    unprepared = -1
    """The rank that fails before its first call."""

    def denoise(self, scheduler: Any, latents: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        """The loop."""
        if self.index == self.unprepared and torch.equal(embeds[-1], embed("trap")):
            raise RuntimeError("not even prepared")
        embeds = torch.cat([torch.zeros_like(embeds), embeds])
        for i, t in enumerate(scheduler.timesteps):
            if i == 2 and self.index == self.fails_at and torch.equal(embeds[-1], embed("trap")):
                raise RuntimeError("only here")
            both = torch.cat([latents] * 2)
            without, given = self.transformer(both, t.expand(len(both)) / 1000, embeds).chunk(2)
            noise = without + 2 * (given - without)
            latents = scheduler.step(noise, t, latents, return_dict=False)[0]
        return latents


class LocalFault(PickyDenoiser):
    """Fails on one prompt, where `broken` is set."""

    broken = False

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> torch.Tensor:
        """Shapes: as the class above."""
        if self.broken and any(torch.equal(row, embed("local")) for row in prompt_embeds):
            raise RuntimeError("a fault of this rank")
        return super().forward(hidden_states, timestep, prompt_embeds)


def _toy(context: ParallelContext, *, broken: int = -1, fails_at: int = -1, unprepared: int = -1) -> Runner:
    pipeline = toy(GuidedToy, LocalFault)
    pipeline.transformer.broken = context.index == broken
    GuidedToy.index, GuidedToy.fails_at, GuidedToy.unprepared = context.index, fails_at, unprepared
    return _runner(pipeline, BASE, context)


def unanimous(context: ParallelContext) -> dict[str, Any]:
    """One request's prompt fails wherever it is run, its neighbours don't. What became of each, and collectives."""
    runner = _toy(context)
    requests = [ask(BASE, n, p, steps=3) for n, p in (("a", "one"), ("bad", "poison"), ("b", "two"))]
    told = _play(runner, requests)
    again = _play(runner, [ask(BASE, "later", "one", steps=3)])
    failed = told["bad"]
    return {
        "a": isinstance(told["a"], Completed),
        "b": isinstance(told["b"], Completed),
        "bad": failed.message if isinstance(failed, Failed) else None,
        "later": isinstance(again["later"], Completed),
        "collectives": _collectives(context),
    }


def apart(context: ParallelContext, how: str) -> list[Any]:
    """Something goes wrong on rank 1 alone: the error that this rank dies of, its message and the rank it names.

    Its neighbour "b" is well, and goes on to the next calls.
    """
    broken, fails_at = (1, -1) if how == "call" else (-1, 1)
    runner = _toy(context, broken=broken, fails_at=fails_at, unprepared=1 if how == "prepare" else -1)
    prompt = "local" if how == "call" else "trap"
    try:
        if how == "death" and context.index == 1:
            os._exit(9)
        if how == "plan":
            prompt = "one"
            _play(runner, [ask(BASE, f"mine-{context.index}", prompt, steps=3)])
        _play(runner, [ask(BASE, "a", prompt, steps=5), ask(BASE, "b", "two", steps=5)])
    except (EngineDeadError, InternalError) as error:
        return [type(error).__name__, str(error), getattr(error, "rank", None)]
    return ["nothing", "", None]


def agreement(context: ParallelContext) -> list[int]:
    """How far each rank read, as all are told: the leader's 7, then 8."""
    return [
        context.control.agree(7 if context.index == 0 else 3),
        context.control.agree(8 if context.index == 0 else 9),
    ]


def frames(context: ParallelContext) -> list[Any]:
    """Tensors of many sizes and dtypes from each rank, as this one gets them: sums by rank."""
    found = []
    for size in (0, 1, 1000, 100_000):
        mine = torch.full((size,), context.index + 1, dtype=torch.bfloat16)
        got = context.control.exchange("test", [size, "ä"], [mine, mine])
        assert all(frame.facts == [size, "ä"] for frame in got)
        found.append([int(frame.payload.view(torch.bfloat16)[:size].float().sum()) for frame in got])
    return found
