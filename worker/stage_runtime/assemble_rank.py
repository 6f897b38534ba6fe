"""The composition root below the torch line: from a stage's config to the parts of one rank.

The one file that knows every class of a rank, and every feature; nothing else imports a feature. What a feature may do,
and when, is said in `features.feature`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, Final

import torch

from stage_api.config import StageConfig
from stage_api.devices import Device
from stage_api.errors import Fault, SpecError
from stage_api.spec import Mode
from stage_runtime.batching.batcher import Batcher, CallCounts
from stage_runtime.batching.probe import PROMPT, SEED, Findings, probe
from stage_runtime.batching.step_calls import StepCalls
from stage_runtime.batching.step_probe import probe as probe_steps
from stage_runtime.batching.tape import Loaded
from stage_runtime.core.capability import Capability
from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import OutOfDeviceMemory
from stage_runtime.core.memory_errors import out_of_memory
from stage_runtime.core.request import BatchKey, Request
from stage_runtime.core.starting import Tell, untold
from stage_runtime.devices.kinds import choose_device, compute_device
from stage_runtime.features.feature import (
    Feature,
    Features,
    Served,
    Unsuitable,
    carried_by,
    claimed,
    suited,
)
from stage_runtime.features.guidance.feature import Guidance
from stage_runtime.features.vae.feature import VaeSlicing, VaeTiling
from stage_runtime.ipc.file_pipe import FilePipe
from stage_runtime.ipc.rank_channel import RankChannel
from stage_runtime.ipc.shm import Sender, check_folder
from stage_runtime.parallel.context import DataGroup, ParallelContext
from stage_runtime.pipelines.arguments import small_arguments
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.pipelines.loader import load
from stage_runtime.pipelines.step_model import StepModel
from stage_runtime.runner.base import Ask, ModelRunner, OnFault, RunnerOptions
from stage_runtime.runner.hub import Hub
from stage_runtime.runner.output import Deliver, OutputFormat, check_sides, deferred, modality_of
from stage_runtime.runner.proofs import Replays, replays, small_requests, trial
from stage_runtime.runner.runner import Runner, RunnerParts
from stage_runtime.runner.script_factory import ScriptFactory
from stage_runtime.runner.step_runner import StepRunner
from stage_runtime.scripts.cached_lookups import with_cached_lookups
from stage_runtime.scripts.hooks import CallHook
from stage_runtime.scripts.progress import Unit
from stage_runtime.scripts.replay import can_interrupt
from stage_runtime.scripts.target import Target
from stage_runtime.worker.extension import Extension, WorkerView
from stage_runtime.worker.faults import FaultProbe
from stage_runtime.worker.packer import LANE, Packer
from stage_runtime.worker.parts import WorkerParts, parts_of
from stage_runtime.worker.profiling import Profiling
from stage_runtime.worker.residency import Residency, modules_in
from stage_runtime.worker.session import Deliveries, Session
from stage_runtime.worker.starting import log_place, told
from stage_runtime.worker.threads import cpu_threads
from stage_runtime.worker.worker import TAKEN, Worker

FEATURES: Final[tuple[type[Feature], ...]] = (Guidance, VaeSlicing, VaeTiling)
"""Every feature, the outermost first: it sees a call before the others do. The last is next to the model."""

LoadPipeline = Callable[[torch.device], Any]
"""device → a diffusers pipeline or a step model on it, ready to run."""


def features_of(config: StageConfig, model: ResolvedModel) -> Features:
    """What the stage asks for beyond plain serving. Raises: SpecError for what can't be had of this model."""
    return claimed(FEATURES, config, model)


def data_groups(features: Features) -> frozenset[DataGroup]:
    """The groups of ranks that they exchange tensors in."""
    return frozenset(group for feature in features for group in feature.data)


def device_of(config: StageConfig, rank: int) -> torch.device:
    """The device of a rank. Raises: ModelError when its machine has too few."""
    return choose_device(config.engine.device.value, rank % config.ranks_per_pod)


def build_worker(  # noqa: PLR0913 - what a rank is made of
    config: StageConfig,
    model: ResolvedModel,
    *,
    rank: int = 0,
    features: Features | None = None,
    context: ParallelContext | None = None,
    deliver: Deliver | None = None,
    tell: Tell = untold,
) -> Worker:
    """Load the model on this rank's device. Call on the thread that will use it.

    `features`: those of `features_of`, by default; `context`: the ranks that this one has met for them. `tell` gets
    what the start is doing.
    Raises: ModelError, OutOfDeviceMemory; SpecError for a runner, an extension or a feature that can't be used, and for
    step mode of a model that has no steps.
    """
    spec = config.engine
    features = features_of(config, model) if features is None else features
    parts = parts_of(spec.extensions)
    dtype = getattr(torch, spec.dtype.value)
    reading = partial(reduce, lambda read, feature: feature.reads(read), tuple(reversed(features)))
    worker = assemble_worker(
        told(partial(load, model, dtype=dtype, reading=reading), tell),
        partial(small_arguments, model),
        device_of(config, rank),
        rank=rank,
        options=RunnerOptions(merge=not spec.batch_invariant, deliver=deliver),
        parts=parts,
        features=features,
        context=context,
    )
    check_mode(spec.mode, worker.capability)
    return worker


