"""Full load for minutes, with random aborts, consumers that go away and ranks that are killed: does anything leak?

    python -m benchmarks soak [--minutes 10 | --lives 20] [--life 20] [--seed 0]

One life of an engine after another, over all modes and layouts; each ends with a killed rank or a close under load.
After each life, and at rest within it, everything that is held is counted. Exit 1 when something is left, when it
grows, when a request ends as it should not, or when a picture isn't the one that was asked for.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import Final

import msgspec
import numpy as np
import psutil

from benchmarks.engine.remains import Remains, remains, table
from stage_api.config import StageConfig
from stage_api.manifest import parse_manifest
from stage_runtime.assemble import build_engine
from stage_runtime.core.errors import AdmissionFull, EngineDeadError, RequestAborted, StageError
from stage_runtime.core.outcome import Aborted, Completed, Failed, Terminal
from stage_runtime.core.request import Request
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.phase import Phase
from stage_runtime.engine.streams import Stream
from stage_runtime.pipelines.arguments import build_requests
from stage_runtime.pipelines.contract import ResolvedModel, Wishes
from stage_runtime.pipelines.served_checkpoint import resolve_model

MANIFEST: Final = """
apiVersion: omnistage.io/v1alpha1
kind: DiffusionStage
metadata: {{name: soak}}
spec:
  model: {{source: {{embedded: shapes}}}}
  engine: {{dtype: float32, device: cpu, mode: {mode}, executor: mp, maxNumSeqs: 4, maxQueueSize: 16}}
  parallelism: {{{layout}}}
"""
LAYOUTS: Final = [
    ("request", "data: 1"),
    ("step", "data: 2"),
    ("request", "cfg: 2"),
    ("step", "data: 1"),
    ("request", "data: 2"),
    ("step", "cfg: 2"),
]
LOAD: Final = 14
"""Requests that are there at any time."""
ABORTED, DROPPED = 0.15, 0.15
"""Which part of them ends so."""
SIDES: Final = (64, 64, 64, 192)
"""Pixels. The larger picture travels in shared memory."""
WISHES: Final = (
    ("a red circle", 1, 3),
    ("a large blue heart on a white background", 2, 5),
    ("a small green square", 3, 8),
)
"""Prompt, seed, steps."""
ROUNDING: Final = 2
"""By how much of 255 a picture may differ with who else is drawn."""
PATIENCE_S: Final = 60.0


@dataclass(slots=True)
class Tally:
    """How all requests ended, and what was wrong. An observer of each engine."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def on_started(self, queue_s: float) -> None:
        """Nothing."""

    def on_wave(self, size: int, steps: int, seconds: float) -> None:
        """Nothing."""

    def on_ended(self, outcome: Terminal, seconds: float) -> None:
        """Count."""
        match outcome:
            case Completed():
                self.ends["completed"] += 1
            case Aborted():
                self.ends["aborted"] += 1
            case Failed(code=code):
                self.ends[code] += 1


@dataclass(slots=True)
class Asked:
    """A request that is under way. `leaves_s`: when its caller loses interest, if at all."""

    stream: Stream
    wish: tuple[int, int]
    leaves_s: float | None
    drops: bool


