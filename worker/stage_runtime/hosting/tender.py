"""The thread that starts a stage's child, carries messages both ways, and sees it end.

It knows what bytes are messages, and no more of what they mean than how a child ends.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import Final

import zmq
from msgspec.structs import replace

from stage_runtime.core.errors import EngineDeadError, InternalError
from stage_runtime.hosting.child import ChildProcess
from stage_runtime.hosting.line import Line
from stage_runtime.hosting.wire import (
    PROTOCOL,
    Hello,
    Leaving,
    News,
    Setup,
    Stop,
    Tells,
    Told,
    decode_tell,
    encode,
)
from stage_runtime.ipc.bell import Bell
from stage_runtime.ipc.codec import BadMessage, attach
from stage_runtime.ipc.shm import Receiver

LOOK_S: Final = 0.25  # between two looks at a child that has something to do
LEAVE_S: Final = 5.0  # from a child's last words to its end
TERM_S: Final = 1.0  # from SIGTERM to SIGKILL, for a child that didn't stop when it was asked
REST_S: Final = 0.05  # for what a child sent before it was killed

log = logging.getLogger(__name__)


class Tender:
    """One child's life. `run` is the thread; the rest may be called from any."""

    def __init__(
        self,
        setup: Setup,
        environ: Mapping[str, str],
        *,
        hear: Callable[[Tells], None],
        look: Callable[[], bool],
        lost: Callable[[EngineDeadError | InternalError | int], None],
    ) -> None:
        """All three are called in the thread.

        `hear` gets each message, outputs whole. `look` is asked now and then, and says whether the child has something
        to do. `lost` is called once, in the end: with the child's return code, or with why there is none to go by.
        """
        self._setup = setup
        self._environ = environ
        self._hear = hear
        self._look = look
        self._lost = lost
        self._bell = Bell()
        self._outgoing: SimpleQueue[bytes] = SimpleQueue()
        self._patience_s: float | None = None
        self._killing = False
        self._leave_by_s: float | None = None
        self.pid: int | None = None
        """Of the child, once it is started."""

    def send(self, data: bytes) -> None:
        """Send a message, after the setup."""
        self._outgoing.put(data)
        self._bell.ring()

    def wake(self) -> None:
        """Have `look` called soon. Also from inside the garbage collector: takes no lock."""
        self._bell.ring()

    def stop(self, patience_s: float) -> None:
        """Ask the child to end, then terminate it, then kill it."""
        self._patience_s = patience_s
        self._bell.ring()

    def kill(self) -> None:
        """Kill the child: it can't be asked."""
        self._killing = True
        self._bell.ring()

    def run(self) -> None:
        """Start the child and stay until it has ended. The kernel kills it if this thread ends before."""
        end: EngineDeadError | InternalError | int
        try:
            end = self._tend()
        except (OSError, zmq.ZMQError) as error:
            end = EngineDeadError(f"the stage's process can't be started: {error}")
        except BaseException as error:  # nobody may be left waiting
            log.critical("lost the stage's process", exc_info=error)
            end = InternalError(f"{type(error).__name__}: {error}")
        self._lost(end)

    def _tend(self) -> int | InternalError:
        """What it ended with."""
        line = Line.listen(self._bell)
        receiver = Receiver()
        child: ChildProcess | None = None
        try:
            with closing(receiver.hatch()) as hatch:
                child = ChildProcess(line.address, self._environ, hatch.number)
            self.pid = child.pid
            line.watch(child.pidfd)
            line.send(encode(self._setup))
            try:
                self._serve(line, child, receiver)
            except BadMessage as bad:
                # It is no child of this version, or its memory is broken: what else it says can't be trusted.
                return InternalError(f"the stage's process said something that can't be read: {bad}")
            code = child.code()
            assert code is not None
            return code
        finally:
            if child is not None:
                line.unwatch(child.pidfd)
                child.close()
            receiver.close()
            line.close(0.0)

    def _serve(self, line: Line, child: ChildProcess, receiver: Receiver) -> None:
        while child.code() is None:
            if self._patience_s is not None and not self._killing:
                self._end(line, child, receiver, self._patience_s)
                break
            overdue = self._leave_by_s is not None and time.monotonic() > self._leave_by_s
            if self._killing or overdue:
                child.send(signal.SIGKILL)
                child.wait(LOOK_S)
                continue
            self._forward(line)
            self._take(line, receiver, LOOK_S if self._look() or self._leave_by_s is not None else None)
        line.unwatch(child.pidfd)
        while self._leave_by_s is None and self._take(line, receiver, REST_S):
            pass
        line.watch(child.pidfd)

    def _end(self, line: Line, child: ChildProcess, receiver: Receiver, patience_s: float) -> None:
        """Ask, terminate, kill."""
        self._forward(line)
        line.send(encode(Stop(patience_s * 0.8)))
        for number, wait_s in ((None, patience_s), (signal.SIGTERM, TERM_S), (signal.SIGKILL, LEAVE_S)):
            if number is not None:
                log.warning(
                    "the stage's process did not end", extra={"pid": child.pid, "signal": number.name}
                )
                child.send(number)
            until_s = time.monotonic() + wait_s
            while (left_s := until_s - time.monotonic()) > 0:
                self._take(line, receiver, left_s)
                if child.code() is not None:
                    return

    def _forward(self, line: Line) -> None:
        try:
            while True:
                line.send(self._outgoing.get_nowait())
        except Empty:
            return

    def _take(self, line: Line, receiver: Receiver, timeout_s: float | None) -> bool:
        """Pass on what came, waiting for it for so long. False when nothing came. Raises: BadMessage."""
        messages = line.receive(timeout_s)
        for data in messages:
            tell = decode_tell(data)
            if isinstance(tell, Hello):
                line.seal()
                if tell.protocol != PROTOCOL:
                    raise BadMessage(f"version {tell.protocol} of the messages; expected {PROTOCOL}")
                continue
            if isinstance(tell, Leaving):
                self._leave_by_s = time.monotonic() + LEAVE_S
            elif isinstance(tell, Told):
                tell = Told(tuple(_whole(news, receiver) for news in tell.news))
            self._hear(tell)
        return bool(messages)


def _whole(news: News, receiver: Receiver) -> News:
    return replace(news, outcome=attach(news.outcome, news.parcel, receiver.take), parcel=None)