def check_mode(mode: Mode, found: Capability) -> None:
    """Raises: SpecError when steps are asked of a model that makes its output in one go. Alike on all ranks."""
    if mode is Mode.STEP and not found.steps:
        expected = f"{Mode.REQUEST}, since {found.pipeline} has no denoise steps to join at"
        raise SpecError([Fault("spec.engine.mode", expected, mode.value)])


def session(  # noqa: PLR0913 - what a rank is made of
    config: StageConfig,
    model: ResolvedModel,
    channel: RankChannel,
    *,
    rank: int,
    features: Features,
    context: ParallelContext | None,
    file_pipe: int | None,
    dial: Callable[[str], RankChannel],
    tell: Tell,
) -> Session:
    """A rank in a process of its own, its model loaded.

    `file_pipe`: descriptor that shared memory goes through; None where the engine is on another machine. `dial(lane)`
    opens a further channel. Raises: as `build_worker`.
    """
    topology = config.topology()
    place = topology.coordinates[rank].data
    speaks = rank == topology.data_primaries[place]
    plays_to_the_end = config.engine.mode is Mode.REQUEST
    opened = None
    if file_pipe is not None:
        opened = FilePipe.adopt(file_pipe)
        check_folder()
    deliveries = Deliveries()
    # A rank that doesn't answer makes no pictures: what it computes ends with it.
    deliver = deliveries if plays_to_the_end or not speaks else None
    worker = build_worker(
        config, model, rank=rank, features=features, context=context, deliver=deliver, tell=tell
    )
    packer = None
    if plays_to_the_end and speaks:
        packer = Packer(
            rank,
            worker.runner.convert,
            device=worker.device,
            connect=lambda: dial(LANE),
            sender=None if opened is None else Sender(opened, rank),
        )
    return Session(
        rank=rank,
        place=place,
        speaks_for_copy=speaks,
        plays_to_the_end=plays_to_the_end,
        worker=worker,
        channel=channel,
        sender=None if opened is None else Sender(opened, rank),
        packer=packer,
        deliveries=deliveries,
        agree=None if context is None else context.control.agree,
        leads=context is None or context.index == 0,
    )


def assemble_worker(  # noqa: PLR0913 - what a rank is made of
    load: LoadPipeline,
    ask: Ask,
    device: torch.device,
    *,
    rank: int = 0,
    faults: FaultProbe | None = None,
    options: RunnerOptions = RunnerOptions(),  # noqa: B008 - a frozen value
    parts: WorkerParts = WorkerParts(),  # noqa: B008 - a frozen value
    features: Features = (),
    context: ParallelContext | None = None,
) -> Worker:
    """A worker of the model that `load` gives.

    Raises: ModelError for a model that can't be loaded or run; OutOfDeviceMemory when it doesn't fit.
    """
    compute = compute_device(device)
    faults = faults or FaultProbe(compute.synchronize)
    if compute.kind is Device.CPU and (threads := cpu_threads()) is not None:
        torch.set_num_threads(threads)
    try:
        log_place(compute)
        model = load(device)
        for feature in reversed(features):
            _install(feature, model, device, context)
        runner = _runner_of(model, ask, faults, options, parts, features, context)
    except Exception as error:
        if out_of_memory(error):
            raise OutOfDeviceMemory(
                f"the model does not fit on {device}: {words_of(error, kind=False)}"
            ) from error
        raise
    extension = None
    if parts.extension is not None:
        view = WorkerView(rank=rank, device=device, pipeline=model, counts=lambda: runner.counts)
        extension = Extension(parts.extension, view, TAKEN)
    return Worker(
        runner,
        device,
        rank=rank,
        faults=faults,
        residency=Residency(modules_in(model), device, lambda: load(torch.device("cpu"))),
        profiling=Profiling(rank, device),
        extension=extension,
    )


def _runner_of(  # noqa: PLR0913 - what a runner depends on
    model: Any,
    ask: Ask,
    on_fault: OnFault,
    options: RunnerOptions,
    parts: WorkerParts,
    features: Features,
    context: ParallelContext | None,
) -> ModelRunner:
    """The stage's own runner, or the one for what the record's loader gave."""
    kind: Any = parts.runner
    if kind is not None and not (isinstance(kind, type) and issubclass(kind, Runner)):
        carried_by(kind, features)
        own: ModelRunner = kind(
            model, ask, on_fault=on_fault, sample_rate=_sample_rate(model), options=options
        )
        return own
    if isinstance(model, StepModel):
        return step_runner(model, ask, on_fault=on_fault, options=options)
    made = pipeline_parts(model, ask, on_fault=on_fault, options=options, features=features, context=context)
    return (kind or Runner)(made)


