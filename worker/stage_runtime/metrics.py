"""Every metric of a stage, in one file: names, units, buckets, labels.

Times are seconds. Label values come from closed sets, so the number of series is fixed once a model is loaded.
Gauges are read from their source at each scrape, so they can't lag behind the load. A value that does not exist
yet is absent, not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stage_runtime.core import errors
from stage_runtime.core.outcome import Aborted, Completed, Failed, PhaseSeconds, Terminal

ENDED: Final = tuple(kind.__name__.lower() for kind in (Completed, Aborted, Failed))
REJECTED: Final = "rejected"
OTHER: Final = "other"
FAILURES: Final = tuple(
    kind.code
    for kind in (
        errors.InvalidRequest,
        errors.NotAdmitting,
        errors.OutOfMemory,
        errors.RequestFailed,
        errors.NonFiniteOutput,
        errors.EngineDeadError,
        errors.EngineHung,
        errors.DeviceLost,
        errors.StageError,
    )
)
ANSWERS: Final = ("200", "400", "404", "405", "408", "413", "429", "499", "500", "503", "507")
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

    @property
    def materialising(self) -> int:
        """Outputs that are computed and on their way to host memory."""

    @property
    def blocked_slots(self) -> int:
        """Slots that stay empty because the head of the line can't share a wave with what runs."""

    @property
    def capacity(self) -> int:
        """Slots there are."""

    @property
    def queue_limit(self) -> int:
        """Most outputs that may wait."""


class Tick(Protocol):
    """How far the engine's loop is."""

    @property
    def tick(self) -> int:
        """Turns so far."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the present turn, or the loading, began; 0 while idle."""

    @property
    def limit_s(self) -> float | None:
        """Seconds after which it counts as hung; None while idle."""


class Rank(Protocol):
    """What one rank said of itself."""

    @property
    def rank(self) -> int:
        """Which one."""

    @property
    def allocated_bytes(self) -> int:
        """Device memory of weights and tensors."""

    @property
    def paused(self) -> bool:
        """Whether it was told to pause."""


class Readings(Protocol):
    """What is read at each scrape."""

    def load(self) -> Load:
        """How busy the engine is now."""

    def progress(self) -> Tick:
        """How far the engine's loop is."""

    def world(self) -> Mapping[str, int]:
        """What was given to this life of the replica: `epoch` and `world_size`."""

    def ranks(self) -> Sequence[Rank]:
        """What the ranks said of themselves; nothing within a long tick."""

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
        self._failures = self._counters("failures", "Outputs that failed, by why.", "reason", FAILURES)
        self._answers = self._counters("answers", "HTTP answers but to probes, by status.", "code", ANSWERS)

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
        if isinstance(outcome, Failed):
            self._failures.get(outcome.code, self._failures[OTHER]).inc()
        if isinstance(outcome, Completed) and outcome.phases is not None:
            for phase, histogram in self._phase.items():
                histogram.observe(getattr(outcome.phases, phase))

    def on_rejected(self, count: int) -> None:
        """`count` outputs were refused at the door: the line was full, or the stage does not admit."""
        self._total[REJECTED].inc(count)

    def on_answered(self, status: int) -> None:
        """An HTTP request that is no probe was answered, or its client left (499)."""
        self._answers.get(str(status), self._answers[OTHER]).inc()

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

    def _counters(self, name: str, text: str, label: str, values: Iterable[str]) -> dict[str, Counter]:
        """One for each of `values`, there from the start, and one for whatever is none of them."""
        family = Counter(f"omnistage_{name}", text, ("stage", label), registry=self._registry)
        return {value: family.labels(self._stage, value) for value in (*values, OTHER)}


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
        yield from self._of_load(self._readings.load())
        yield from self._of_loop(self._readings.progress())
        yield from self._of_ranks(self._readings.world(), self._readings.ranks())
        yield self._by(
            "outstanding", "kind", "What is held for requests; 0 at rest.", self._readings.outstanding()
        )
        yield self._by("phase", "phase", "1 for the present phase of life.", self._readings.phases())
        if (model := self._readings.model()) is not None:
            info = GaugeMetricFamily("omnistage_model_info", "The loaded model.", labels=("stage", *model))
            info.add_metric((self._stage, *model.values()), 1)
            yield info

    def _of_load(self, load: Load) -> Iterator[Metric]:
        yield self._gauge("requests_waiting", "Outputs that wait for a slot.", load.waiting)
        yield self._gauge("requests_running", "Outputs that take a slot.", load.running)
        yield self._gauge(
            "requests_materialising",
            "Outputs that are computed and on their way to host memory.",
            load.materialising,
        )
        yield self._gauge(
            "oldest_waiting_age_seconds", "Time since the head of the line arrived.", load.oldest_age_s
        )
        yield self._gauge("outstanding_cost", "Row-step-pixels still to compute.", load.outstanding_cost)
        yield self._gauge("slots", "Outputs that may run together.", load.capacity)
        yield self._gauge(
            "slots_blocked",
            "Slots that stay empty since the head of the line can't share a wave with what runs.",
            load.blocked_slots,
        )
        yield self._gauge("queue_limit", "Most outputs that may wait; more are refused.", load.queue_limit)

    def _of_loop(self, tick: Tick) -> Iterator[Metric]:
        ticks = CounterMetricFamily("omnistage_ticks", "Turns of the engine's loop.", labels=("stage",))
        ticks.add_metric((self._stage,), tick.tick)
        yield ticks
        yield self._gauge(
            "tick_elapsed_seconds",
            "Time since the present turn, or the loading, began; 0 while idle.",
            tick.elapsed_s,
        )
        if tick.limit_s is not None:
            yield self._gauge(
                "tick_limit_seconds", "Time after which the present turn counts as hung.", tick.limit_s
            )

    def _of_ranks(self, world: Mapping[str, int], ranks: Sequence[Rank]) -> Iterator[Metric]:
        yield self._gauge("world_size", "Ranks of the replica.", world["world_size"])
        yield self._gauge("epoch", "Which of its replica's lives this is, from 0.", world["epoch"])
        if ranks:
            yield self._by(
                "rank_memory_bytes",
                "rank",
                "Device memory of weights and tensors; on a CPU of the weights.",
                {str(one.rank): one.allocated_bytes for one in ranks},
            )
            yield self._gauge("paused", "1 while the stage is told to pause.", any(r.paused for r in ranks))

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"omnistage_{name}", text, labels=("stage",))
        family.add_metric((self._stage,), value)
        return family

    def _by(self, name: str, label: str, text: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(f"omnistage_{name}", text, labels=("stage", label))
        for key, value in values.items():
            family.add_metric((self._stage, key), value)
        return family
