"""The switches of autoencoders: on where they are asked for, and refused where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stage_api.errors import SpecError
from stage_runtime import assemble_rank
from stage_runtime.features.feature import Unsuitable
from stage_runtime.features.vae.feature import VaeSlicing, VaeSwitch, VaeTiling
from stage_runtime.pipelines.loader import load
from stage_runtime.pipelines.registry import resolve
from stage_runtime.runner.output import PIXELS
from support.hub_stage import HubStage, ask
from support.mp_stage import a_config
from support.step_models import resolved
from support.toy_pipeline import BASE, toy

SHAPES = Path(__file__).parents[3] / "models" / "shapes" / "checkpoint"
DRAW = {"height": 64, "width": 64, "true_cfg_scale": 3.0, "negative_prompt": ""}


@pytest.mark.parametrize(("name", "kind"), [("slicing", VaeSlicing), ("tiling", VaeTiling)])
def test_a_switch_is_on_in_the_served_model_and_pictures_of_one_tile_are_the_same(
    name: str, kind: type[VaeSwitch]
) -> None:
    pipeline = load(resolve(SHAPES), dtype=torch.float32, device=torch.device("cpu"))
    requests = [ask(DRAW, i, "a red circle", steps=2, seed=n) for n, i in enumerate("ab")]
    plain = HubStage.of(pipeline, DRAW, output=PIXELS)
    plain.arrive(*requests)
    want = plain.outputs()
    assert not getattr(pipeline.vae, f"use_{name}")
    switched = HubStage.of(pipeline, DRAW, output=PIXELS, features=(kind(),))
    assert getattr(pipeline.vae, f"use_{name}")
    switched.arrive(*requests)
    got = switched.outputs()
    assert all(abs(got[one].astype(int) - want[one].astype(int)).max() <= 1 for one in want)


@pytest.mark.parametrize("kind", [VaeSlicing, VaeTiling])
def test_a_pipeline_without_an_autoencoder_refuses_to_start(kind: type[VaeSwitch]) -> None:
    with pytest.raises(SpecError, match=rf"{kind.field}: expected false for this model: ToyPipeline has no"):
        HubStage.of(toy(), BASE, features=(kind(),))


def test_an_autoencoder_that_only_has_the_methods_is_named() -> None:
    from diffusers.models.autoencoders.vae import AutoencoderMixin

    class Bare(torch.nn.Module, AutoencoderMixin):
        pass

    pipeline = toy()
    pipeline.register_modules(vae=Bare())
    with pytest.raises(Unsuitable, match=r"vae \(Bare\) has no enable_tiling"):
        VaeTiling().install(pipeline, torch.device("cpu"))


def test_both_are_claimed_from_the_spec_and_a_step_model_refuses_both_before_it_loads() -> None:
    config = a_config("step")
    asked = config.model_copy(update={"vae": config.vae.model_copy(update={"slicing": True, "tiling": True})})
    found = assemble_rank.features_of(asked, resolve(SHAPES))
    assert [type(feature) for feature in found] == [VaeSlicing, VaeTiling]
    with pytest.raises(SpecError) as caught:
        assemble_rank.features_of(asked, resolved())
    assert [fault.path for fault in caught.value.faults] == ["spec.vae.slicing", "spec.vae.tiling"]
