"""The program of a rank that only answers: `far_end.py KIND ADDRESS RANK [HATCH]`.

It ends with its engine's channel.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import zmq

from stage_runtime.core.control import Invoke
from stage_runtime.core.outcome import Completed, Modality, Output
from stage_runtime.ipc.codec import detach, encode
from stage_runtime.ipc.file_pipe import FilePipe
from stage_runtime.ipc.messages import Answered, Ask, Command, Hello, OutputReady, Reply
from stage_runtime.ipc.rank_channel import RankChannel
from stage_runtime.ipc.shm import Sender

STOP = b"stop"
MB = 1_000_000


def answer_of(rank: int) -> Answered:
    """What each side's ranks answer."""
    return Answered(rank=rank, call_id=1)


def _raw(address: str, rank: int) -> None:
    """Nothing but pyzmq."""
    answer = encode(answer_of(rank))
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.identity = b"%d" % rank
        socket.connect(address)
        socket.send(answer)
        while socket.recv() != STOP:
            socket.send(answer)


def _ours(address: str, rank: int, reply_to: Callable[[Command], Reply]) -> None:
    channel = RankChannel(address, rank)
    channel.send(Hello(rank=rank, pid=os.getpid(), epoch=0, digest=""))
    while (command := channel.receive(None)) is not None:
        channel.send(reply_to(command))
    channel.close()


def _results(file_pipe: int, rank: int) -> Callable[[Command], Reply]:
    """Sends a result of as many megabytes as it is asked for."""
    sender = Sender(FilePipe.adopt(file_pipe), rank)
    results: dict[object, Completed] = {}

    def reply_to(command: Command) -> Reply:
        assert isinstance(command, Ask)
        assert isinstance(command.call, Invoke)
        megabytes = command.call.arguments["megabytes"]
        assert isinstance(megabytes, int)
        if megabytes not in results:
            data = os.urandom(MB) * megabytes
            output = Output(modality=Modality.VIDEO, data=data, shape=(len(data),), dtype="uint8")
            results[megabytes] = Completed("r", output, 1)
        outcome, parcel = detach(results[megabytes], sender.place)
        return OutputReady(rank=rank, wave_id=1, outcome=outcome, parcel=parcel)

    return reply_to


def main() -> None:
    """Answer until the engine is gone."""
    kind, address, number, *file_pipe = sys.argv[1:]
    rank = int(number)
    match kind:
        case "raw":
            _raw(address, rank)
        case "calls":
            _ours(address, rank, lambda command: answer_of(rank))
        case "results":
            _ours(address, rank, _results(int(file_pipe[0]), rank))


if __name__ == "__main__":
    main()
