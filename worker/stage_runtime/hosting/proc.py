"""The program of a stage's child process: an engine, and the client that it works for.

`python -m stage_runtime.hosting.proc`, started by `hosting/child_thread.py`. The kernel kills it when that one ends,
and when to stop is for the parent to say. It ends with the exit code of what its engine died of, else with 0.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NoReturn

from stage_api.errors import Fault, SpecError
from stage_runtime import log as logs
from stage_runtime.core.error_codec import encoded, words_of
from stage_runtime.core.errors import EngineDeadError, InternalError, StageError
from stage_runtime.engine.engine import Engine
from stage_runtime.exit import end_process, exit_code_of
from stage_runtime.hosting.messages import Hello, Leaving, Setup, decode_ask
from stage_runtime.hosting.service import Service
from stage_runtime.ipc.file_pipe import FilePipe
from stage_runtime.ipc.rank_channel import RankChannel
from stage_runtime.ipc.shm import Sender
from stage_runtime.processes.parent import end_with

SETUP_S: Final = 60.0  # for the parent to say what to build
PLACE_S: Final = 0.1  # for room in shared memory; without it an output travels in its message
LINGER_S: Final = 2.0  # for last words to get out, and for the engine to let go

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Never returns: the process ends with its code, whatever its threads are doing."""
    arguments = _parse(argv)
    end_with(arguments.parent)
    channel = RankChannel(arguments.engine, 0, decode=decode_ask)
    channel.send(Hello())
    try:
        death = _serve(channel, FilePipe.adopt(arguments.file_pipe))
    except BaseException as error:
        expected = isinstance(error, StageError | SpecError)
        extra = {"error": words_of(error)}
        log.critical("the engine's process ends", extra=extra, exc_info=None if expected else error)
        channel.send(Leaving(encoded(error)))
        death = error
    channel.close()
    end_process(exit_code_of(death))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="stage_runtime.hosting.proc", description="The engine of a stage.")
    parser.add_argument("--engine", required=True, help="address of the client's socket")
    parser.add_argument("--file-pipe", type=int, required=True, help="descriptor that open files go through")
    parser.add_argument("--parent", type=int, required=True, help="process id of who started this")
    return parser.parse_args(argv)


def _serve(channel: RankChannel, file_pipe: FilePipe) -> BaseException | None:
    """Work until the end. What the engine died of; None when it ended in order."""
    setup = channel.receive(SETUP_S)
    if not isinstance(setup, Setup):
        return None  # the parent says nothing, or something else
    if setup.log_as is not None:
        logs.configure(setup.log_as)
    engine = _engine(setup)
    service = Service(channel, engine, Sender(file_pipe, 0, patience_s=PLACE_S))
    engine.start()
    while not service.turn():
        pass
    death = engine.death
    service.finish(LINGER_S)
    # Last, so that nobody waits for the words of a dead engine until it has let go. Loading can't be broken off.
    if not service.starting:
        try:
            engine.close(LINGER_S)
        except EngineDeadError as error:
            log.warning("engine did not close", extra={"error": str(error)})
    return death


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


if __name__ == "__main__":
    main()
