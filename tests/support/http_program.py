"""A whole serving process without a model, to be sent signals: `python -m support.http_program '{"admit_s": 1}'`.

Requests of certain seeds do harm: see DEADLY and HANGING.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from stage_runtime import exit as exits
from stage_runtime import log as logs
from stage_runtime.assemble import client_of
from stage_runtime.core.errors import DeviceLost, ModelError
from stage_runtime.core.outcome import Outcome
from stage_runtime.core.wave import Wave
from stage_runtime.engine.base import StageEngine
from stage_runtime.engine.engine import Engine
from stage_runtime.hosting.remote_engine import ChildSpec, RemoteEngine
from stage_runtime.metrics import Metrics
from stage_runtime.server.http.app import Settings, create_app
from stage_runtime.server.http.drain import Drain
from stage_runtime.server.http.serve import Grace, listen, serve
from support.builders import EngineBuilder
from support.http_stage import MODEL, SERVED_NAME, PictureExecutor
from support.scripted import PATIENCE_S

DEADLY: Final = 72  # a seed that loses the device
HANGING: Final = 71  # a seed whose first tick never ends


@dataclass(frozen=True, slots=True)
class Options:
    """How the program behaves. Seconds."""

    admit_s: float = 0.0
    finish_s: float = 20.0
    step_s: float = 0.02
    startup_timeout_s: float = 20.0
    broken_model: bool = False
    child: bool = False
    """The engine has a process of its own."""


class TimedExecutor(PictureExecutor):
    """Takes its time for each step, and does what the seeds say."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s = step_s
        self._never = threading.Event()

    def submit(self, wave: Wave) -> None:
        """Take them in."""
        super().submit(wave)
        seeds = {new.request.seed for new in wave.new}
        if DEADLY in seeds:
            self.die(DeviceLost("an illegal memory access was encountered"))
        if HANGING in seeds:
            self._never.wait()

    def poll(self, deadline_s: float | None) -> Sequence[Outcome]:
        """One tick."""
        self._never.wait(self._step_s)
        return super().poll(deadline_s)


def main() -> None:
    """Serve until told to stop, then leave with the code that says why."""
    options = Options(**json.loads(sys.argv[1]))
    logs.configure("test")
    exits.leave(asyncio.run(run(options)))


def build(argument: bytes) -> Engine:
    """The engine that `Options` as JSON describe."""
    options = Options(**json.loads(argument))

    def executor() -> TimedExecutor:
        if options.broken_model:
            raise ModelError("no weights")
        return TimedExecutor(options.step_s)

    builder = EngineBuilder().step_mode().slots(4).startup_timeout(options.startup_timeout_s)
    return builder.executor(executor).build()


def placed(options: Options) -> StageEngine:
    """The same in this process, or in a child of it."""
    argument = json.dumps(asdict(options)).encode()
    if not options.child:
        return build(argument)
    return RemoteEngine(
        ChildSpec(
            factory="support.http_program:build",
            argument=argument,
            startup_timeout_s=PATIENCE_S,
            log_as="test",
        )
    )


async def run(options: Options) -> BaseException | None:
    """What it ended with."""
    engine = placed(options)
    stage, drain, metrics = client_of(engine), Drain(), Metrics("test")
    engine.observe(metrics)
    settings = Settings(stage_name="test", served_name=SERVED_NAME)
    app = create_app(stage, MODEL, settings, metrics=metrics, drain=drain)
    listening = listen("127.0.0.1", 0)
    engine.start()
    return await serve(
        app,
        stage,
        drain,
        listening=listening,
        grace=Grace(admit_s=options.admit_s, finish_s=options.finish_s),
        close_engine=engine.close,
    )


if __name__ == "__main__":
    main()
