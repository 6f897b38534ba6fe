"""The program of one rank: says hello, loads its part, meets the others, works, and says why it ends.

`python -m stage_runtime.worker.proc`, started by an executor or a rank agent. It imports torch only once it has said
hello, so that a rank that never gets there is told from one that is slow.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from stage_runtime.ipc.channel import RankChannel
from stage_runtime.ipc.messages import Dying, Hello, Meet, Ready, Serving, Setup, Starting
from stage_runtime.ipc.parent import end_with

if TYPE_CHECKING:
    from stage_api.config import StageConfig
    from stage_runtime.parallel.context import ParallelContext
    from stage_runtime.worker.session import Session

SETUP_S: Final = 600.0  # for all other ranks to say hello

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Never returns: the process ends with its code, whatever its threads and the device's driver are doing."""
    arguments = _parse(argv)
    end_with(arguments.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the engine decides
    channel = RankChannel(arguments.engine, arguments.rank)
    code = 0
    try:
        channel.send(
            Hello(rank=arguments.rank, pid=os.getpid(), epoch=arguments.epoch, digest=arguments.digest)
        )
        _serve(arguments, channel)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is said and the process ends
        code = _last_words(arguments.rank, channel, error)
    channel.close()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="stage_runtime.worker.proc", description="One rank of a stage.")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--engine", required=True, help="address of the engine's socket")
    parser.add_argument("--owner", required=True, help="who owns the shared memory")
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--digest", required=True, help="of the topology")
    parser.add_argument("--parent", type=int, required=True, help="process id of who started this")
    return parser.parse_args(argv)


def _serve(arguments: argparse.Namespace, channel: RankChannel) -> None:
    from stage_api.config import parse
    from stage_runtime import log as logs

    rank = arguments.rank
    setup = channel.receive(SETUP_S)
    if not isinstance(setup, Setup):
        raise TimeoutError(f"no setup within {SETUP_S:.0f} s, but {setup!r}")
    config = parse(setup.config)
    logs.configure(config.name)
    channel.send(Starting(rank, "importing torch"))
    import torch  # noqa: F401 - the longest part of it

    channel.send(Starting(rank, "meeting the other ranks"))
    context = _meet(rank, config, setup.epoch, channel)
    channel.send(Starting(rank, "loading the model"))
    session = _session(arguments, config, context, channel)
    channel.send(Ready(rank, session.worker.capability))
    session.run()
    if session.packer is not None:
        session.packer.close()
    session.worker.close()
    session.sender.close()
    if context is not None:
        context.close()


def _meet(rank: int, config: StageConfig, epoch: int, channel: RankChannel) -> ParallelContext | None:
    """The group of this rank; None where its copy of the model has one rank only, and nothing is distributed."""
    topology = config.topology()
    if topology.world_size == topology.degrees["data"]:
        return None
    from stage_runtime.parallel.context import join, serve_store

    timeout_s = float(config.startup.timeout_seconds)
    store = None
    if rank == 0:
        store, port = serve_store("127.0.0.1")
        channel.send(Serving(rank, ("127.0.0.1", port)))
    meet = channel.receive(timeout_s)
    if not isinstance(meet, Meet):
        raise TimeoutError(f"no place to meet, but {meet!r}")
    context = join(topology, rank, meet.store, epoch, timeout_s, _device(config, rank))
    if store is not None:
        context.keep(store)
    return context


def _device(config: StageConfig, rank: int) -> object:
    from stage_runtime.worker.worker import choose_device

    return choose_device(config.engine.device.value, rank % config.ranks_per_pod)


def _session(
    arguments: argparse.Namespace,
    config: StageConfig,
    context: ParallelContext | None,
    channel: RankChannel,
) -> Session:
    from stage_api.spec import Mode
    from stage_runtime.ipc.owner import Owner
    from stage_runtime.ipc.shm import Sender
    from stage_runtime.pipelines.served import resolve_model
    from stage_runtime.runner.runner import RunnerOptions
    from stage_runtime.worker.entry import build_worker
    from stage_runtime.worker.packer import LANE, Packer
    from stage_runtime.worker.session import Deliveries, Session

    rank, owner = arguments.rank, Owner.parse(arguments.owner)
    topology = config.topology()
    place = topology.coordinates[rank].data
    answers = rank == topology.data_primaries[place]
    plays_to_the_end = config.engine.mode is Mode.REQUEST
    deliveries = Deliveries()
    # A rank that doesn't answer makes no pictures: what it computes ends with it.
    more: dict[str, Any] = {} if context is None else {"parallel": context}
    options = RunnerOptions(deliver=deliveries if plays_to_the_end or not answers else None, **more)
    worker = build_worker(config, resolve_model(config.model), rank=rank, options=options)
    packer = None
    if plays_to_the_end and answers:
        packer = Packer(
            rank,
            worker.runner.convert,
            device=worker.device,
            connect=lambda: RankChannel(arguments.engine, rank, lane=LANE),
            sender=Sender(owner, rank),
        )
    return Session(
        rank=rank,
        place=place,
        answers=answers,
        plays_to_the_end=plays_to_the_end,
        worker=worker,
        channel=channel,
        sender=Sender(owner, rank),
        packer=packer,
        deliveries=deliveries,
        agree=None if context is None else context.agree,
        leads=context is None or context.index == 0,
    )


def _last_words(rank: int, channel: RankChannel, error: BaseException) -> int:
    from stage_api.errors import SpecError
    from stage_runtime.core.errors import StageError
    from stage_runtime.exit import exit_code_of

    code = int(exit_code_of(error))
    expected = isinstance(error, StageError | SpecError)
    log.critical("rank ends", extra={"rank": rank, "error": str(error)}, exc_info=None if expected else error)
    faults = (
        tuple((fault.path, fault.expected, fault.got) for fault in error.faults)
        if isinstance(error, SpecError)
        else ()
    )
    message = str(error) if expected else f"{type(error).__name__}: {error}"
    channel.send(Dying(rank=rank, exit_code=code, error=type(error).__name__, message=message, faults=faults))
    return code


if __name__ == "__main__":
    main()
