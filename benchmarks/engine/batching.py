"""How much batching can save at all, from what diffusers itself takes for a batch: the floor of any engine's latency.

An engine without any cost of its own, that runs its batches as fast as one diffusers call runs the same batch, would
have these mean latencies: even encoding and decoding cost a late one no more than its share then. An engine that is
faster than diffusers can be below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, median

from benchmarks.engine.sides import MIXED, SLOTS, STEPS, Sides
from benchmarks.options import Options
from benchmarks.timing import in_turn
from stage_api.spec import Mode

SIZES = (1, 2, 4, SLOTS)

Cost = Callable[[int], float]
"""Seconds of a whole batch of that size."""


def measure_cost(options: Options, sides: Sides) -> Cost:
    """CPU time of one diffusers call, on a line between the sizes measured."""

    def draw(size: int, _number: int) -> object:
        return sides.diffusers.draw(MIXED[:size], range(size))

    times = in_turn({str(size): partial(draw, size) for size in SIZES}, options.rounds(5))
    known = {size: median(times[str(size)].cpu) for size in SIZES}

    def cost(size: int) -> float:
        below = max(one for one in SIZES if one <= size)
        above = min(one for one in SIZES if one >= size)
        share = 0.0 if above == below else (size - below) / (above - below)
        return known[below] + share * (known[above] - known[below])

    return cost


def least_ratio(mode: Mode, cost: Cost, arrivals: Sequence[float]) -> float:
    """Mean latency beside first come, first served, when nothing but the batches takes time."""
    serve = by_step if mode is Mode.STEP else by_wave
    return fmean(serve(cost, arrivals)) / fmean(one_by_one(cost, arrivals))


def one_by_one(cost: Cost, arrivals: Sequence[float]) -> list[float]:
    """Latencies, first come, first served."""
    now, latencies = 0.0, []
    for arrival in arrivals:
        now = max(now, arrival) + cost(1)
        latencies.append(now - arrival)
    return latencies


def by_wave(cost: Cost, arrivals: Sequence[float]) -> list[float]:
    """Latencies when all that wait, up to the slots, run together to their end."""
    now, latencies, waiting = 0.0, [], list(arrivals)
    while waiting:
        now = max(now, waiting[0])
        wave = [arrival for arrival in waiting if arrival <= now][:SLOTS]
        now += cost(len(wave))
        latencies += [now - arrival for arrival in wave]
        del waiting[: len(wave)]
    return latencies


def by_step(cost: Cost, arrivals: Sequence[float]) -> list[float]:
    """Latencies when late ones join at the next step."""
    now, latencies, waiting = 0.0, [], list(arrivals)
    left: dict[float, int] = {}
    while waiting or left:
        if not left:
            now = max(now, waiting[0])
        while waiting and waiting[0] <= now and len(left) < SLOTS:
            left[waiting.pop(0)] = STEPS
        now += cost(len(left)) / STEPS
        left = {arrival: steps - 1 for arrival, steps in left.items()}
        latencies += [now - arrival for arrival, steps in left.items() if steps == 0]
        left = {arrival: steps for arrival, steps in left.items() if steps}
    return latencies
