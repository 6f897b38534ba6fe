"""A whole DiffusionStage, as a manifest or the API server has it."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from stage_api import names
from stage_api.base import Contract, Law
from stage_api.errors import Fault, show
from stage_api.kube_values import PRUNED
from stage_api.spec import DiffusionStageSpec
from stage_api.status import DiffusionStageStatus

_NAME: Final = re.compile(names.NAME_PATTERN.strip("^$"))
NAME_RULE: Final = (
    f"at most {names.MAX_NAME} lower-case letters, digits and hyphens, the first a letter, "
    f"the last no hyphen, and no {names.RANKS_SUFFIX} at the end"
)


class Metadata(Contract):
    """The parts of a stage's metadata that the project reads; the rest is Kubernetes' own."""

    model_config = ConfigDict(extra="ignore")

    name: str
    namespace: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = "default"
    labels: Annotated[dict[str, str], PRUNED] = Field(default_factory=dict)
    annotations: Annotated[dict[str, str], PRUNED] = Field(default_factory=dict)
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


def _is_stage_name(metadata: Metadata) -> Fault | None:
    fits = len(metadata.name) <= names.MAX_NAME and _NAME.fullmatch(metadata.name)
    if fits and not metadata.name.endswith(names.RANKS_SUFFIX):
        return None
    return Fault("metadata.name", NAME_RULE, show(metadata.name))


class DiffusionStage(Contract):
    """A diffusion model served as a number of replicas, each of one or more ranks."""

    api_version: Literal["omnistage.io/v1alpha1"] = Field(description="Version of this API.")
    kind: Literal["DiffusionStage"] = Field(description="Kind of this object.")
    metadata: Metadata
    spec: DiffusionStageSpec = Field(description="What the user asks for.")
    status: DiffusionStageStatus | None = Field(
        default=None, description="What is known about the stage. Written by the operator only."
    )

    laws: ClassVar[tuple[Law, ...]] = (
        Law(
            ("metadata",),
            f"size(self.metadata.name) <= {names.MAX_NAME} && "
            f"self.metadata.name.matches('{names.NAME_PATTERN}') && "
            f"!self.metadata.name.endsWith('{names.RANKS_SUFFIX}')",
            f"metadata.name: must be {NAME_RULE}",
            _is_stage_name,
        ),
    )

    @property
    def served_name(self) -> str:
        """Name that requests use in `model`."""
        return self.spec.model.name or self.metadata.name
