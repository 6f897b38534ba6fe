"""The program of one rank: says hello, meets the others, loads its part, works, and says why it ends.

`python -m stage_runtime.rank`, started by an executor or a rank agent. It imports torch only once it has said
hello, so that a rank that never gets there is told from one that is slow.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from stage_api import names
from stage_runtime import log as logs
from stage_runtime.exit import end_process, exit_code_of
from stage_runtime.ipc.addresses import listening_host, port_of
from stage_runtime.ipc.messages import Dying, Hello, Meet, Ready, Serving, Setup, Starting, Stop
from stage_runtime.ipc.rank_channel import RankChannel
from stage_runtime.processes.parent import end_with

if TYPE_CHECKING:
    import torch

    from stage_api.config import StageConfig
    from stage_runtime.parallel.context import DataGroup, ParallelContext

T = TypeVar("T", Setup, Meet)

log = logging.getLogger(__name__)


class _Stopped(Exception):
    """The engine needs no ranks any more, before it was up."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Never returns: the process ends with its code, whatever its threads and the device's driver are doing."""
    arguments = _parse(argv)
    end_with(arguments.parent)
    logs.configure(os.environ.get(names.ENV_STAGE, ""))
    channel = None
    code = 0
    try:
        channel = _dial(arguments)
        channel.send(
            Hello(rank=arguments.rank, pid=os.getpid(), epoch=arguments.epoch, digest=arguments.digest)
        )
        _serve(arguments, channel)
    except _Stopped:
        pass
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is said and the process ends
        code = _last_words(arguments.rank, channel, error)
    if channel is not None:
        channel.close()
    end_process(code)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="stage_runtime.rank", description="One rank of a stage.")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--engine", required=True, help="address of the engine's socket")
    parser.add_argument(
        "--file-pipe", type=int, help="descriptor that shared memory goes through; none on another machine"
    )
    parser.add_argument("--keys", type=Path, help="folder of the keys for an engine on another machine")
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--digest", required=True, help="of the topology")
    parser.add_argument("--life", default="", help="of the group, where ranks of another one may come too")
    parser.add_argument(
        "--startup", type=float, required=True, help="seconds that the group may take to come up"
    )
    parser.add_argument("--parent", type=int, required=True, help="process id of who started this")
    return parser.parse_args(argv)


def _dial(arguments: argparse.Namespace, lane: str = "") -> RankChannel:
    keys = None
    if arguments.keys is not None:
        from stage_runtime.ipc.keys import load_client

        keys = load_client(arguments.keys)
    return RankChannel(arguments.engine, arguments.rank, keys=keys, life=arguments.life, lane=lane)


def _serve(arguments: argparse.Namespace, channel: RankChannel) -> None:
    from stage_api.config import parse

    rank = arguments.rank
    setup = _hear(channel, Setup, arguments.startup)
    config = parse(setup.config)
    logs.configure(config.name, rank=rank)
    channel.send(Starting(rank, "importing torch"))
    from stage_runtime import assemble_rank  # the longest part of it
    from stage_runtime.pipelines.served_checkpoint import resolve_model

    model = resolve_model(config.model)
    features = assemble_rank.features_of(config, model)
    channel.send(Starting(rank, "meeting the other ranks"))
    data = assemble_rank.data_groups(features)
    context = _meet(rank, config, setup.epoch, channel, data, assemble_rank.device_of(config, rank))
    channel.send(Starting(rank, "loading the model"))
    session = assemble_rank.session(
        config,
        model,
        channel,
        rank=rank,
        features=features,
        context=context,
        file_pipe=arguments.file_pipe,
        dial=lambda lane: _dial(arguments, lane),
        tell=lambda progress: channel.send(Starting(rank, progress.text(), progress.encode())),
    )
    channel.send(Ready(rank, session.worker.capability))
    session.run()
    session.close()
    if context is not None:
        context.close()


def _hear(channel: RankChannel, kind: type[T], timeout_s: float) -> T:
    """The next command, which must be of this kind. Raises: EngineDeadError, RendezvousTimeout, InternalError."""
    from stage_runtime.core.errors import EngineDeadError, InternalError, RendezvousTimeout

    command = channel.receive(timeout_s)
    if isinstance(command, kind):
        return command
    if isinstance(command, Stop):
        raise _Stopped
    if command is not None:
        raise InternalError(f"a {type(command).__name__} came, expected a {kind.__name__}")
    if channel.gone:
        raise EngineDeadError("the engine is gone")
    raise RendezvousTimeout(f"the engine sent no {kind.__name__} within {timeout_s:.0f} s")


def _meet(
    rank: int,
    config: StageConfig,
    epoch: int,
    channel: RankChannel,
    data: Collection[DataGroup],
    device: torch.device,
) -> ParallelContext | None:
    """The groups of this rank; None where it has nobody to meet, and nothing is distributed."""
    from stage_runtime.parallel.context import join, meets, serve_store

    topology = config.topology()
    if len(meets(topology, rank, data)) == 1:
        return None
    timeout_s = float(config.startup.timeout_seconds)
    store = None
    if rank == 0:
        host, port = _store_address(topology.pods)
        store, port = serve_store(listening_host(host), port)
        channel.send(Serving(rank, (host, port)))
    meet = _hear(channel, Meet, timeout_s)
    context = join(topology, rank, meet.store, epoch, timeout_s, data=data, device=device)
    if context is not None:
        context.keep(store)
    return context


def _store_address(pods: int) -> tuple[str, int]:
    """Where the ranks of all pods find the store of rank 0; port 0 is any free one."""
    if pods == 1:
        return "127.0.0.1", 0
    return os.environ[names.ENV_MASTER_ADDR], port_of(os.environ, names.ENV_MASTER_PORT, names.MASTER_PORT)


def _last_words(rank: int, channel: RankChannel | None, error: BaseException) -> int:
    from stage_api.errors import SpecError
    from stage_runtime.core.error_codec import encoded, words_of
    from stage_runtime.core.errors import StageError

    expected = isinstance(error, StageError | SpecError)
    extra = {"rank": rank, "error": words_of(error)}
    log.critical("rank ends", extra=extra, exc_info=None if expected else error)
    if channel is not None:
        channel.send(Dying(rank=rank, error=encoded(error)))
    return int(exit_code_of(error))


if __name__ == "__main__":
    main()
