"""From the death of a rank to a new life: how long each step takes, on a cluster where a stage serves.

    python -m benchmarks recovery NAMESPACE/STAGE [--times 10]

Takes KUBECONFIG, kubectl, and a stage of one replica whose policy restarts it at once (failurePolicy.resetAfterSeconds
has passed). Times are by this machine's clock, from when a watch told of a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any, Final

from benchmarks.fleet.sightings import watching
from stage_api import names
from stage_operator.client.connection import configure
from stage_operator.client.kube import PODS

LIMIT_S: Final = 180.0
LOOK_S: Final = 0.05
STEPS: Final = ("exit", "deletes", "pods", "ready")
TOLD: Final = {
    "exit": "the kill to the container's end",
    "deletes": "its end to the deletes",
    "pods": "the deletes to the pods of the next life",
    "ready": "these pods to Ready",
}
KILL: Final = (
    "import os, pathlib, signal\n"
    "for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
    "    if b'stage_runtime.rank' in path.read_bytes():\n"
    "        print(flush=True)\n"
    "        os.kill(int(path.parent.name), signal.SIGKILL)\n"
    "        break\n"
)
"""Needs one rank as a process of its own, as it is by default."""

Manifest = dict[str, Any]


@dataclass(slots=True)
class Life:
    """One life of the replica: when each step of it was told."""

    at: dict[str, float] = field(default_factory=dict)

    def see(self, pod: Manifest, at_s: float) -> None:
        """Take in an event of one of its pods."""
        metadata, status = pod["metadata"], pod.get("status", {})
        self.at.setdefault("pods", at_s)
        states = [one.get("state", {}) for one in status.get("containerStatuses", ())]
        if any("terminated" in state for state in states):
            self.at.setdefault("exit", at_s)
        if "deletionTimestamp" in metadata:
            self.at.setdefault("deletes", at_s)
        if any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ())):
            self.at.setdefault("ready", at_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("stage", metavar="NAMESPACE/STAGE")
    parser.add_argument("--times", type=int, default=10)
    asked = parser.parse_args(arguments)
    namespace, _, stage = asked.stage.partition("/")
    took = asyncio.run(_measure(namespace, stage, asked.times))
    print(f"{asked.times} times; load average {os.getloadavg()[1]:.1f} over the last five minutes")
    for step in STEPS:
        row = sorted(one[step] for one in took)
        print(f"{TOLD[step]:<44} {median(row):6.2f} s  ({row[0]:.2f}-{row[-1]:.2f})")
    for what, steps in (("the end to the next life's pods", STEPS[1:3]), ("the end to Ready", STEPS[1:])):
        row = sorted(sum(one[step] for step in steps) for one in took)
        print(f"{what:<44} {median(row):6.2f} s  ({row[0]:.2f}-{row[-1]:.2f})")
    return 0


async def _measure(namespace: str, stage: str, times: int) -> list[dict[str, float]]:
    lives: dict[int, Life] = {}

    def see(_: str, pod: Manifest, at_s: float) -> None:
        labels = pod["metadata"].get("labels", {})
        if labels.get(names.LABEL_STAGE) == stage:
            lives.setdefault(int(labels[names.LABEL_EPOCH]), Life()).see(pod, at_s)

    took = []
    async with watching(await configure(None, streams=1), PODS, namespace, see):
        epoch = _stage(namespace, stage)["status"]["replicaStatuses"][0]["epoch"]
        for _ in range(times):
            killed_s = await _kill(namespace, names.pod_name(stage, 0, epoch, 0))
            await _until(lambda now=epoch + 1: "ready" in lives.get(now, Life()).at)  # type: ignore[misc]
            took.append(_steps(killed_s, lives[epoch], lives[epoch + 1]))
            sys.stderr.write(f"{took[-1]}\n")
            epoch += 1
            await _until(lambda now=epoch: _may_fail_again(namespace, stage, now))  # type: ignore[misc]
    return took


def _steps(killed_s: float, last: Life, following: Life) -> dict[str, float]:
    at = [killed_s, *(last.at[step] for step in STEPS[:2]), *(following.at[step] for step in STEPS[2:])]
    return {step: after - before for step, before, after in zip(STEPS, at, at[1:], strict=False)}


def _may_fail_again(namespace: str, stage: str, epoch: int) -> bool:
    """Whether the replica has served long enough that its next failure is the first one again."""
    found = _stage(namespace, stage)
    replica = found["status"]["replicaStatuses"][0]
    served = replica.get("readyAt")
    if replica["epoch"] != epoch or served is None:
        return False
    age_s = time.time() - datetime.fromisoformat(served).timestamp()
    return bool(age_s > found["spec"]["failurePolicy"]["resetAfterSeconds"] + 1)


def _stage(namespace: str, stage: str) -> Manifest:
    return dict(json.loads(_kubectl(namespace, "get", names.PLURAL, stage, "-o", "json")))


async def _kill(namespace: str, pod: str) -> float:
    """Kill the pod's rank; when that was."""
    command = ["kubectl", f"--namespace={namespace}", "exec", pod, "--", "python", "-c", KILL]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    if not await process.stdout.readline():
        raise RuntimeError(f"there is no rank in {pod}")
    killed_s = time.monotonic()
    await process.wait()
    return killed_s


async def _until(condition: Any) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"no new life within {LIMIT_S:.0f} s")
        await asyncio.sleep(LOOK_S)


def _kubectl(namespace: str, *args: str) -> str:
    command = ["kubectl", f"--namespace={namespace}", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
