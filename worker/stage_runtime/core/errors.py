"""Every error this runtime raises on purpose. The class says whose fault it is, and that decides what follows.

StageError
├── RequestError              one request's fault; the engine is healthy
│   ├── InvalidRequest        400, names the field
│   ├── AdmissionFull         429, carries seconds to wait
│   ├── NotAdmitting          503, the stage drains or is not ready yet
│   ├── RequestAborted        499, the client or an operator took it back
│   ├── OutOfMemory           507, this request does not fit; smaller ones may
│   ├── RequestFailed         500, the model raised
│   └── NonFiniteOutput       500, what the model made is not finite
├── EngineDeadError           503, nothing is served by this group again     exit 70
│   ├── EngineHung            no progress within the deadline                exit 71
│   ├── DeviceLost            the accelerator's context is poisoned          exit 72
│   ├── RendezvousTimeout     the ranks did not meet in time                 exit 73
│   └── OutOfDeviceMemory     the model does not fit                         exit 74
├── ModelError                the model is missing, broken or incompatible   exit 65
├── FetchFailed               the model did not come; another try may help   exit 70
└── InternalError             a law of ours is broken                        exit 70

A wrong stage spec is `stage_api.errors.SpecError` (exit 64): it belongs to the contract.
"""

from __future__ import annotations

from typing import ClassVar, Final

from stage_api.outcome import ExitCode


class StageError(Exception):
    """Root of the tree.

    `status` is the HTTP status a client sees, `code` the machine-readable word beside it, `exit_code` what a process
    ends with that the error ends.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    exit_code: ClassVar[ExitCode] = ExitCode.RANK_DIED


class RequestError(StageError):
    """One request's fault; the engine is healthy and its neighbours are untouched."""


class InvalidRequest(RequestError):
    """The request can't be served as it is. `field` is the name the client used, when one is to blame."""

    status = 400
    code = "invalid_request"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class AdmissionFull(RequestError):
    """The waiting line is full. `retry_after_s` comes from measured step times, in seconds."""

    status = 429
    code = "queue_full"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotAdmitting(RequestError):
    """The stage drains, starts or is closed; another replica may serve. `retry_after_s` in seconds."""

    status = 503
    code = "not_admitting"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestAborted(RequestError):
    """The request was taken back before it was done."""

    status = 499
    code = "aborted"


class OutOfMemory(RequestError):
    """This request needed more device memory than there is; the device itself is well."""

    status = 507
    code = "out_of_memory"


class RequestFailed(RequestError):
    """The model raised while it worked on this request."""

    status = 500
    code = "request_failed"


class NonFiniteOutput(RequestError):
    """The model made NaN or infinity for this request, of which nothing can be shown."""

    status = 500
    code = "non_finite_output"


class EngineDeadError(StageError):
    """The worker group is unusable: admission is refused, every stream ended, the process leaves with `exit_code`.

    `rank` is the one at fault, where it is known.
    """

    status = 503
    code = "engine_dead"

    def __init__(self, message: str, *, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class EngineHung(EngineDeadError):
    """A tick made no progress within the deadline that its measured pace allows."""

    code = "engine_hung"
    exit_code = ExitCode.HANG


class DeviceLost(EngineDeadError):
    """The accelerator's context is poisoned: each later call on it would fail too."""

    code = "device_lost"
    exit_code = ExitCode.ACCELERATOR_FAULT


class RendezvousTimeout(EngineDeadError):
    """The ranks of a replica did not all come up and meet within the startup timeout."""

    code = "rendezvous_timeout"
    exit_code = ExitCode.RENDEZVOUS_TIMEOUT


class OutOfDeviceMemory(EngineDeadError):
    """The model, or the warm-up that the spec declares, does not fit into device memory."""

    code = "out_of_device_memory"
    exit_code = ExitCode.OUT_OF_MEMORY


class ModelError(StageError):
    """The model is missing, broken, or not what the spec says it is."""

    code = "model_error"
    exit_code = ExitCode.MODEL


class FetchFailed(StageError):
    """The model could not be fetched, for a reason that may pass."""

    code = "fetch_failed"


class InternalError(StageError):
    """A law of this runtime is broken; never caught and carried on."""


DEATHS: Final = {int(kind.exit_code): kind for kind in EngineDeadError.__subclasses__()}
"""What a group died of, by the exit code that nothing else ends with."""

_OF_REQUESTS: Final[tuple[type[StageError], ...]] = tuple(RequestError.__subclasses__())
_OF_ENGINES: Final[tuple[type[StageError], ...]] = (EngineDeadError, *EngineDeadError.__subclasses__())

TOLD: Final = {kind.code: kind for kind in _OF_REQUESTS + _OF_ENGINES}
"""What a client may be told, by its code."""
