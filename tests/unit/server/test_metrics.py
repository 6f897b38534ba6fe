"""What is measured, and that it is true."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stage_runtime.core.errors import AdmissionFull
from stage_runtime.core.outcome import Aborted, Completed, Failed, PhaseSeconds
from stage_runtime.metrics import Metrics
from support.builders import EngineBuilder, a_request, some_requests, tick_out
from support.scripted import ManualClock, pixel

Samples = Mapping[tuple[str, str], float]


def samples(metrics: Metrics) -> Samples:
    """Each sample by its name and the labels beside `stage`, joined."""
    return {
        (sample.name, ",".join(v for k, v in sorted(sample.labels.items()) if k != "stage")): sample.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
    }


def quantile(q: float, buckets: Sequence[tuple[float, float]]) -> float:
    """As Prometheus' histogram_quantile: linear within the rank's bucket. `buckets`: bound, cumulated count."""
    rank = q * buckets[-1][1]
    lower, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    raise AssertionError("the last bucket holds all")


def buckets_of(metrics: Metrics, name: str) -> list[tuple[float, float]]:
    return sorted(
        (float(label.split(",")[0]), value)
        for (n, label), value in samples(metrics).items()
        if n == f"{name}_bucket"
    )


@pytest.mark.parametrize("q", [0.5, 0.99])
@pytest.mark.parametrize("true_s", [0.1, 0.13, 0.9, 1.0, 3.7, 10.0, 61.0, 299.9, 300.0, 655.0, 900.0])
def test_a_quantile_is_within_ten_percent_even_when_all_requests_took_alike(true_s: float, q: float) -> None:
    """Case B95."""
    metrics = Metrics("test")
    for _ in range(100):
        metrics.on_ended(Completed("a", pixel(0), 1), true_s)
    assert quantile(q, buckets_of(metrics, "omnistage_request_seconds")) == pytest.approx(true_s, rel=0.10)


def test_quantiles_of_mixed_work_are_within_ten_percent() -> None:
    chance, metrics = random.Random(0), Metrics("test")
    durations = sorted(math.exp(chance.uniform(math.log(0.02), math.log(900))) for _ in range(20_000))
    for seconds in durations:
        metrics.on_started(seconds)
    buckets = buckets_of(metrics, "omnistage_queue_seconds")
    for q in (0.5, 0.9, 0.99):
        assert quantile(q, buckets) == pytest.approx(durations[int(q * len(durations))], rel=0.10)


def test_the_phases_of_a_completed_output_are_told_apart() -> None:
    metrics = Metrics("test")
    metrics.on_ended(Completed("a", pixel(0), 10, PhaseSeconds(prepare=0.3, denoise=1.0, decode=0.5)), 3.8)
    seen = samples(metrics)
    phases = {name: seen["omnistage_phase_seconds_sum", name] for name in ("prepare", "denoise", "decode")}
    assert phases == {"prepare": 0.3, "denoise": 1.0, "decode": 0.5}


def test_waves_queues_and_ends_are_measured_by_the_engines_clock() -> None:
    clock, metrics = ManualClock(), Metrics("test")
    engine, executor = EngineBuilder().slots(2).clock(clock, step_s=0.5).loaded()
    engine.observe(metrics)
    streams = engine.add(some_requests("abc", steps=4))
    executor.fail("b", RuntimeError("NaN"), at_step=2)
    clock.advance(2.0)
    tick_out(engine)
    late = engine.add([a_request("d")])
    late[0].close()
    seen = samples(metrics)
    assert {
        outcome: seen["omnistage_requests_total", outcome] for outcome in ("completed", "failed", "aborted")
    } == {
        "completed": 2,
        "failed": 1,
        "aborted": 1,
    }
    # a and b waited 2 s; c until a was done, 4 steps of 0.5 s later.
    assert (seen["omnistage_queue_seconds_count", ""], seen["omnistage_queue_seconds_sum", ""]) == (
        3,
        2 + 2 + 4,
    )
    # Two ran for 2 ticks, a alone for 2, then c alone for 4.
    assert (seen["omnistage_wave_size_count", ""], seen["omnistage_wave_size_sum", ""]) == (8, 10)
    assert seen["omnistage_step_seconds_sum", ""] == 8 * 0.5
    assert seen["omnistage_request_seconds_sum", "completed"] == (2 + 2) + (4 + 2)
    assert seen["omnistage_request_seconds_sum", "failed"] == 2 + 1
    assert [stream.ended for stream in streams] == [True] * 3


def test_a_failure_is_counted_under_its_reason_and_an_unknown_one_under_other() -> None:
    metrics = Metrics("test")
    for code in ("out_of_memory", "engine_hung", "not_a_code_of_ours"):
        metrics.on_ended(Failed("a", "why", code=code), 1.0)
    seen = samples(metrics)
    counted = {r: n for (name, r), n in seen.items() if name == "omnistage_failures_total" and n}
    assert counted == {"out_of_memory": 1, "engine_hung": 1, "other": 1}


def test_an_answer_of_any_status_makes_no_series_of_its_own() -> None:
    metrics = Metrics("test")
    before = set(samples(metrics))
    for status in range(100, 600):
        metrics.on_answered(status)
    seen = samples(metrics)
    assert set(seen) == before
    assert sum(value for (name, _), value in seen.items() if name == "omnistage_answers_total") == 500


def test_warm_up_leaves_no_trace() -> None:
    metrics = Metrics("test")
    engine = EngineBuilder().warmup(a_request("warm-up")).build()
    engine.observe(metrics)
    before = samples(metrics)
    engine.load()
    assert samples(metrics) == before


def test_what_is_refused_by_a_full_line_is_not_counted_by_the_engine() -> None:
    metrics = Metrics("test")
    engine, _ = EngineBuilder().queue(1).loaded()
    engine.observe(metrics)
    held = engine.add([a_request("a")])
    with pytest.raises(AdmissionFull):
        engine.add([a_request("b")])
    metrics.on_rejected(1)
    held[0].close()
    seen = samples(metrics)
    assert (seen["omnistage_requests_total", "rejected"], seen["omnistage_requests_total", "aborted"]) == (
        1,
        1,
    )


def test_two_stages_in_one_process_keep_apart_and_one_may_be_built_again() -> None:
    """Case B98."""
    first, second = Metrics("first"), Metrics("second")
    first.on_ended(Aborted("a"), 1.0)
    again = Metrics("first")
    assert samples(first)["omnistage_requests_total", "aborted"] == 1
    assert samples(second)["omnistage_requests_total", "aborted"] == 0
    assert samples(again)["omnistage_requests_total", "aborted"] == 0
    assert b'stage="second"' in second.exposition()


def test_every_metric_is_ours_and_says_its_unit() -> None:
    for family in text_string_to_metric_families(Metrics("test").exposition().decode()):
        assert family.name.startswith("omnistage_")
        assert family.documentation
        if "Time" in family.documentation:
            assert family.name.endswith("_seconds")
