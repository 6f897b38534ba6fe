"""A pod's last words fit, decode, and survive strange text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_api.outcome import MAX_REPORT_BYTES, ExitCode, TerminationReport


def report(message: str = "") -> TerminationReport:
    return TerminationReport(
        exit_code=ExitCode.RANK_DIED, reason="RankDied", message=message, rank=3, epoch=1
    )


def test_exit_codes_are_the_published_ones() -> None:
    assert [code.value for code in ExitCode] == [0, 64, 65, 70, 71, 72, 73, 74]


@pytest.mark.parametrize("code", [ExitCode.CONFIG, ExitCode.MODEL])
def test_a_wrong_spec_or_model_is_never_retried(code: ExitCode) -> None:
    assert not code.retryable


@pytest.mark.parametrize("code", [code for code in ExitCode if code >= 70])
def test_whatever_befell_a_healthy_spec_is_retried(code: ExitCode) -> None:
    assert code.retryable


def test_every_code_says_what_it_means() -> None:
    assert len({code.meaning for code in ExitCode}) == len(ExitCode)


@pytest.mark.parametrize("status", [1, 137, 143, 255, -9])
def test_an_exit_status_that_is_not_ours_has_no_code(status: int) -> None:
    assert ExitCode.of(status) is None


def test_a_report_comes_back_as_it_was() -> None:
    assert TerminationReport.decode(report("rank 3 ended with -9").encode()) == report("rank 3 ended with -9")


@given(st.text(max_size=6000) | st.text(alphabet='\n"\\\x00é模😀', min_size=1000, max_size=6000))
def test_a_report_fits_and_is_utf_8_whatever_its_message(text: str) -> None:
    encoded = report(text).encode()
    assert len(encoded) <= MAX_REPORT_BYTES
    assert text.startswith(json.loads(encoded.decode())["message"].removesuffix("…"))


def test_a_long_message_is_cut_between_characters_and_fills_the_report() -> None:
    encoded = report("模" * 5000).encode()
    assert MAX_REPORT_BYTES - 3 < len(encoded) <= MAX_REPORT_BYTES
    assert json.loads(encoded)["message"].endswith("模…")


def test_a_lone_surrogate_in_the_message_does_not_lose_the_report() -> None:
    decoded = TerminationReport.decode(report("no file \udcff").encode())
    assert decoded is not None
    assert decoded.message == "no file ?"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Killed",
        "{",
        "[]",
        "{}",
        '{"exitCode": 70}',
        b"\xff",
        '{"exitCode": 1, "reason": "x"}',
        "[" * 9999,
    ],
)
def test_what_is_no_report_decodes_to_nothing(text: str | bytes) -> None:
    assert TerminationReport.decode(text) is None


def test_a_newer_report_with_an_unknown_field_is_read() -> None:
    newer = json.loads(report().encode()) | {"later": 1}
    assert TerminationReport.decode(json.dumps(newer)) == report()
