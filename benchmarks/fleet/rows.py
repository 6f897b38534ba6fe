"""What was measured of a fleet, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from statistics import median

from benchmarks.fleet.failing import Failure
from benchmarks.fleet.operator_watched import Scrape, quantile_s, requests, writes
from benchmarks.fleet.sides import Fleet
from benchmarks.report import Row


@dataclass(slots=True)
class Rest:
    """The operator with nothing to do."""

    memory_mib: float
    cores: float
    writes: float
    """A second, by the operator's own count; without the Lease's."""
    server_writes: float
    """A second, by the API server's count for the kinds that a stage consists of, whoever wrote."""


@dataclass(slots=True)
class Measured:
    """All that was measured, round by round."""

    all_s: Callable[[], float]
    """CPU seconds so far of control plane, kwok, client and operator together."""
    operator: list[Fleet] = field(default_factory=list)
    bare: list[Fleet] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """The operator's in each of its rounds."""
    did: list[Scrape] = field(default_factory=list)
    """What its metrics say of each of its rounds."""
    rest: Rest | None = None
    failures: list[Failure] = field(default_factory=list)
    peak_mib: float = 0.0
    operator_all_s: list[float] = field(default_factory=list)
    bare_all_s: list[float] = field(default_factory=list)
    """CPU of everything in each round of a side."""

    @contextmanager
    def everything_in(self, rounds: list[float]) -> Iterator[None]:
        """Note there what CPU everything takes meanwhile."""
        before = self.all_s()
        yield
        rounds.append(self.all_s() - before)


def rows(measured: Measured, stages: int, rate: float) -> list[Row]:
    """One row a figure."""
    return [
        *_convergence(measured, f"{stages} stages at {rate:g} a second"),
        *_cost(measured, stages),
        *_recovery(measured.failures),
    ]


def _convergence(measured: Measured, what: str) -> list[Row]:
    ours, bare = measured.operator, measured.bare
    took, bare_took = [one.took_s() for one in ours], [one.took_s() for one in bare]
    found = [
        Row(
            what=f"{what}: first created to all Ready",
            value=median(took),
            unit="s",
            ratio=_ratio(took, bare_took),
            aim=1.25,
            details={"operator_s": took, "bare_s": bare_took},
        )
    ]
    for name, part in (("median", 0.5), ("p99", 0.99)):
        each = [quantile(one.each_s(), part) for one in ours]
        bare_each = [quantile(one.each_s(), part) for one in bare]
        details: dict[str, object] = {"operator_s": each, "bare_s": bare_each}
        what = f"… one stage, created to Ready, {name}"
        found.append(
            Row(what=what, value=median(each), unit="s", ratio=_ratio(each, bare_each), details=details)
        )
    return found


def _cost(measured: Measured, stages: int) -> list[Row]:
    did = measured.did
    together, bare = measured.operator_all_s, measured.bare_all_s
    reconcile = [1e3 * quantile_s(one, "reconcile_duration_seconds", 0.99) for one in did]
    found = [
        Row(what="operator: CPU a stage", value=1e3 * median(measured.cpu_s) / stages, unit="ms"),
        Row(
            what="… of all processes together",
            value=1e3 * median(together) / stages,
            unit="ms",
            ratio=_ratio(together, bare),
            details={"operator_s": together, "bare_s": bare},
        ),
        Row(
            what="operator: requests a stage",
            value=median(requests(one) for one in did) / stages,
            unit="",
            timed=False,
            details={"writes": [writes(one) / stages for one in did]},
        ),
        Row(what="operator: a reconcile, p99, at most", value=median(reconcile), unit="ms"),
        Row(
            what="operator: memory at its peak",
            value=measured.peak_mib,
            unit="MiB",
            aim=180,
            timed=False,
        ),
    ]
    if (rest := measured.rest) is not None:
        found += [
            Row(what="at rest: memory", value=rest.memory_mib, unit="MiB", aim=180, timed=False),
            Row(what="at rest: CPU", value=rest.cores, unit="cores"),
            Row(what="at rest: writes, but the Lease", value=rest.writes, unit="/s", aim=0, timed=False),
            Row(
                what="… by the API server's count, anybody's",
                value=rest.server_writes,
                unit="/s",
                timed=False,
            ),
        ]
    return found


def _recovery(failures: Sequence[Failure]) -> list[Row]:
    if not failures:
        return []
    found = []
    for what, seconds, aim in (
        ("a pod failed to 4 deletes seen", [one.deleted_s() for one in failures], 100),
        ("… to the next life's pods made", [one.made_s() for one in failures], None),
        ("… to all of them Ready", [one.ready_s() for one in failures], None),
    ):
        ordered = sorted(1e3 * each for each in seconds)
        details: dict[str, object] = {"failures": len(ordered), "most": ordered[-1]}
        for name, part in (("median", 0.5), ("p99", 0.99)):
            aimed = aim if part > 0.9 else None
            value = quantile(ordered, part)
            found.append(Row(what=f"{what}, {name}", value=value, unit="ms", aim=aimed, details=details))
    return found


def _ratio(ours: Sequence[float], bare: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return median(one / other for one, other in zip(ours, bare, strict=True))


def quantile(ordered: Sequence[float], part: float) -> float:
    """The least value that this part of them doesn't exceed."""
    return ordered[max(0, ceil(len(ordered) * part) - 1)]
