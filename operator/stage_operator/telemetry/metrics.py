"""Every metric of the operator, in one file: names, units, buckets, labels.

Times are seconds. Label values come from closed sets, but for the two of a stage itself, whose series go with it.
Gauges are read from their source at each scrape, so they can't lag behind it.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stage_operator.telemetry.stage_series import items, mapping, per_stage, ranks, text
from stage_operator.values import Manifest

PREFIX: Final = "omnistage_operator_"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MOST_STAGES: Final = 2000
"""Beyond so many stages none has series of its own."""

_WORK_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_RECOVERY_BUCKETS: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_NONE: Final = "none"


class Readings(Protocol):
    """Where the gauges come from."""

    def stages(self) -> Iterable[Manifest]:
        """Every stage."""

    def sizes(self) -> Mapping[str, int]:
        """Objects in the cache, by kind."""

    def depth(self) -> int:
        """Stages in the line."""

    def oldest_s(self) -> float:
        """How long the first in the line has waited."""

    def failing(self) -> int:
        """Stages whose last reconcile failed."""

    def leads(self) -> bool:
        """Whether this replica acts."""

    def lag_s(self) -> float:
        """How late the event loop was last."""


class Metrics:
    """Counters and histograms, each told of what happened."""

    def __init__(self, version: str) -> None:
        self._registry = CollectorRegistry()
        self._reconciles = self._counter("reconcile", "Reconciles of stages.", "result")
        self._reconcile_s = self._histogram("reconcile_duration_seconds", "Time of a reconcile.")
        self._waited_s = self._histogram("queue_latency_seconds", "Time that a stage waited for its turn.")
        self._requests = self._counter(
            "api_requests", "Requests to the API server; code 0 is no answer.", "verb", "resource", "code"
        )
        self._request_s = self._histogram(
            "api_request_duration_seconds", "Time of a request to the API server.", "verb"
        )
        self._throttled_s = self._counter(
            "api_throttled_seconds", "Time that requests waited for their turn."
        )
        self._status_writes = self._counter("status_writes", "Statuses written.", "result")
        self._watch_restarts = self._counter(
            "watch_restarts", "Watches that began anew with a list.", "resource", "reason"
        )
        self._ghosts = self._counter(
            "cache_ghosts_dropped", "Objects whose deletion no watch told of.", "resource"
        )
        self._resync_s = self._histogram("resync_duration_seconds", "Time to list everything of a kind.")
        self._restarts = self._counter("group_restarts", "Replicas that began another life.", "reason")
        self._cleared_s = self._histogram(
            "group_restart_detect_seconds",
            "From the news of a replica's end to its evidence stored and its pods asked to go.",
        )
        self._recovery_s = self._histogram(
            "group_recovery_seconds",
            "From a replica's end to all of the stage serving.",
            buckets=_RECOVERY_BUCKETS,
        )
        self._force_deletes = self._counter("force_deletes", "Pods deleted without their node's word.")
        self._leaderships = self._counter("leaderships", "Times that this replica began to lead.")
        self._events = self._counter("events_posted", "Events told to people.", "type", "reason")
        info = Gauge(f"{PREFIX}build_info", "1, with the version.", ("version",), registry=self._registry)
        info.labels(version).set(1)
        ProcessCollector(registry=self._registry)

    def watch(self, readings: Readings) -> None:
        """Show the gauges too."""
        self._registry.register(_Live(readings))

    def text(self) -> bytes:
        """What a scrape gets."""
        return generate_latest(_Shown(self._registry))

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A request to the API server was answered, or not (code 0)."""
        self._requests.labels(verb, resource, str(code)).inc()
        self._request_s.labels(verb).observe(seconds)

    def throttled(self, seconds: float) -> None:
        """A request waited for its turn."""
        self._throttled_s.inc(seconds)

    def reconciled(self, result: str, seconds: float) -> None:
        """A stage was worked on."""
        self._reconciles.labels(result).inc()
        self._reconcile_s.observe(seconds)

    def waited(self, seconds: float) -> None:
        """A stage's turn came after so long."""
        self._waited_s.observe(seconds)

    def status_written(self, result: str) -> None:
        """A status was stored, or not."""
        self._status_writes.labels(result).inc()

    def watch_restarted(self, resource: str, reason: str) -> None:
        """A watch could not go on where it was."""
        self._watch_restarts.labels(resource, reason).inc()

    def resynced(self, resource: str, ghosts: int, seconds: float) -> None:
        """A kind was listed."""
        self._resync_s.observe(seconds)
        if ghosts:
            self._ghosts.labels(resource).inc(ghosts)

    def group_restarted(self, reason: str, count: int) -> None:
        """Replicas began another life."""
        self._restarts.labels(reason).inc(count)

    def cleared(self, seconds: float) -> None:
        """What was left of a replica that ended has been asked to go."""
        self._cleared_s.observe(seconds)

    def recovered(self, seconds: float) -> None:
        """A stage serves again after a replica's end."""
        self._recovery_s.observe(seconds)

    def force_deleted(self) -> None:
        """A pod was deleted without its node's word."""
        self._force_deletes.inc()

    def took_lead(self) -> None:
        """This replica began to lead."""
        self._leaderships.inc()

    def told(self, type_: str, reason: str) -> None:
        """An event was told."""
        self._events.labels(type_, reason).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}{name}", text, labels, registry=self._registry)

    def _histogram(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = _WORK_BUCKETS
    ) -> Histogram:
        return Histogram(f"{PREFIX}{name}", text, labels, registry=self._registry, buckets=buckets)


class _Shown(CollectorRegistry):
    """A registry without the `_created` times that the library adds."""

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

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering reads nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Each family with this moment's values."""
        read = self._readings
        yield _gauge("leader", "1 where this replica acts.", float(read.leads()))
        yield _gauge("queue_depth", "Stages that wait for their turn.", read.depth())
        yield _gauge("queue_oldest_seconds", "How long the first of them has waited.", read.oldest_s())
        yield _gauge("failing_stages", "Stages whose last reconcile failed.", read.failing())
        yield _gauge("event_loop_lag_seconds", "How late the event loop was last.", read.lag_s())
        yield _by("cache_objects", "Objects in the cache.", "resource", read.sizes())
        stages = tuple(read.stages())
        statuses = [mapping(stage.get("status")) for stage in stages]
        yield _by(
            "stages",
            "Stages by phase.",
            "phase",
            Tally((text(status.get("phase")) or _NONE) for status in statuses),
        )
        replicas = Tally(
            text(mapping(replica).get("phase")) or _NONE
            for status in statuses
            for replica in items(status.get("replicaStatuses"))
        )
        yield _by("replicas", "Replicas by phase.", "phase", replicas)
        yield _by(
            "ranks", "Ranks of all stages; on most clusters an accelerator each.", "kind", ranks(stages)
        )
        if len(stages) <= MOST_STAGES:
            yield from per_stage(PREFIX, stages)


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}{name}", text)
    family.add_metric((), value)
    return family


def _by(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family
