"""What a user may ask of a stage: the `spec` of a DiffusionStage.

A section is entered once, with its `Section`: in `PodSections` if pods are told it, else in `DiffusionStageSpec`.
Every field has a consumer. Rules over several fields are laws of the model that sees them all;
rules about the layout of ranks are in `stage_api.parallelism`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from stage_api import names
from stage_api.base import Contract, Law
from stage_api.control import ControlSpec
from stage_api.devices import DEVICE_WORDS, Device, default_resource
from stage_api.errors import Fault
from stage_api.failure import FailurePolicySpec
from stage_api.kube_values import NameRef
from stage_api.offload import OffloadSpec
from stage_api.parallelism import (
    LAYOUT_LAWS,
    WORLD,
    ParallelismSpec,
    TopologySpec,
    resolve_ranks_per_pod,
)
from stage_api.pod_template import PodTemplate
from stage_api.resources import ResourcesSpec
from stage_api.rollout import DisruptionSpec, RolloutSpec
from stage_api.section import Section
from stage_api.source import ImageReference, ModelSource, PullPolicy
from stage_api.surroundings import GangSpec, MonitoringSpec, NetworkPolicySpec
from stage_api.vae import VaeSpec

MAX_PX: Final = 8192
MAX_STEPS: Final = 1000
MAX_PROMPT_CHARS: Final = 8192

Pixels = Annotated[int, Field(ge=8, le=MAX_PX)]
Steps = Annotated[int, Field(ge=1, le=MAX_STEPS)]


class Mode(StrEnum):
    """When a request may join others on the device."""

    STEP = "step"
    REQUEST = "request"


class ExecutorKind(StrEnum):
    """Where the ranks run: `mp` has one process a rank, `uni` one rank inside the engine's own process."""

    MP = "mp"
    UNI = "uni"


class EngineProcess(StrEnum):
    """Where the engine lives: inside the process that answers HTTP, or in a child process of it."""

    INLINE = "inline"
    CHILD = "child"


