"""A fleet of stages on a real API server with played nodes: what the operator takes for it. `make fleet` runs it.

The operator runs as a process beside the API server, controllers, scheduler and kwok, and shares the machine with
them. Rounds take turns: stages that the operator sees to, and a bare client that makes the same objects.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import machine, report
from benchmarks.fleet import ground
from benchmarks.fleet.failing import failures
from benchmarks.fleet.operator_watched import WatchedOperator, parse, since, total, writes
from benchmarks.fleet.rows import Measured, Rest, rows
from benchmarks.fleet.sides import BareSide, OperatorSide
from stage_operator.client.connection import configure
from stage_operator.client.kube import Kube
from stage_operator.client.rate import Bucket
from stage_operator.telemetry.metrics import Metrics

NAMESPACE: Final = f"fleet-{os.getpid()}"
BARE: Final = f"{NAMESPACE}-bare"
QPS: Final = 500.0
BURST: Final = 1000
SETTLE_S: Final = 2.0
"""Then nothing is left to be told of a fleet that is there."""
CALM_S: Final = 300.0
CALM_FOR_S: Final = 5.0
CALM_WRITES: Final = 2.0
"""In a second: what controllers write anyhow."""
LOGS: Final = ground.ROOT / "build" / "fleet"
_OF_STAGES: Final = frozenset(
    {
        *("diffusionstages", "pods", "configmaps", "services", "serviceaccounts", "secrets"),
        *("poddisruptionbudgets", "networkpolicies", "events"),
    }
)
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table."""
    asked = _parse(arguments)
    LOGS.mkdir(parents=True, exist_ok=True)
    facts = machine.describe()
    print(
        "machine: " + ", ".join(f"{name} {facts[name]}" for name in ("cpu", "cores", "memory_gib", "python"))
    )
    try:
        with ground.ground(LOGS):
            watch = machine.LoadWatch(ground.machinery())
            measured = asyncio.run(_measure(asked, watch))
            load = watch.so_far()
    except RuntimeError as error:
        print(f"it was not measured: {error}", file=sys.stderr)
        return 1
    found = rows(measured, asked.stages, asked.rate)
    for row in found:
        row.load = load
    print(f"\n{report.table(found, verdicts=not asked.quick)}")
    print(f"\nprocesses that are no part of this kept {load.others_cores:.2f} cores busy")
    if asked.json is not None:
        report.write_json(asked.json, found, machine=facts, stages=asked.stages, rate=asked.rate)
    return 0


async def _measure(asked: argparse.Namespace, watch: machine.LoadWatch) -> Measured:
    measured = Measured(watch.own_s)
    for namespace in (NAMESPACE, BARE):
        ground.make_namespace(namespace)
    bucket = Bucket(QPS, BURST, time.monotonic())
    kube = Kube(
        await configure(os.environ["KUBECONFIG"], streams=0), Metrics("benchmark"), bucket, time.monotonic
    )
    try:
        with WatchedOperator(NAMESPACE, LOGS / "operator.log") as operator:
            ours, bare = OperatorSide(kube, NAMESPACE), BareSide(kube, BARE)
            await _warm(ours, bare)
            for index in range(asked.rounds):
                stages = [f"r{index}-{number:04d}" for number in range(asked.stages)]
                # In turn, but ours is the last, so that its fleet is there for what follows.
                if (asked.rounds - index) % 2:
                    await _bare_round(bare, stages, asked.rate, measured)
                    await _operator_round(ours, operator, stages, asked.rate, measured)
                else:
                    await _operator_round(ours, operator, stages, asked.rate, measured)
                    ours.wipe()
                    await _bare_round(bare, stages, asked.rate, measured)
            measured.rest = await _rest(operator, asked.rest)
            _say(f"… {measured.rest}")
            _say(f"{asked.failures} failures")
            measured.failures = await failures(kube, NAMESPACE, stages[: asked.failures])
            measured.peak_mib = operator.peak_mib()
    finally:
        await kube.close()
        for namespace in (NAMESPACE, BARE):
            ground.kubectl("delete", "namespace", namespace, "--wait=false")
    return measured


