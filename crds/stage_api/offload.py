"""What leaves the device between uses, as the user asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from pydantic import Field

from stage_api.base import Contract, Limit
from stage_api.parallelism import ParallelismSpec


class DistributedLayerwiseSpec(Contract):
    """Layers of the denoiser that are spread over the ranks, each gathered just before it runs."""

    enabled: bool = Field(default=False, description="Spread the denoiser's layers over the ranks.")
    all_gather: bool = Field(
        default=True,
        description="Fetch a layer by a collective call of all ranks that hold parts of it, "
        "instead of from one of them.",
    )


class OffloadSpec(Contract):
    """What leaves the device between uses."""

    distributed_layerwise: DistributedLayerwiseSpec = Field(
        default=DistributedLayerwiseSpec(), description="Spread of the denoiser's layers over the ranks."
    )

    executable: ClassVar[Mapping[str, Limit]] = {"distributedLayerwise.enabled": False}


class AsksForOffload(Protocol):
    """A spec or a config: whatever says how its ranks share the weights."""

    @property
    def parallelism(self) -> ParallelismSpec: ...

    @property
    def offload(self) -> OffloadSpec: ...


def skips_warmup(stage: AsksForOffload) -> bool:
    """Whether the stage starts without a warm-up.

    A warm-up is one request. Where layers are gathered by a collective call of several copies or of the parts of a
    sequence, the ranks that don't run the request would be missing in it, and it would hang.
    """
    spread = stage.offload.distributed_layerwise
    sequence = stage.parallelism.sequence
    sharers = max(stage.parallelism.data, sequence.ulysses * sequence.ring)
    return spread.enabled and spread.all_gather and sharers > 1
