"""The two sides: plain diffusers, and a stage's engine put together as a pod puts it together, on the same work."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.engine.pictures import Picture
from benchmarks.machine import assert_one_thread
from stage_api import names
from stage_api.config import StageConfig
from stage_api.manifest import parse_stage
from stage_api.spec import Mode
from stage_runtime.assemble import build_engine
from stage_runtime.core.outcome import Output
from stage_runtime.core.request import Request
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.streams import Stream
from stage_runtime.pipelines.arguments import build_requests
from stage_runtime.pipelines.contract import Wishes
from stage_runtime.pipelines.served_checkpoint import resolve_model

SIDE: Final = 64
STEPS: Final = 20
GUIDANCE: Final = 3.0
SLOTS: Final = 8
MODES: Final = (Mode.REQUEST, Mode.STEP)

EQUAL: Final = ("a large red circle in the center on a white background",) * SLOTS
"""Prompts of one length."""
MIXED: Final = (
    "a red circle",
    "a large yellow heart in the middle on a purple background",
    "a small green triangle at the bottom on a pink background",
    "a large orange diamond on the right on a black background",
    "a blue bar at the top",
    "a small red circle left of a large blue heart on a white background",
    "a large green square above a small yellow circle on a black background",
    "a large purple heart to the right of a small orange square on a cyan background",
)
"""Prompts as people write them."""


def settings(model: str) -> dict[str, object]:
    """What is drawn, for the record."""
    return {
        "model": model,
        "pixels": f"{SIDE}x{SIDE}",
        "steps": STEPS,
        "guidance": GUIDANCE,
        "dtype": "float32",
        "slots": SLOTS,
    }


class Diffusers:
    """The pipeline alone."""

    def __init__(self, folder: Path) -> None:
        import torch
        from diffusers import DiffusionPipeline
        from diffusers.utils import logging

        logging.disable_progress_bar()
        self.pipeline: Any = DiffusionPipeline.from_pretrained(folder, dtype=torch.float32)
        self.pipeline.set_progress_bar_config(disable=True)
        assert_one_thread()

    def draw(self, prompts: Sequence[str], seeds: Sequence[int], steps: int = STEPS) -> list[Any]:
        """One call for all of them: PIL images, as a user gets them."""
        import torch

        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        alone = len(prompts) == 1
        result = self.pipeline(
            prompts[0] if alone else list(prompts),
            negative_prompt="" if alone else [""] * len(prompts),
            true_cfg_scale=GUIDANCE,
            num_inference_steps=steps,
            height=SIDE,
            width=SIDE,
            generator=generators[0] if alone else generators,
        )
        return list(result.images)


@dataclass(slots=True)
class Stage:
    """A started engine and the model that it serves."""

    engine: Engine
    model: Any
    _ids: Any = None

    @classmethod
    def ready(cls, folder: Path, mode: Mode, *, executor: str = "uni", **degrees: int) -> Stage:
        """An engine that has loaded, probed and warmed up."""
        config = stage_config(folder, mode, executor=executor, **degrees)
        model = resolve_model(config.model)
        stage = cls(build_engine(config, model, name=mode), model, itertools.count())
        stage.engine.start()
        stage.engine.wait_ready()
        return stage

    def requests(self, prompts: Sequence[str], seeds: Sequence[int], steps: int = STEPS) -> list[Request]:
        """One for each prompt, checked and completed as those of any client."""
        return [
            request
            for prompt, seed in zip(prompts, seeds, strict=True)
            for request in build_requests(
                self.model,
                Wishes(
                    prompt=prompt,
                    negative_prompt="",
                    width=SIDE,
                    height=SIDE,
                    num_inference_steps=steps,
                    guidance_scale=GUIDANCE,
                    seed=seed,
                ),
                request_id=f"r{next(self._ids)}",
            )
        ]

    def ask(self, prompts: Sequence[str], seeds: Sequence[int], steps: int = STEPS) -> list[Stream]:
        """Admit them together."""
        return self.engine.add(self.requests(prompts, seeds, steps))

    def draw(self, prompts: Sequence[str], seeds: Sequence[int], steps: int = STEPS) -> list[Output]:
        """All of them, by callers that arrive at once."""
        return [stream.result().output for stream in self.ask(prompts, seeds, steps)]


class Sides:
    """Both on the model in `folder`, loaded when first used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def diffusers(self) -> Diffusers:
        """Plain diffusers."""
        return Diffusers(self.folder)

    @cached_property
    def stages(self) -> dict[Mode, Stage]:
        """One engine a mode."""
        stages = {mode: Stage.ready(self.folder, mode) for mode in MODES}
        assert_one_thread()
        return stages

    def close(self) -> None:
        """End the engines."""
        for stage in vars(self).pop("stages", {}).values():
            stage.engine.close()
        vars(self).pop("diffusers", None)


def stage_config(folder: Path, mode: Mode, *, executor: str = "uni", **degrees: int) -> StageConfig:
    """The model in float32, with that mode, executor and degrees of parallelism."""
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "bench"},
        "spec": {
            "model": {"source": {"hostPath": {"path": str(folder)}}},
            "engine": {
                "dtype": "float32",
                "device": "cpu",
                "mode": mode.value,
                "executor": executor,
                "maxNumSeqs": SLOTS,
            },
            "parallelism": degrees,
        },
    }
    return StageConfig.from_stage(parse_stage(manifest))


def pixels(output: Output) -> Picture:
    """An output's numbers."""
    return np.frombuffer(output.data, output.dtype).reshape(output.shape)
