"""An operator's metrics in a process of their own, for a Prometheus to scrape.

A stage in memory starts, loses a rank again and again, and comes back each time. The real plan decides on it, so its
status, and what is read from it, is real; what the effects would count, this program counts for them. It takes its
port as argument, prints it once it listens, and ends when its input does.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Final

from stage_operator.telemetry.health import HealthServer, Heart, Pulse
from stage_operator.telemetry.metrics import Metrics
from stage_operator.values import Manifest
from support.sim_cluster import SimCluster, stage
from support.sim_operator import SimOperator

TURN_S: Final = 0.2
TURNS_OF_A_LIFE: Final = 10


class House:
    """The stage, its operator, and the gauges of both."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._cluster = SimCluster(stage(replicas=2, failurePolicy={"maxRestarts": 50}))
        self._operator = SimOperator(self._cluster)
        self.heart = Heart()
        self._turns = 0

    def stages(self) -> Iterable[Manifest]:
        return (self._cluster.stage,)

    def sizes(self) -> Mapping[str, int]:
        return {"Pod": len(self._cluster.pods), "Node": len(self._cluster.nodes)}

    def depth(self) -> int:
        return 0

    def oldest_s(self) -> float:
        return 0.0

    def failing(self) -> int:
        return 0

    def leads(self) -> bool:
        return True

    def lag_s(self) -> float:
        return self.heart.lag_s

    def turn(self) -> None:
        """One turn of the stage; now and then a rank ends."""
        began_s = time.monotonic()
        self._operator.see_all()
        made = self._operator.turn()
        self._cluster.come_up()
        self._cluster.now_s += 10
        self._turns += 1
        if self._turns % TURNS_OF_A_LIFE == 0 and self._cluster.pods:
            self._cluster.exit(next(iter(self._cluster.pods)), 70, "rank 0 was killed")
            self._metrics.group_restarted("RankDied", 1)
            self._metrics.cleared(0.02)
            self._metrics.recovered(4.0)
        for action in made.actions:
            self._metrics.request("create", type(action).__name__, 201, 0.003)
            self._metrics.told("Normal", type(action).__name__)
        self._metrics.waited(0.001)
        self._metrics.status_written("stored")
        self._metrics.resynced("Pod", 0, 0.01)
        self._metrics.reconciled("done", time.monotonic() - began_s)


async def main() -> None:
    metrics = Metrics("0.0.0")
    house = House(metrics)
    metrics.watch(house)
    metrics.took_lead()
    server = HealthServer(pulse=lambda: Pulse(0, 0, 0, 0), missing=lambda: None, metrics=metrics.text)
    print(await server.start(int(sys.argv[1])), flush=True)  # noqa: T201 - its starter waits for it
    over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    beating = asyncio.create_task(house.heart.run())
    while not over.done():
        house.turn()
        await asyncio.wait({over}, timeout=TURN_S)
    beating.cancel()
    await server.stop()


if __name__ == "__main__":
    asyncio.run(main())