class Load:
    """Keeps an engine full."""

    def __init__(self, engine: Engine, model: ResolvedModel, tally: Tally, chance: random.Random) -> None:
        self._engine, self._model, self._tally, self._chance = engine, model, tally, chance
        self._asked: list[Asked] = []
        self._numbers = count()
        self._pictures: dict[tuple[int, int], np.ndarray] = {}

    def turn(self) -> None:
        """Fill up, leave where it is time, look at what has come."""
        self._asked = [one for one in self._asked if self._still_wanted(one)]
        while len(self._asked) < LOAD:
            wish = self._chance.randrange(len(WISHES)), self._chance.choice(SIDES)
            try:
                (stream,) = self._engine.add([self._request(*wish)])
            except AdmissionFull:
                return
            leaves = self._chance.random() < ABORTED + DROPPED
            leaves_s = time.monotonic() + self._chance.uniform(0.0, 1.5) if leaves else None
            drops = self._chance.random() < DROPPED / (ABORTED + DROPPED)
            self._asked.append(Asked(stream, wish, leaves_s, drops))

    def rest(self) -> None:
        """Wait for what is there, and see that nothing is held any more."""
        until_s = time.monotonic() + PATIENCE_S
        while self._asked and time.monotonic() < until_s:
            self._asked = [one for one in self._asked if self._still_wanted(one)]
            time.sleep(0.01)
        while any((held := self._engine.outstanding().result(PATIENCE_S)).values()):
            if time.monotonic() > until_s:
                self._tally.wrong.append(f"held at rest: {held}")
                return
            time.sleep(0.01)
        if self._asked:
            self._tally.wrong.append(f"{len(self._asked)} requests have not ended within {PATIENCE_S:.0f} s")

    def ends_all(self) -> None:
        """The engine has ended: so has every stream, with an error that says so."""
        for one in self._asked:
            try:
                one.stream.result(PATIENCE_S)
            except StageError:
                continue
            except TimeoutError:
                self._tally.wrong.append(f"a stream has no end after the end of its engine: {one.wish}")
        self._asked.clear()

    def _still_wanted(self, one: Asked) -> bool:
        if one.stream.ended:
            self._check(one)
            return False
        if one.leaves_s is None or time.monotonic() < one.leaves_s:
            return True
        if not one.drops:
            self._engine.abort(one.stream.request_id)
        return False

    def _check(self, one: Asked) -> None:
        """A picture is the one that was asked for, as far as rounding goes."""
        try:
            output = one.stream.result(0).output
        except EngineDeadError:
            return
        except StageError as error:
            if error.code != RequestAborted.code:
                self._tally.wrong.append(f"{type(error).__name__}: {error}")
            return
        picture = np.frombuffer(output.data, np.uint8).reshape(output.shape).astype(int)
        first = self._pictures.setdefault(one.wish, picture)
        if (by := int(np.abs(picture - first).max())) > ROUNDING:
            self._tally.wrong.append(f"wrong picture for {one.wish}: differs by {by}/255")

    def _request(self, wish: int, side: int) -> Request:
        prompt, seed, steps = WISHES[wish]
        wishes = Wishes(prompt=prompt, seed=seed, num_inference_steps=steps, width=side, height=side)
        (request,) = build_requests(self._model, wishes, request_id="soak")
        return msgspec.structs.replace(request, request_id=f"r{next(self._numbers)}")


def config_of(mode: str, layout: str) -> StageConfig:
    """The stage of one life."""
    (stage,) = parse_manifest(MANIFEST.format(mode=mode, layout=layout))
    return StageConfig.from_stage(stage)


@contextmanager
def serving(config: StageConfig, model: ResolvedModel) -> Iterator[Engine]:
    """An engine between ready and closed."""
    engine = build_engine(config, model)
    engine.start()
    try:
        engine.wait_ready(PATIENCE_S * 2)
        yield engine
    finally:
        engine.close()


def live(mode: str, layout: str, load_s: float, chance: random.Random, tally: Tally) -> str:
    """One life, with so many seconds of load; how it ended."""
    config = config_of(mode, layout)
    model = resolve_model(config.model)
    killed = chance.random() < 0.5
    with serving(config, model) as engine:
        engine.observe(tally)
        load = Load(engine, model, tally, chance)
        until_s = time.monotonic() + load_s
        while time.monotonic() < until_s and engine.phase is Phase.READY:
            load.turn()
            time.sleep(0.01)
        if engine.death is not None:
            tally.wrong.append(f"the engine died by itself: {engine.death}")
        else:
            load.rest()
            load.turn()
        if killed and engine.death is None:
            ranks = [one.pid for one in psutil.Process().children()]
            os.kill(chance.choice(ranks), signal.SIGKILL)
            load.ends_all()
            if not isinstance(engine.death, EngineDeadError):
                tally.wrong.append(f"a rank was killed, and the engine is {engine.phase}")
    load.ends_all()
    return "killed" if killed else "closed"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--lives", type=int, help="this many, however long they take")
    parser.add_argument("--life", type=float, default=20.0, help="seconds of load in each life")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    chance, tally, seen = random.Random(asked.seed), Tally(), list[Remains]()
    began_s = time.monotonic()
    for number, (mode, layout) in enumerate(cycle(LAYOUTS), 1):
        end = live(mode, layout, asked.life, chance, tally)
        gc.collect()
        seen.append(remains(time.monotonic() - began_s))
        told = ", ".join(f"{n} {what}" for what, n in sorted(tally.ends.items()))
        print(f"life {number:3}  {mode:8} {layout:8} {end:7} {seen[-1].rss_mb:7.1f} MB  {told}", flush=True)
        if number == asked.lives or (asked.lives is None and time.monotonic() - began_s > asked.minutes * 60):
            break
    print(table(seen))
    wrong = [*tally.wrong, *leaks(seen)]
    for one in wrong[:20]:
        print(f"WRONG: {one}")
    print(f"{sum(tally.ends.values())} requests in {len(seen)} lives, {len(wrong)} things wrong")
    return 1 if wrong else 0


def leaks(seen: Sequence[Remains]) -> list[str]:
    """What is left after a life, or grows from life to life."""
    return [fault for one in seen for fault in one.left()] + Remains.growth(seen)
