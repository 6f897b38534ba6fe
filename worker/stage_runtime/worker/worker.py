"""One device and what runs on it.

The runner does the model's work; what is about the device is here, and what control calls ask of it.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from stage_runtime.core.capability import Capability
from stage_runtime.core.control import (
    Control,
    Health,
    Invoke,
    Outstanding,
    Pause,
    ProfileStart,
    ProfileStop,
    RankHealth,
    ReadTrace,
    Resume,
    Sleep,
    StopEarly,
    Wake,
)
from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import (
    EngineDeadError,
    InvalidRequest,
    OutOfMemory,
    RequestFailed,
    StageError,
)
from stage_runtime.core.memory_errors import out_of_memory
from stage_runtime.core.outcome import ExecutorOutcome, Progressed
from stage_runtime.core.wave import Wave
from stage_runtime.devices.kinds import compute_device
from stage_runtime.runner.base import ModelRunner
from stage_runtime.scripts.target import OnAnswer
from stage_runtime.worker.extension import Extension
from stage_runtime.worker.faults import FaultProbe
from stage_runtime.worker.profiling import Profiling
from stage_runtime.worker.residency import Residency

log = logging.getLogger(__name__)


class Worker:
    """Runs waves on one device. `assemble_rank` puts it together.

    `extension`: an object whose public methods can be called by name.
    """

    def __init__(  # noqa: PLR0913 - what a rank is made of
        self,
        runner: ModelRunner,
        device: torch.device,
        *,
        rank: int,
        faults: FaultProbe,
        residency: Residency,
        profiling: Profiling,
        extension: Extension | None = None,
    ) -> None:
        self._runner, self._device, self._rank, self._faults = runner, device, rank, faults
        self._compute = compute_device(device)
        self._residency, self._profiling, self._extension = residency, profiling, extension
        self._scheduled: tuple[str, ...] = ()
        self._paused = False
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
        return self._paused

    @property
    def waits(self) -> bool:
        """True when a tick would find nothing to do before an answer comes that the last one waited for."""
        return bool(self._scheduled) and self._runner.waits

    def wake_by(self, wake: OnAnswer) -> None:
        """Have `wake` called, from any thread, when such an answer is there."""
        self._runner.wake_by(wake)

    @property
    def runner(self) -> ModelRunner:
        """The model's side."""
        return self._runner

    def submit(self, wave: Wave) -> None:
        """Clean up after the wave's finished ids, then take its new requests in."""
        wave.refuse_kv()
        self._runner.forget(wave.finished_ids)
        for envelope in wave.new:
            self._runner.add(envelope.request)
        self._scheduled = wave.scheduled_ids

    def tick(self) -> list[ExecutorOutcome]:
        """Advance the scheduled requests by one denoise step; while paused, nothing. Who ended is scheduled no more."""
        if self._paused or not self._scheduled:
            return []
        outcomes = self._runner.tick(self._scheduled)
        ended = {outcome.request_id for outcome in outcomes if not isinstance(outcome, Progressed)}
        if ended:
            self._scheduled = tuple(one for one in self._scheduled if one not in ended)
        return outcomes

    def abort(self, request_ids: Sequence[str]) -> None:
        """Stop working on these."""
        self._scheduled = tuple(one for one in self._scheduled if one not in request_ids)
        self._runner.forget(request_ids)

    def control(self, call: Control) -> object:
        """Carry out a control call; returns this rank's own answer.

        Raises: RequestError, and all is as it was before; DeviceLost.
        """
        try:
            return _CONTROLS[type(call)](self, call)
        except EngineDeadError:
            raise
        except Exception as error:
            self._faults(error)
            if isinstance(error, StageError):
                raise
            what = f"{type(call).__name__}: {words_of(error)}"
            raise (OutOfMemory if out_of_memory(error) else RequestFailed)(what) from error

    def close(self, *, with_process: bool = False) -> None:
        """Drop the model and give the device's memory back, so that a later engine can use it. Idempotent.

        `with_process`: the process ends next, and the system takes its memory back faster than this can.
        """
        self._scheduled = ()
        self._profiling.close()
        self._extension = None
        if with_process:
            return
        self._residency.close()
        self._runner.close()
        gc.collect()
        self._compute.free_cached()

    # Control calls

    def _stop_early(self, call: StopEarly) -> None:
        self._runner.stop_early(call.request_id)

    def _outstanding(self, _call: Outstanding) -> dict[str, int]:
        return self._runner.outstanding()

    def _pause(self, _call: Pause) -> None:
        self._paused = True

    def _resume(self, _call: Resume) -> None:
        if self._residency.asleep:
            raise InvalidRequest("the weights sleep: wake them, which also resumes")
        self._paused = False

    def _sleep(self, call: Sleep) -> int:
        freed = self._residency.sleep(call.level)
        self._paused = True
        return freed

    def _wake(self, _call: Wake) -> int:
        came = self._residency.wake()
        self._paused = False
        return came

    def _profile_start(self, call: ProfileStart) -> None:
        self._profiling.start(call.folder)

    def _profile_stop(self, _call: ProfileStop) -> str:
        return self._profiling.stop()

    def _read_trace(self, call: ReadTrace) -> bytes:
        return self._profiling.read(call.offset) if call.rank == self._rank else b""

    def _health(self, _call: Health) -> RankHealth:
        self._faults.synchronize()
        allocated = self._compute.allocated_bytes()
        return RankHealth(
            rank=self._rank,
            pid=os.getpid(),
            device=str(self._device),
            allocated_bytes=self._residency.bytes_here if allocated is None else allocated,
            asleep=self._residency.asleep,
            paused=self._paused,
        )

    def _invoke(self, call: Invoke) -> object:
        if self._extension is None:
            raise InvalidRequest(f"method: {call.method!r}, but no worker extension is configured", "method")
        if self._residency.asleep:
            raise InvalidRequest(f"method: {call.method!r} can't be called while the weights sleep", "method")
        return self._extension.invoke(call.method, call.arguments)


TAKEN: Final = frozenset(name for name in dir(Worker) if not name.startswith("_"))
"""Names that no extension may use."""

_CONTROLS: Final[Mapping[type, Callable[[Worker, Any], object]]] = {
    StopEarly: Worker._stop_early,
    Outstanding: Worker._outstanding,
    Pause: Worker._pause,
    Resume: Worker._resume,
    Sleep: Worker._sleep,
    Wake: Worker._wake,
    ProfileStart: Worker._profile_start,
    ProfileStop: Worker._profile_stop,
    ReadTrace: Worker._read_trace,
    Health: Worker._health,
    Invoke: Worker._invoke,
}


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
