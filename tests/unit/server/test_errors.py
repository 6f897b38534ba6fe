"""Each error of ours as the answer it stands for."""

from __future__ import annotations

import json

import pytest

from stage_runtime.core import errors
from stage_runtime.core.errors import StageError
from stage_runtime.server.http.errors import ModelNotFound, envelope_of

ANSWERS = {
    errors.InvalidRequest("no", "n"): (400, "invalid_request_error", "n", "invalid_request", None),
    ModelNotFound("other", "shapes"): (404, "invalid_request_error", "model", "model_not_found", None),
    errors.AdmissionFull("no", 12.2): (429, "rate_limit_error", None, "queue_full", "13"),
    errors.AdmissionFull("no", 0.0): (429, "rate_limit_error", None, "queue_full", "1"),
    errors.NotAdmitting("no", 2.0): (503, "server_error", None, "not_admitting", "2"),
    errors.RequestAborted("no"): (499, "invalid_request_error", None, "aborted", None),
    errors.RequestFailed("no"): (500, "server_error", None, "request_failed", None),
    errors.NonFiniteOutput("no"): (500, "server_error", None, "non_finite_output", None),
    errors.EngineDeadError("no"): (503, "server_error", None, "engine_dead", "10"),
    errors.EngineHung("no"): (503, "server_error", None, "engine_hung", "10"),
    errors.DeviceLost("no"): (503, "server_error", None, "device_lost", "10"),
    errors.OutOfDeviceMemory("no"): (503, "server_error", None, "out_of_device_memory", "10"),
    errors.InternalError("no"): (500, "server_error", None, "internal_error", None),
}


@pytest.mark.parametrize(
    ("error", "expected"),
    ANSWERS.items(),
    ids=[f"{type(error).__name__}-{place}" for place, error in enumerate(ANSWERS)],
)
def test_an_error_is_answered_by_its_class(error: StageError, expected: tuple[object, ...]) -> None:
    answer = envelope_of(error)
    inside = json.loads(bytes(answer.body))["error"]
    seen = (
        answer.status_code,
        inside["type"],
        inside["param"],
        inside["code"],
        answer.headers.get("retry-after"),
    )
    assert seen == expected
    assert inside["message"]


def test_a_long_model_name_is_not_thrown_back_whole() -> None:
    assert len(str(ModelNotFound("a" * 10_000, "shapes"))) < 200
