"""One device and what runs on it: chooses the device, loads the pipeline, owns the runner.

The runner does the model's work; what is about the device is here.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stage_runtime.core.capability import Capability
from stage_runtime.core.control import Control, StopEarly
from stage_runtime.core.errors import InternalError, ModelError, OutOfDeviceMemory
from stage_runtime.core.memory import out_of_memory
from stage_runtime.core.outcome import Outcome
from stage_runtime.core.wave import Wave
from stage_runtime.runner.runner import Runner, RunnerOptions
from stage_runtime.worker.faults import FaultProbe, fault_probe
from stage_runtime.worker.threads import cpu_threads

log = logging.getLogger(__name__)

LoadPipeline = Callable[[torch.device], Any]
"""device → a diffusers pipeline on it, ready to run."""


class Worker:
    """Runs waves on one device.

    `ask(prompt, steps)` gives the pipeline arguments of a small request, for the probe at load.
    Raises: ModelError for a model that can't be loaded or run; OutOfDeviceMemory when it doesn't fit.
    """

    def __init__(
        self,
        load: LoadPipeline,
        ask: Callable[[str, int], dict[str, Any]],
        device: torch.device,
        *,
        rank: int = 0,
        faults: FaultProbe | None = None,
        options: RunnerOptions = RunnerOptions(),  # noqa: B008 - a frozen value
    ) -> None:
        self._device = device
        self._rank = rank
        if device.type == "cpu" and (threads := cpu_threads()) is not None:
            torch.set_num_threads(threads)
        try:
            pipeline = load(device)
            self._runner = Runner(
                pipeline,
                ask,
                on_fault=faults or fault_probe(device),
                sample_rate=_sample_rate(pipeline),
                options=options,
            )
        except Exception as error:
            if out_of_memory(error):
                raise OutOfDeviceMemory(f"the model does not fit on {device}: {error}") from error
            raise
        self._scheduled: tuple[str, ...] = ()
        _tell(self.capability)

    @property
    def capability(self) -> Capability:
        """What the loaded model can do."""
        return self._runner.capability

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._device

    @property
    def paused(self) -> bool:
        """True while nothing is to run."""
        return False

    @property
    def runner(self) -> Runner:
        """The model's side."""
        return self._runner

    def submit(self, wave: Wave) -> None:
        """Clean up after the wave's finished ids, then take its new requests in."""
        if wave.kv_prefetch is not None or any(envelope.kv_metadata is not None for envelope in wave.new):
            raise InternalError("the wave carries key/value fields, which nothing here uses")
        self._runner.forget(wave.finished_ids)
        for envelope in wave.new:
            self._runner.add(envelope.request)
        self._scheduled = wave.scheduled_ids

    def tick(self) -> list[Outcome]:
        """Advance the scheduled requests by one denoise step."""
        return self._runner.tick(self._scheduled) if self._scheduled else []

    def abort(self, request_ids: Sequence[str]) -> None:
        """Stop working on these."""
        self._scheduled = tuple(one for one in self._scheduled if one not in request_ids)
        self._runner.forget(request_ids)

    def control(self, call: Control) -> object:
        """Carry out a control call."""
        if isinstance(call, StopEarly):
            self._runner.stop_early(call.request_id)
            return None
        return self._runner.outstanding()

    def close(self) -> None:
        """Drop the model and give the device's memory back, so that a later engine can use it. Idempotent."""
        self._scheduled = ()
        self._runner.close()
        gc.collect()
        if self._device.type != "cpu":
            torch.accelerator.empty_cache()


def choose_device(wanted: str, index: int = 0) -> torch.device:
    """The device of the `index`-th rank of this machine, by the name in the spec.

    "auto" takes an accelerator where there is one. Raises: ModelError when there are too few.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    kind = found.type if wanted == "auto" and found is not None else wanted
    if kind in ("auto", "cpu"):
        return torch.device("cpu")
    if found is None or found.type != kind:
        raise ModelError(f"engine.device is {wanted}, but this machine has none")
    if index >= (count := torch.accelerator.device_count()):
        raise ModelError(f"rank {index} of this machine needs a {kind} of its own; there are {count}")
    return torch.device(kind, index)


def _sample_rate(pipeline: Any) -> int | None:
    config = getattr(getattr(pipeline, "vae", None), "config", None)
    return getattr(config, "sampling_rate", None)


def _tell(capability: Capability) -> None:
    """The capability in the log, a line a component."""
    for component in capability.components:
        how = (
            "merges" + (" ragged" if component.ragged else "")
            if component.merges
            else f"runs alone: {component.reason}"
        )
        log.info("component", extra={"component": component.name, "how": how})
    log.info(
        "model loaded",
        extra={
            "pipeline": capability.pipeline,
            "modality": str(capability.modality),
            "denoisers": ",".join(capability.denoisers),
            "early_stop": capability.early_stop,
            "resumable": capability.resumable or capability.reason,
        },
    )
