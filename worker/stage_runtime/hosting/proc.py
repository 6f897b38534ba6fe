"""The program of a stage's child process: an engine, and the line to the client that it works for.

`python -m stage_runtime.hosting.proc`, started by `hosting/remote.py`. The kernel kills it when that one ends. SIGTERM
drains it; Ctrl-C, which a terminal sends to everybody, is for the parent to act on. It ends with the exit code of what
its engine died of, else with 0.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final, NoReturn

from stage_api.errors import Fault, SpecError
from stage_runtime import log as logs
from stage_runtime.core.error_codec import encoded
from stage_runtime.core.errors import EngineDeadError, InternalError, StageError
from stage_runtime.engine.engine import Engine
from stage_runtime.exit import exit_code_of
from stage_runtime.hosting.line import Line
from stage_runtime.hosting.service import Service
from stage_runtime.hosting.wire import Hello, Leaving, Setup, decode_ask, encode
from stage_runtime.ipc.hatch import Hatch
from stage_runtime.ipc.parent import end_with
from stage_runtime.ipc.shm import Sender

SETUP_S: Final = 60.0  # for the parent to say what to build
PLACE_S: Final = 0.1  # for room in shared memory; without it an output travels in its message
LINGER_S: Final = 2.0  # for last words to get out, and for the engine to let go

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Never returns: the process ends with its code, whatever its threads are doing."""
    arguments = _parse(argv)
    end_with(arguments.parent)
    line = Line.connect(arguments.line)
    asked = Asked(line.bell.ring)
    # They were held back from before this process began, so that none could end it halfway.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, asked)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    line.send(encode(Hello(os.getpid())))
    try:
        death = _serve(line, Hatch.adopt(arguments.hatch), asked)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is said and the process ends
        _log(error)
        line.send(encode(Leaving(encoded(error))))
        death = error
    line.close(LINGER_S)
    logging.shutdown()
    sys.stderr.flush()
    # NB: no finalisers run, since those of a device can hang, or crash and change the exit code.
    os._exit(exit_code_of(death))


class Asked:
    """A signal handler that only notes when the process was told to stop."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self.at_s: float | None = None

    def __call__(self, *_: object) -> None:
        self.at_s = self.at_s or time.monotonic()
        self._ring()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="stage_runtime.hosting.proc", description="The engine of a stage.")
    parser.add_argument("--line", required=True, help="address of the client's socket")
    parser.add_argument("--hatch", type=int, required=True, help="descriptor that shared memory goes through")
    parser.add_argument("--parent", type=int, required=True, help="process id of who started this")
    return parser.parse_args(argv)


def _serve(line: Line, hatch: Hatch, asked: Asked) -> BaseException | None:
    """Work until the end. What the engine died of; None when it ended in order."""
    setup, early = _setup(line)
    if setup is None:
        return None
    if setup.log_as is not None:
        logs.configure(setup.log_as)
    engine = _engine(setup)
    service = Service(line, engine, Sender(hatch, 0, patience_s=PLACE_S))
    engine.when_dead(lambda _: line.bell.ring())
    engine.start()
    service.take(early)
    finish_by_s: float | None = None
    while not service.turn():
        if asked.at_s is None:
            continue
        if finish_by_s is None:
            finish_by_s = asked.at_s + setup.grace_s
            log.info("draining", extra={"finish_seconds": setup.grace_s})
            engine.close_admission()
        # Loading can't be broken off, and nobody waits for it.
        if service.starting or service.at_rest or time.monotonic() >= finish_by_s:
            break
    death = engine.death
    service.finish(LINGER_S)
    # Last, so that nobody waits for the words of a dead engine until it has let go.
    if not service.starting:
        _close(engine)
    return death


def _setup(line: Line) -> tuple[Setup | None, list[bytes]]:
    """The first message, and what came with it. None when the parent says nothing, or something else."""
    until_s = time.monotonic() + SETUP_S
    while (left_s := until_s - time.monotonic()) > 0:
        if messages := line.receive(left_s):
            ask = decode_ask(messages[0])
            return (ask if isinstance(ask, Setup) else None), messages[1:]
    return None, []


def _engine(setup: Setup) -> Engine:
    """What the factory makes. Raises: SpecError for a factory that isn't there; whatever it raises itself."""
    module, _, function = setup.factory.partition(":")
    try:
        factory = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError([Fault("factory", "module:function", f"{setup.factory} ({error})")]) from error
    engine = factory(setup.argument)
    if not isinstance(engine, Engine):
        raise InternalError(f"{setup.factory} makes a {type(engine).__name__}; expected an Engine")
    return engine


def _close(engine: Engine) -> None:
    try:
        engine.close(LINGER_S)
    except EngineDeadError as error:
        log.warning("engine did not close", extra={"error": str(error)})


def _log(error: BaseException) -> None:
    expected = isinstance(error, StageError | SpecError)
    log.critical("stage's process ends", extra={"error": str(error)}, exc_info=None if expected else error)


if __name__ == "__main__":
    main()
