"""The checkpoint that a stage serves, from its spec."""

from __future__ import annotations

from stage_api.spec import ModelSpec
from stage_runtime.pipelines.arguments import lay_defaults
from stage_runtime.pipelines.contract import Defaults, ResolvedModel
from stage_runtime.pipelines.registry import resolve
from stage_runtime.pipelines.source import model_dir


def resolve_model(spec: ModelSpec) -> ResolvedModel:
    """The checkpoint under the stage's defaults; no weight is read.

    Raises: ModelError when it is missing or of another class; SpecError for defaults that it can't take.
    """
    return lay_defaults(
        resolve(model_dir(spec.source), pipeline_class=spec.pipeline_class),
        Defaults(**spec.defaults.model_dump()),
    )
