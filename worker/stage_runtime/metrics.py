"""Every metric of a stage, in one file: names, units, buckets, labels.

Times are seconds. Label values come from closed sets, so the number of series is fixed once a model is loaded.
Gauges are read from their source at each scrape, so they can't lag behind the load. A value that does not exist
yet is absent, not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stage_runtime.core.outcome import Aborted, Completed, Failed, PhaseSeconds, Terminal

ENDED: Final = tuple(kind.__name__.lower() for kind in (Completed, Aborted, Failed))
REJECTED: Final = "rejected"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_PER_DECADE: Final = 25
SECONDS_BUCKETS: Final = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.07),
    # From here each is at most 1.1 times the one before: a quantile read from them is within 10 % of the true one.
    *(float(f"{10 ** (k / _PER_DECADE):.3g}") for k in range(-_PER_DECADE, 3 * _PER_DECADE + 1)),
    *(1200.0, 1500.0, 1800.0),
)
WAVE_BUCKETS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class Load(Protocol):
    """How busy the engine is, at one moment."""

    @property
    def waiting(self) -> int:
        """Outputs that wait for a slot."""

    @property
    def running(self) -> int:
        """Outputs that take a slot."""

    @property
    def oldest_age_s(self) -> float:
        """Seconds since the head of the line arrived; 0 when nobody waits."""

    @property
    def outstanding_cost(self) -> int:
        """Row-step-pixels still to compute."""


class Readings(Protocol):
    """What is read at each scrape."""

    def load(self) -> Load:
        """How busy the engine is now."""

    def ticks(self) -> int:
        """Turns of the engine's loop so far."""

    def outstanding(self) -> Mapping[str, int]:
        """What is held for requests, by kind; all 0 at rest. The runner's kinds are absent within a long tick."""

    def phases(self) -> Mapping[str, bool]:
        """Every phase of a stage's life, True for the present one."""

    def model(self) -> Mapping[str, str] | None:
        """Labels that describe the loaded model; None before it is loaded."""


class Metrics:
    """The metrics of one stage, in a registry of their own: several may live in one process.

    Counters and histograms may be moved from any thread.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._registry = CollectorRegistry()
        self._wave_size = self._histogram(
            "wave_size", "Requests that ran together in one wave.", WAVE_BUCKETS
        )
        self._step = self._histogram("step_seconds", "Time of one tick of a wave, about one denoise step.")
        self._queue = self._histogram("queue_seconds", "Time from an output's admission to its first wave.")
        self._encode = self._histogram("encode_seconds", "Time from pixels to an image file, with its wait.")
        phase = Histogram(
            "omnistage_phase_seconds",
            "Time on the device of a completed output, by what it was spent on.",
            ("stage", "phase"),
            registry=self._registry,
            buckets=SECONDS_BUCKETS,
        )
        self._phase = {name: phase.labels(stage, name) for name in PhaseSeconds.__struct_fields__}
        request = Histogram(
            "omnistage_request_seconds",
            "Time from an output's admission to its end.",
            ("stage", "outcome"),
            registry=self._registry,
            buckets=SECONDS_BUCKETS,
        )
        total = Counter(
            "omnistage_requests",
            "Outputs that ended, or that were refused at the door.",
            ("stage", "outcome"),
            registry=self._registry,
        )
        self._request = {outcome: request.labels(stage, outcome) for outcome in ENDED}
        self._total = {outcome: total.labels(stage, outcome) for outcome in (*ENDED, REJECTED)}

    def watch(self, readings: Readings) -> None:
        """Show the gauges that `readings` gives, from the next scrape on. Called once."""
        self._registry.register(_Live(self._stage, readings))

    def on_wave(self, size: int, steps: int, seconds: float) -> None:
        """A tick advanced `size` requests by `steps` steps each, in `seconds`."""
        self._wave_size.observe(size)
        if steps:
            self._step.observe(seconds / steps)

    def on_started(self, queue_s: float) -> None:
        """An output entered its first wave, `queue_s` after it was admitted."""
        self._queue.observe(queue_s)

    def on_ended(self, outcome: Terminal, seconds: float) -> None:
        """An output ended, `seconds` after it was admitted."""
        name = type(outcome).__name__.lower()
        self._total[name].inc()
        self._request[name].observe(seconds)
        if isinstance(outcome, Completed) and outcome.phases is not None:
            for phase, histogram in self._phase.items():
                histogram.observe(getattr(outcome.phases, phase))

    def on_rejected(self, count: int) -> None:
        """`count` outputs were refused at the door: the line was full, or the stage does not admit."""
        self._total[REJECTED].inc(count)

    def on_encoded(self, seconds: float) -> None:
        """An image file was made."""
        self._encode.observe(seconds)

    def exposition(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(_Shown(self._registry))

    def _histogram(self, name: str, text: str, buckets: Iterable[float] = SECONDS_BUCKETS) -> Histogram:
        family = Histogram(
            f"omnistage_{name}", text, ("stage",), registry=self._registry, buckets=tuple(buckets)
        )
        return family.labels(self._stage)


class _Shown(CollectorRegistry):
    """A registry without the `_created` times that the library adds: the process's own start tells as much."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Each family, its times of creation left out."""
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class _Live(Collector):
    """The gauges, read when they are asked for."""

    def __init__(self, stage: str, readings: Readings) -> None:
        self._stage = stage
        self._readings = readings

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering doesn't read a source that may not be up yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Each family with this moment's values."""
        load = self._readings.load()
        yield self._gauge("requests_waiting", "Outputs that wait for a slot.", load.waiting)
        yield self._gauge("requests_running", "Outputs that take a slot.", load.running)
        yield self._gauge(
            "oldest_waiting_age_seconds", "Time since the head of the line arrived.", load.oldest_age_s
        )
        yield self._gauge("outstanding_cost", "Row-step-pixels still to compute.", load.outstanding_cost)
        yield self._by(
            "outstanding", "kind", "What is held for requests; 0 at rest.", self._readings.outstanding()
        )
        yield self._by("phase", "phase", "1 for the present phase of life.", self._readings.phases())
        ticks = CounterMetricFamily("omnistage_ticks", "Turns of the engine's loop.", labels=("stage",))
        ticks.add_metric((self._stage,), self._readings.ticks())
        yield ticks
        if (model := self._readings.model()) is not None:
            info = GaugeMetricFamily("omnistage_model_info", "The loaded model.", labels=("stage", *model))
            info.add_metric((self._stage, *model.values()), 1)
            yield info

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"omnistage_{name}", text, labels=("stage",))
        family.add_metric((self._stage,), value)
        return family

    def _by(self, name: str, label: str, text: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(f"omnistage_{name}", text, labels=("stage", label))
        for key, value in values.items():
            family.add_metric((self._stage, key), value)
        return family