class Dtype(StrEnum):
    """Number format of the weights and activations."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class SamplingDefaults(Contract):
    """What a request gets that doesn't say; laid over the defaults of the model's pipeline."""

    width: Pixels | None = Field(default=None, description="Image width in pixels.")
    height: Pixels | None = Field(default=None, description="Image height in pixels.")
    num_inference_steps: Steps | None = Field(default=None, description="Denoising steps.")
    guidance_scale: Annotated[float, Field(ge=0, le=100)] | None = Field(
        default=None, description="Strength of classifier-free guidance."
    )
    negative_prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARS)] | None = Field(
        default=None, description="What images should not show."
    )


class ModelSpec(Contract):
    """The model that the stage serves."""

    name: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=253,
                pattern=r"^[^\x00-\x1f\x7f]+$",
                json_schema_extra={"x-expected": "1..253 characters, none of them a control character"},
            ),
        ]
        | None
    ) = Field(default=None, description="Name that requests use in `model`. Left out, the stage's own name.")
    source: ModelSource = Field(description="Where the model comes from: exactly one of these.")
    pipeline_class: (
        Annotated[
            str,
            Field(
                max_length=128,
                pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
                json_schema_extra={"x-expected": "the name of a class"},
            ),
        ]
        | None
    ) = Field(
        default=None,
        description="Pipeline class the model must have. The stage refuses to start if its "
        "model_index.json says another.",
    )
    defaults: SamplingDefaults = Field(
        default=SamplingDefaults(), description="Sampling values for requests that don't give them."
    )


class WarmupSpec(Contract):
    """One shape to run before the stage is ready."""

    width: Pixels = Field(description="Image width in pixels.")
    height: Pixels = Field(description="Image height in pixels.")
    # Two, not one: multistep solvers take another path from their second step on.
    num_inference_steps: Steps = Field(default=2, description="Denoising steps.")
    batch: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1, description="Requests that run together; at most engine.maxNumSeqs."
    )


def _warmup_fits(warmup: tuple[WarmupSpec, ...], max_num_seqs: int) -> Fault | None:
    for i, shape in enumerate(warmup):
        if shape.batch > max_num_seqs:
            return Fault(f"warmup[{i}].batch", f"at most maxNumSeqs {max_num_seqs}", str(shape.batch))
    return None


ImportPath = Annotated[
    str,
    Field(
        max_length=256,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
        json_schema_extra={"x-expected": "an import path such as package.module:Class"},
    ),
]


class ExtensionsSpec(Contract):
    """Classes that the image brings, each as `package.module:Class`. A wrong one stops the start."""

    executor: ImportPath | None = Field(default=None, description="Executor instead of uni or mp.")
    engine: ImportPath | None = Field(default=None, description="Engine, a subclass of the runtime's.")
    scheduler: ImportPath | None = Field(
        default=None, description="Scheduler, a subclass of the runtime's; `mode` doesn't choose one then."
    )
    runner: ImportPath | None = Field(
        default=None, description="Runner in each rank. Wins over the one that the model's record names."
    )
    worker: ImportPath | None = Field(
        default=None,
        description="Adds its methods to the worker of each rank, for control calls; it has no life of its own.",
    )


class EngineSpec(Contract):
    """How requests are scheduled and computed."""

    mode: Annotated[Mode, Field(strict=False)] = Field(
        default=Mode.STEP,
        description="When a request may join those that run: `step`, at their next denoising step; "
        "`request`, only once they are done.",
    )
    executor: Annotated[ExecutorKind, Field(strict=False)] = Field(
        default=ExecutorKind.MP,
        description="Where the ranks run: `mp` is one process a rank, "
        "`uni` one rank in the engine's process.",
    )
    process: Annotated[EngineProcess, Field(strict=False)] = Field(
        default=EngineProcess.INLINE,
        description="Where the engine lives: `inline` is in the process that answers HTTP, "
        "`child` in a child process of it.",
    )
    extensions: ExtensionsSpec = Field(
        default=ExtensionsSpec(),
        description="Advanced: classes that the image brings, to be used instead of the runtime's own.",
    )
    dtype: Annotated[Dtype, Field(strict=False)] = Field(
        default=Dtype.BFLOAT16, description="Number format of weights and activations."
    )
    device: Annotated[Device, Field(strict=False)] = Field(default=Device.AUTO, description=DEVICE_WORDS)
    max_num_seqs: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1, description="Most requests that run together, for each copy of the model."
    )
    max_queue_size: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=64,
        description="Most images that wait for their turn. Past it, requests are answered with 429.",
    )
    max_wait_ms: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=0, description="How long an idle engine waits for company before it starts, in milliseconds."
    )
    batch_invariant: bool = Field(
        default=False,
        description="Run the model for each request alone, so that its picture is the same to the last bit "
        "whoever else is served. Without it, another batch size changes a picture by rounding.",
    )
    port: Annotated[int, Field(ge=1, le=65_535)] = Field(
        default=names.HTTP_PORT, description="Port of requests, probes and metrics."
    )
    warmup: Annotated[tuple[WarmupSpec, ...], Field(strict=False, max_length=16)] = Field(
        default=(),
        description="Shapes to run before the stage is ready. Empty, one small request of the "
        "model's default size.",
    )

    laws: ClassVar[tuple[Law, ...]] = (
        Law(
            ("warmup", "max_num_seqs"),
            "self.warmup.all(shape, shape.batch <= self.maxNumSeqs)",
            "a batch must be at most maxNumSeqs",
            _warmup_fits,
            "warmup",
        ),
    )


class StageEngineSpec(EngineSpec):
    """How requests are scheduled and computed, and by which image."""

    image: ImageReference | None = Field(
        default=None, description="Image of the pods. Left out, the operator's default."
    )
    image_pull_policy: Annotated[PullPolicy, Field(strict=False)] = Field(
        default=PullPolicy.IF_NOT_PRESENT, description="When nodes pull the image."
    )
    image_pull_secrets: Annotated[tuple[NameRef, ...], Field(strict=False, max_length=8)] = Field(
        default=(), description="Secrets by which nodes may pull it and the model's image."
    )


def _uni_has_one_rank(engine: EngineSpec, parallelism: ParallelismSpec) -> Fault | None:
    if engine.executor is not ExecutorKind.UNI or parallelism.world_size == 1:
        return None
    return Fault("engine.executor", f"mp for {parallelism.world_size} ranks", "uni")


UNI_LAW: Final = Law(
    ("engine", "parallelism"),
    f"self.engine.executor != 'uni' || {WORLD} == 1",
    "must be mp for more than one rank",
    _uni_has_one_rank,
    "engine.executor",
)
"""A law of the model that has the fields `engine` and `parallelism`."""


class StartupSpec(Contract):
    """How a replica comes up."""

    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=1800, description="Longest time from start to ready, model loading and warm-up included."
    )
    fetch_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=3600, description="Longest time to fetch a model from the Hugging Face Hub, before the start."
    )


class DrainSpec(Contract):
    """How a replica goes down."""

    admit_seconds: Annotated[int, Field(ge=0, le=300)] = Field(
        default=5,
        description="How long a stopping replica still takes requests while clients learn that it is going.",
    )
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=120, description="How long what runs may take to finish once no more is taken."
    )


class PodSections(Contract):
    """The sections that pods are told: what the spec and the config of its pods have in common."""

    model: Annotated[ModelSpec, Section()] = Field(description="The model that the stage serves.")
    engine: Annotated[EngineSpec, Section()] = Field(
        default=EngineSpec(), description="How requests are scheduled and computed."
    )
    parallelism: Annotated[ParallelismSpec, Section()] = Field(
        default=ParallelismSpec(), description="Rank layout of one replica. The degrees multiply."
    )
    startup: Annotated[StartupSpec, Section()] = Field(
        default=StartupSpec(), description="How a replica comes up."
    )
    drain: Annotated[DrainSpec, Section()] = Field(
        default=DrainSpec(), description="How a replica goes down."
    )
    offload: Annotated[OffloadSpec, Section()] = Field(
        default=OffloadSpec(), description="What leaves the device between uses."
    )
    vae: Annotated[VaeSpec, Section()] = Field(
        default=VaeSpec(), description="How the VAE saves memory, at the price of time."
    )
    control: Annotated[ControlSpec, Section()] = Field(
        default=ControlSpec(), description="Whether the stage can be paused, put to sleep and profiled."
    )


_KEEPS_PODS: Final = Section(replaces_pods=False)


class DiffusionStageSpec(PodSections):
    """What the user asks for."""

    replicas: Annotated[int, Field(ge=0, le=1000), _KEEPS_PODS] = Field(
        default=1, description="Independent copies of the stage, each with all its ranks."
    )
    engine: Annotated[StageEngineSpec, Section()] = Field(
        default=StageEngineSpec(), description="How requests are scheduled and computed."
    )
    topology: Annotated[TopologySpec, Section()] = Field(
        default=TopologySpec(), description="Where the ranks of one replica sit."
    )
    failure_policy: Annotated[FailurePolicySpec, _KEEPS_PODS] = Field(
        default=FailurePolicySpec(), description="What follows when a replica ends by itself."
    )
    suspend: Annotated[bool, _KEEPS_PODS] = Field(
        default=False, description="Run no pods, and keep everything else."
    )
    resources: Annotated[ResourcesSpec, Section()] = Field(
        default=ResourcesSpec(), description="What each pod asks of its node, beside its accelerators."
    )
    pod_template: Annotated[PodTemplate, Section()] = Field(
        default={},
        description="Part of a Kubernetes pod template, {metadata: {labels, annotations}, spec}, laid over the pods. "
        f"Containers, volumes and variables are matched by name; the stage's container is `{names.CONTAINER}`. "
        "What other fields say, or the operator sets, is refused.",
    )
    gang: Annotated[GangSpec, Section(replaces_pods=frozenset({"mode"}))] = Field(
        default=GangSpec(), description="How the pods of one replica are scheduled together or not at all."
    )
    rollout: Annotated[RolloutSpec, _KEEPS_PODS] = Field(
        default=RolloutSpec(),
        description="How replicas are brought to a new spec, one whole replica at a time.",
    )
    disruption: Annotated[DisruptionSpec, _KEEPS_PODS] = Field(
        default=DisruptionSpec(), description="What drained nodes may do to the stage."
    )
    network_policy: Annotated[NetworkPolicySpec, _KEEPS_PODS] = Field(
        default=NetworkPolicySpec(), description="Who may reach the stage's pods."
    )
    monitoring: Annotated[MonitoringSpec, _KEEPS_PODS] = Field(
        default=MonitoringSpec(), description="How the stage is watched."
    )

    laws: ClassVar[tuple[Law, ...]] = (*LAYOUT_LAWS, UNI_LAW)

    @property
    def ranks_per_pod(self) -> int:
        """Ranks in each pod of a replica, resolved."""
        return resolve_ranks_per_pod(self.parallelism, self.topology)

    @property
    def accelerator(self) -> str:
        """Resource of which each rank gets one, resolved; empty for none."""
        if self.resources.accelerator is not None:
            return self.resources.accelerator
        return default_resource(self.engine.device)
