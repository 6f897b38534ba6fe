"""A pipeline under the real scheduler and the real uni executor, driven tick by tick without a thread.

Outputs are latents as float32 bytes, so that "equal" means equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from stage_runtime.assemble_rank import assemble_worker
from stage_runtime.batching.batcher import CallCounts
from stage_runtime.core.capability import Capability
from stage_runtime.core.outcome import Aborted, Completed, Failed, Modality, Outcome, Output, Progressed
from stage_runtime.core.request import BatchKey, Request
from stage_runtime.executor.uni import UniExecutor
from stage_runtime.features.feature import Features
from stage_runtime.runner.base import RunnerOptions
from stage_runtime.runner.output import OutputFormat
from stage_runtime.sched.base import BaseScheduler
from stage_runtime.sched.step import StepScheduler
from stage_runtime.worker.faults import FaultProbe
from stage_runtime.worker.worker import Worker

Arguments = Mapping[str, Any]


def _floats(result: Any, _sample_rate: int | None) -> Output:
    """The first field of a result, whatever it is called, as float32."""
    value = next(iter(result.values()))
    array = np.ascontiguousarray(torch.as_tensor(value).to(torch.float32).numpy())
    return Output(modality=Modality.IMAGE, data=array.tobytes(), shape=array.shape, dtype="float32")


LATENTS = OutputFormat({"output_type": "latent"}, _floats)


def plain(pipeline: Any, request: Request, output_type: str = "latent") -> np.ndarray:
    """What plain diffusers gives for a request, as float32."""
    generator = torch.Generator().manual_seed(request.seed)
    with torch.no_grad():
        result = pipeline(**request.arguments, generator=generator, output_type=output_type)
    return np.asarray(torch.as_tensor(next(iter(result.values()))).to(torch.float32).numpy())


def array(output: Output) -> np.ndarray:
    """An output's numbers."""
    return np.frombuffer(output.data, output.dtype).reshape(output.shape)


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference over largest magnitude."""
    return float(np.abs(got - want).max() / np.abs(want).max())


def ask(base: Arguments, request_id: str, prompt: str, *, steps: int, seed: int = 0, **more: Any) -> Request:
    """A request with the arguments `base`."""
    preview_steps = more.pop("preview_steps", ())
    arguments = {**base, "prompt": prompt, "num_inference_steps": steps, **more}
    return Request(
        request_id=request_id,
        arguments=arguments,
        key=BatchKey(()),
        seed=seed,
        steps=steps,
        pixels=1,
        preview_steps=preview_steps,
    )


@dataclass(slots=True)
class HubStage:
    """Scheduler and executor; `arrive` and `abort` take effect before the next tick."""

    executor: UniExecutor
    worker: Worker
    scheduler: BaseScheduler
    told: list[Outcome] = field(default_factory=list)
    ticks: int = 0

    @classmethod
    def of(
        cls,
        pipeline: Any,
        base: Arguments,
        *,
        scheduler: type[BaseScheduler] = StepScheduler,
        slots: int = 4,
        merge: bool = True,
        output: OutputFormat = LATENTS,
        faults: FaultProbe | None = None,
        features: Features = (),
    ) -> HubStage:
        """A stage over a loaded pipeline. `base` are its arguments but prompt, steps and generator."""
        made: list[Worker] = []

        def build() -> Worker:
            made.append(
                assemble_worker(
                    lambda _device: pipeline,
                    lambda prompt, steps: {**base, "prompt": prompt, "num_inference_steps": steps},
                    torch.device("cpu"),
                    faults=faults,
                    options=RunnerOptions(merge=merge, output=output),
                    features=features,
                )
            )
            return made[0]

        executor = UniExecutor(build)
        return cls(executor, made[0], scheduler(max_num_seqs=slots))

    @property
    def capability(self) -> Capability:
        """What the model can do."""
        return self.executor.capability

    @property
    def counts(self) -> CallCounts:
        """Calls of real modules so far."""
        return self.worker.runner.counts

    def arrive(self, *requests: Request) -> None:
        """Requests come in, each on its own."""
        for request in requests:
            self.scheduler.add([request], self.ticks)

    def abort(self, request_id: str) -> None:
        """Take a request back."""
        aborted = self.scheduler.abort(request_id, self.ticks)
        if aborted is not None:
            self.told.append(aborted)

    def tick(self, patience_s: float | None = None) -> Sequence[Outcome]:
        """One turn, as the engine's loop makes it. `patience_s`: on the monotonic clock, for calls answered late."""
        wave = self.scheduler.schedule(self.ticks)
        self.ticks += 1
        if wave.is_empty:
            return []
        self.executor.submit(wave)
        told = self.scheduler.update(self.executor.poll(patience_s), self.ticks)
        self.told += told
        return told

    def run(self) -> dict[str, Completed | Aborted | Failed]:
        """Tick until nothing is left; the terminal outcome of each request."""
        while self.scheduler.has_work:
            self.tick()
        return {o.request_id: o for o in self.told if not isinstance(o, Progressed)}

    def outputs(self) -> dict[str, np.ndarray]:
        """Run, and what was completed, as numbers."""
        return {i: array(o.output) for i, o in self.run().items() if isinstance(o, Completed)}

    def held(self) -> dict[str, int]:
        """What the runner holds, by kind."""
        return self.worker.runner.outstanding()