async def _warm(ours: OperatorSide, bare: BareSide) -> None:
    """Both sides once, and a look whether they make the same. Raises: RuntimeError."""
    await ours.converge(["warm"], 1)
    await ours.check("warm")
    await bare.converge(["warm"], 1)
    ours.wipe()
    bare.wipe()


async def _operator_round(
    side: OperatorSide, operator: WatchedOperator, stages: Sequence[str], rate: float, measured: Measured
) -> None:
    await _calm()
    _say(f"the operator: {len(stages)} stages, {rate:g} a second")
    cpu_s, before = operator.cpu_s(), operator.scrape()
    with measured.everything_in(measured.operator_all_s):
        measured.operator.append(await side.converge(stages, rate))
        await asyncio.sleep(SETTLE_S)
    measured.cpu_s.append(operator.cpu_s() - cpu_s)
    measured.did.append(since(before, operator.scrape()))
    _say(f"… {measured.operator[-1].took_s():.1f} s, {operator.memory_mib():.0f} MiB")


async def _bare_round(side: BareSide, stages: Sequence[str], rate: float, measured: Measured) -> None:
    await _calm()
    _say(f"a bare client: {len(stages)} stages, {rate:g} a second")
    with measured.everything_in(measured.bare_all_s):
        measured.bare.append(await side.converge(stages, rate))
        await asyncio.sleep(SETTLE_S)
    _say(f"… {measured.bare[-1].took_s():.1f} s")
    side.wipe()


async def _rest(operator: WatchedOperator, for_s: float) -> Rest:
    await _calm()
    _say(f"at rest for {for_s:g} s")
    began, cpu_s = time.monotonic(), operator.cpu_s()
    own, server = operator.scrape(), _server_writes()
    await asyncio.sleep(for_s)
    passed = time.monotonic() - began
    return Rest(
        memory_mib=operator.memory_mib(),
        cores=(operator.cpu_s() - cpu_s) / passed,
        writes=writes(since(own, operator.scrape())) / passed,
        server_writes=(_server_writes() - server) / passed,
    )


def _server_writes(*, of_stages: bool = True) -> float:
    """How much was written of the kinds that a stage consists of, or of all but Leases, whoever wrote."""

    def counts(labels: Mapping[str, str]) -> bool:
        resource = labels["resource"]
        known = resource in _OF_STAGES if of_stages else resource != "leases"
        return known and labels["verb"] in _WRITES

    text = ground.kubectl("get", "--raw", "/metrics")
    return total(parse(text, "apiserver_request_"), "total", counts)


async def _calm() -> None:
    """Wait until the cluster has done with what was before, so that no round pays for another."""
    deadline = time.monotonic() + CALM_S
    calm_since = time.monotonic()
    written = _server_writes(of_stages=False)
    while time.monotonic() < calm_since + CALM_FOR_S:
        await asyncio.sleep(1)
        if time.monotonic() > deadline:
            raise RuntimeError(f"the cluster is still at work after {CALM_S:g} s")
        now = _server_writes(of_stages=False)
        if now - written > CALM_WRITES:
            calm_since = time.monotonic()
        written = now


def _say(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=1000, help="how many; each is four pods")
    parser.add_argument("--rate", type=float, default=10, help="how many are begun a second")
    parser.add_argument("--rounds", type=int, default=2, help="of both sides")
    parser.add_argument("--rest", type=float, default=60, help="seconds to look at the operator at rest")
    parser.add_argument("--failures", type=int, default=200, help="pods that fail, one a stage")
    parser.add_argument("--quick", action="store_true", help="20 stages; its times say nothing")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write everything there, too")
    asked = parser.parse_args(arguments)
    if asked.quick:
        asked.stages, asked.rounds, asked.rest, asked.failures = 20, 1, 5.0, 5
    asked.failures = min(asked.failures, asked.stages)
    return asked