def step_runner(
    model: StepModel[Any],
    ask: Ask,
    *,
    on_fault: OnFault = lambda error: None,
    options: RunnerOptions = RunnerOptions(),  # noqa: B008 - a frozen value
) -> StepRunner:
    """The runner of a step model. Raises: ModelError when it can't be run, or breaks the protocol."""

    def small(seed: int, steps: int) -> Request:
        return Request(
            request_id="probe",
            arguments=ask(None, steps),
            key=BatchKey(()),
            seed=seed,
            steps=steps,
            pixels=1,
        )

    found = probe_steps(model, small)
    calls = StepCalls(model, options.merge and not found.reason, on_fault)
    return StepRunner(calls, found, sample_rate=model.sample_rate, options=options)


def pipeline_parts(
    pipeline: Any,
    ask: Ask,
    *,
    on_fault: OnFault = lambda error: None,
    options: RunnerOptions = RunnerOptions(),  # noqa: B008 - a frozen value
    features: Features = (),
    context: ParallelContext | None = None,
) -> RunnerParts:
    """What a `Runner` of this pipeline is made of: probed as it is served, and proven.

    Raises: ModelError when it can't be run; SpecError, on every rank, when a feature does not suit it.
    """
    output = options.output if options.deliver is None else deferred(options.output, pipeline)
    known = with_cached_lookups(pipeline)
    of_features = tuple(hook for feature in features for hook in feature.hooks(known))
    loaded = Loaded.of(known, of_features)
    ask_many = small_requests(ask, output, known.device)
    found = probe(loaded, ask_many)
    overlay = loaded.overlay if found.disturbs_processors else None
    keepers: list[CallHook] = [loaded.contexts] if loaded.contexts.modules else []
    keepers += [] if overlay is None else [overlay]
    control = None if context is None else context.control
    batcher = Batcher(
        loaded.modules,
        specs=found.specs if options.merge else {},
        plain=found.plain,
        hooks=(*keepers, *of_features),
        on_fault=on_fault,
        any_failed=None if control is None else control.any_failed,
    )
    hub = Hub(batcher, frozenset(found.denoisers), found.plan.unit is not Unit.CALL, overlay)
    factory = ScriptFactory(known, hub, output.arguments, features, plan=found.plan)
    small = ask_many([PROMPT], SEED, found.few)
    check_sides(output.convert(found.result, None), small)
    served = Served(
        found, bool(keepers), lambda call: any(h.needs_solo(call) for h in batcher.hooks), context
    )
    result = found.result
    for feature in reversed(features):
        result = _before(feature, served, factory, output, small, result)
    proof = replays(factory, output, small, result, found.few)
    proof = proof._replace(resumed=found.impurity or proof.resumed)
    factory.records = not all(proof)
    batcher.counts = CallCounts()
    return RunnerParts(
        factory=factory,
        batcher=batcher,
        capability=_capability(pipeline, found, proof),
        output=output,
        sample_rate=_sample_rate(pipeline),
        deliver=options.deliver,
        control=control,
    )


def _install(feature: Feature, model: Any, device: torch.device, context: ParallelContext | None) -> None:
    why = ""
    try:
        feature.install(model, device)
    except Unsuitable as error:
        why = str(error)
    suited(feature, why, _agreement(context))


def _before(
    feature: Feature,
    served: Served,
    factory: ScriptFactory,
    output: OutputFormat,
    small: dict[str, Any],
    want: Any,
) -> Any:
    """Put the feature's target before the others, if it has one, and try it; returns what the small request makes."""
    inner: Target = factory.hub.target
    target, why = inner, ""
    try:
        target = feature.target(inner, served)
    except Unsuitable as error:
        why = str(error)
    suited(feature, why, _agreement(served.context))
    if target is inner:
        return want
    factory.hub.target = target
    result, why = trial(factory, output, small, want)
    suited(feature, why, _agreement(served.context))
    return result


def _agreement(context: ParallelContext | None) -> Callable[[bool], bool]:
    """True where every rank that shares the model says so."""
    return (lambda verdict: verdict) if context is None else context.control.all_say


def _capability(pipeline: Any, found: Findings, proof: Replays) -> Capability:
    return Capability(
        pipeline=type(pipeline).__name__,
        modality=modality_of(found.result),
        components=tuple(found.components),
        denoisers=found.denoisers,
        early_stop=can_interrupt(pipeline),
        resumable=proof.resumed == "",
        reason=proof.resumed,
        steps=found.steps,
        previews=proof.shown == "",
        previews_reason=proof.shown,
    )


def _sample_rate(model: Any) -> int | None:
    if isinstance(model, StepModel):
        return model.sample_rate
    config = getattr(getattr(model, "vae", None), "config", None)
    return getattr(config, "sampling_rate", None)
