"""diffusers' own switches of autoencoders, as features: a stage that asks for one gets it, or doesn't start."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch

from stage_api.config import StageConfig
from stage_api.errors import Fault, SpecError
from stage_runtime.features.feature import Feature, Unsuitable
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.scripts.private_pipeline import components


class VaeSwitch(Feature):
    """One switch. Every autoencoder of the pipeline that has it gets it, before the probe: merged calls are checked
    as they will run."""

    name: ClassVar[str]
    """Of the field under `spec.vae`, and of the method after `enable_`."""
    asked = "true"
    otherwise = "false"

    @classmethod
    def claim(cls, config: StageConfig, model: ResolvedModel) -> Self | None:
        """Where it is on. Raises: SpecError for a step model: what that does with its pictures is its own affair."""
        if not getattr(config.vae, cls.name):
            return None
        if model.record.step_model is not None:
            expected = f"false, since {model.record.pipeline_class} has no such switch"
            raise SpecError([Fault(cls.field, expected, cls.asked)])
        return cls()

    def install(self, model: Any, device: torch.device) -> None:
        """Switch it on. Raises: Unsuitable naming the autoencoders that haven't got it."""
        method = f"enable_{self.name}"
        found = {
            name: module for name, module in components(model).items() if hasattr(module, "enable_tiling")
        }
        without = {}
        for name, module in found.items():
            try:
                getattr(module, method)()
            except (
                AttributeError,
                NotImplementedError,
            ):  # the mixin has the method, whatever the class can do
                without[name] = type(module).__name__
        if len(without) == len(found):
            named = ", ".join(f"{name} ({kind})" for name, kind in without.items())
            raise Unsuitable(f"{named or type(model).__name__} has no {method}")


class VaeSlicing(VaeSwitch):
    """`vae.slicing`: the rows of a merged decode one after the other."""

    name = "slicing"
    field = "spec.vae.slicing"


class VaeTiling(VaeSwitch):
    """`vae.tiling`: a large picture in overlapping tiles."""

    name = "tiling"
    field = "spec.vae.tiling"
