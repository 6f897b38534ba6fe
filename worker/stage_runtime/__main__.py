"""The commands of a pod: `python -m stage_runtime serve --config FILE`, and `fetch` before it where a model has to be
fetched.

It serves until it is told to stop, which is exit 0, or until the engine dies, which is that death's exit code and
termination report. As process 1 it has no default actions to rely on: what it doesn't handle, the kernel drops.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from stage_api.config import StageConfig

_STOP: Final = (signal.SIGTERM, signal.SIGINT)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Never returns: the process ends with its code, whatever its threads are doing."""
    # Before anything is imported. Nothing is under way yet, so to be told to stop is to end.
    for number in _STOP:
        signal.signal(number, lambda *_: os._exit(0))
    # A local run holds signals back while it starts this process, so that none comes before the lines above.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_STOP, signal.SIGHUP))
    _run(_parse(argv))


def _parse(argv: Sequence[str] | None) -> Namespace:
    import argparse

    from stage_api import names

    parser = argparse.ArgumentParser(prog="stage_runtime", description="The commands of a stage's pod.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    serve = commands.add_parser("serve", help="serve a stage")
    fetch = commands.add_parser("fetch", help="fetch a stage's model from the Hugging Face Hub")
    config = os.environ.get(names.ENV_CONFIG) or f"{names.CONFIG_DIR}/{names.CONFIG_FILE}"
    for command in (serve, fetch):
        command.add_argument(
            "--config", metavar="FILE", default=config, help=f"the stage's config ({config})"
        )
    serve.add_argument("--host", metavar="H", help="address to listen on (every one)")
    serve.add_argument(
        "--port", metavar="P", type=int, help="port to listen on (the config's); 0 is any free one"
    )
    serve.add_argument(
        "--parent-link", metavar="FD", type=int, help="socket whose other end a local run holds"
    )
    return parser.parse_args(argv)


def _run(arguments: Namespace) -> NoReturn:
    import asyncio

    from stage_api import names
    from stage_api.config import load
    from stage_runtime import log
    from stage_runtime.exit import leave

    try:
        log.configure(os.environ.get(names.ENV_STAGE, ""))
        config = load(arguments.config, executable=True)
        log.configure(config.name)
        if arguments.command == "fetch":
            _fetch(config)
            leave(None)
        death = asyncio.run(_serve(config, arguments))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the process leaves with its code
        _tell(error)
        death = error
    leave(death, epoch=_epoch())


def _epoch() -> int:
    """Which of its replica's lives this is, from 0."""
    from stage_api import names

    given = os.environ.get(names.ENV_EPOCH, "")
    return int(given) if given.isdecimal() else 0


def _last_start_s() -> float | None:
    """What the start of the life before took, in seconds, where whoever started this one says so."""
    from stage_api import names

    given = os.environ.get(names.ENV_LAST_START, "")
    return float(given) if given.replace(".", "", 1).isdecimal() else None


def _fetch(config: StageConfig) -> None:
    """Bring the model to where the stage will look for it, or end the process with the reason."""
    import time
    from pathlib import Path
    from threading import Timer

    from stage_api import names
    from stage_api.errors import Fault, SpecError
    from stage_runtime.core.errors import FetchFailed
    from stage_runtime.exit import leave
    from stage_runtime.pipelines.fetch_progress import FetchProgress
    from stage_runtime.server.probes.fetching import FetchProbe

    for number in _STOP:  # not 0, which says that the model is there
        signal.signal(number, lambda number, _: os._exit(128 + number))
    source, folder = config.model.source.hugging_face, os.environ.get(names.ENV_MODEL_DIR)
    if source is None:
        raise SpecError([Fault("model.source", "huggingFace, to fetch it", config.model.source.kind)])
    if not folder:
        raise SpecError([Fault(names.ENV_MODEL_DIR, "the folder to fetch into", "nothing")])
    limit_s, progress = float(config.startup.fetch_timeout_seconds), FetchProgress()

    def give_up() -> None:
        far = progress.now().text()
        leave(
            FetchFailed(f"{source.repo} could not be fetched within {limit_s:.0f} s: {far}"), epoch=_epoch()
        )

    watch = Timer(limit_s, give_up)
    watch.daemon = True
    watch.start()

    # Before the hub's library reads them. To fetch is to go online, whatever holds for the stage.
    os.environ.update(
        HF_HUB_OFFLINE="0", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1", DO_NOT_TRACK="1"
    )
    from stage_runtime.pipelines.fetch import fetch, read_token

    token, deadline_s = read_token(source), time.monotonic() + limit_s
    with FetchProbe(None, config.engine.port, progress.now):
        fetch(source, Path(folder), token=token, deadline_s=deadline_s, progress=progress)
    watch.cancel()


async def _serve(config: StageConfig, arguments: Namespace) -> BaseException | None:
    """Serve, as the first pod of a replica or as another. What it died of; None when it was told to stop."""
    from stage_runtime.executor.pods import pod_ordinal

    pod = pod_ordinal(os.environ, config.topology())
    death = await (_serve_stage(config, arguments) if pod == 0 else _attend(config, arguments, pod))
    for number in _STOP:  # why it ends is decided
        signal.signal(number, signal.SIG_IGN)
    return death


async def _attend(config: StageConfig, arguments: Namespace, pod: int) -> BaseException | None:
    from stage_runtime.executor.agent import Agent
    from stage_runtime.local.parent_link import ChildEnd
    from stage_runtime.server.http.serve import listen
    from stage_runtime.server.probes.agent import serve_agent

    if arguments.parent_link is not None:
        ChildEnd(arguments.parent_link)
    agent = Agent(config, pod=pod, epoch=_epoch(), environ=os.environ)
    listening = listen(arguments.host, config.engine.port if arguments.port is None else arguments.port)
    patience_s = float(config.drain.admit_seconds + config.drain.timeout_seconds)
    return await serve_agent(agent, listening=listening, patience_s=patience_s)


async def _serve_stage(config: StageConfig, arguments: Namespace) -> BaseException | None:
    from stage_runtime.assemble import build_app, build_stage_engine, client_of
    from stage_runtime.local.parent_link import ChildEnd
    from stage_runtime.pipelines.served_checkpoint import resolve_model
    from stage_runtime.server.control.listener import control_listener
    from stage_runtime.server.http.drain import Drain
    from stage_runtime.server.http.serve import Grace, listen, serve, url_of

    parent_link = None if arguments.parent_link is None else ChildEnd(arguments.parent_link)
    model = resolve_model(config.model)
    engine = build_stage_engine(config, model, epoch=_epoch(), log_as=config.name)
    listening = listen(arguments.host, config.engine.port if arguments.port is None else arguments.port)
    drain, stage = Drain(), client_of(engine)
    app = build_app(config, model, engine, drain, epoch=_epoch(), last_start_s=_last_start_s())
    control = control_listener(config.control, stage, os.environ)
    engine.start()
    if parent_link is not None:
        parent_link.tell(url_of(listening))
    grace = Grace(admit_s=float(config.drain.admit_seconds), finish_s=float(config.drain.timeout_seconds))
    return await serve(
        app,
        stage,
        drain,
        listening=listening,
        grace=grace,
        close_engine=engine.close,
        beside=None if control is None else (control.app, control.listening),
    )


def _tell(error: BaseException) -> None:
    """Log why the stage can't start: what is wrong with the config or the model in a line each, our own bugs whole."""
    import logging

    from stage_api.errors import SpecError
    from stage_runtime.core.errors import StageError

    log = logging.getLogger(__name__)
    if isinstance(error, SpecError):
        for fault in error.faults:
            log.critical(
                "config is wrong", extra={"path": fault.path, "expected": fault.expected, "got": fault.got}
            )
    elif isinstance(error, StageError):
        log.critical("can't start", extra={"error": str(error)})
    else:
        log.critical("can't start", exc_info=error)


if __name__ == "__main__":
    main()
