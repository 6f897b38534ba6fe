"""The thread that starts a stage's child, carries messages both ways, and sees it end."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final

import zmq
from msgspec import Struct
from msgspec.structs import replace

from stage_api.errors import SpecError
from stage_runtime.core.errors import EngineDeadError, EngineHung, InternalError, StageError
from stage_runtime.hosting import messages
from stage_runtime.ipc.channel import BadReply, EngineChannel, PeerGone
from stage_runtime.ipc.codec import BadMessage, attach, encode
from stage_runtime.ipc.shm import Receiver
from stage_runtime.processes.child import death_of
from stage_runtime.processes.children import Children

LOOK_S: Final = 0.25  # between two looks at a child that has something to do
LEAVE_S: Final = 5.0  # from a child's last words to its end
REST_S: Final = 0.05  # for what a child sent before it was killed

log = logging.getLogger(__name__)

Heard = messages.Answered | messages.Told | messages.Leaving


class ChildThread:
    """One child's life. `run` is the thread; the rest may be called from any."""

    def __init__(
        self,
        setup: messages.Setup,
        environ: Mapping[str, str],
        *,
        hear: Callable[[Heard], None],
        look: Callable[[], bool],
        lost: Callable[[BaseException | None], None],
    ) -> None:
        """All three are called in the thread.

        `hear` gets each message, outputs whole. `look` is asked now and then, and says whether the child has something
        to do. `lost` is called once, in the end: with what it ended of, None when in order.
        """
        self._environ = environ
        self._hear, self._look, self._lost = hear, look, lost
        self._outgoing: deque[bytes] = deque([encode(setup)])
        """NB: from any thread; they wait here until the child is connected, and while it doesn't read."""
        self._channel: EngineChannel | None = None
        self._children = Children()
        self._receiver = Receiver()
        self._patience_s: float | None = None
        self._killing = self._seen = False
        self._leave_by_s: float | None = None
        self._verdict: EngineDeadError | None = None

    @property
    def pid(self) -> int | None:
        """Of the child, once it is started."""
        return self._children.pids.get(0)

    def send(self, ask: Struct) -> None:
        """Send a message, after the setup. Raises: BadMessage."""
        self._outgoing.append(encode(ask))
        self.wake()

    def wake(self) -> None:
        """Have `look` called soon. Also from inside the garbage collector: takes no lock."""
        if self._channel is not None:
            self._channel.wake()

    def stop(self, patience_s: float) -> None:
        """Ask the child to end, then kill it."""
        self._patience_s = patience_s
        self.wake()

    def kill(self) -> None:
        """Kill the child: it can't be asked."""
        self._killing = True
        self.wake()

    def run(self) -> None:
        """Start the child and stay until it has ended. The kernel kills it if this thread ends before."""
        end: BaseException | None
        try:
            self._channel = EngineChannel(decode=messages.decode_tell)
            with closing(self._channel):
                end = self._attend(self._channel)
        except (SpecError, StageError) as error:
            end = error
        except (OSError, zmq.ZMQError) as error:
            end = EngineDeadError(f"the engine's process can't be started: {error}")
        except BaseException as error:  # nobody may be left waiting
            log.critical("lost the engine's process", exc_info=error)
            end = InternalError(f"{type(error).__name__}: {error}")
        self._lost(end)

    def _attend(self, channel: EngineChannel) -> BaseException | None:
        """What it ended of. Raises: BadMessage; SpecError, ModelError, as its code says."""
        try:
            with closing(self._receiver.file_pipe()) as pipe:
                command = [
                    *(sys.executable, "-m", "stage_runtime.hosting.proc", "--engine", channel.address),
                    *("--file-pipe", str(pipe.number), "--parent", str(os.getpid())),
                ]
                self._children.start({0: command}, self._environ, {0: pipe.number})
            self._children.watch(lambda _number, _code: channel.wake(), self._stopped)
            while not self._children.ended():
                overdue = self._leave_by_s is not None and time.monotonic() > self._leave_by_s
                if self._patience_s is not None or self._killing or overdue:
                    self._end(channel)
                    break
                self._forward(channel)
                self._take(channel, LOOK_S if self._look() or self._leave_by_s is not None else None)
            while self._leave_by_s is None and self._take(channel, REST_S):
                pass
            code = self._children.ended().get(0, 0)
            return self._verdict or (death_of("the engine's process", code) if code else None)
        finally:
            self._children.stop(lambda: None, patience_s=0.0)
            self._receiver.close()

    def _end(self, channel: EngineChannel) -> None:
        if self._patience_s is not None and not self._killing:
            self._outgoing.append(encode(messages.Stop(self._patience_s * 0.8)))
            until_s = time.monotonic() + self._patience_s
            while not self._children.ended() and (left_s := until_s - time.monotonic()) > 0:
                self._forward(channel)
                self._take(channel, min(left_s, LOOK_S))
        if not self._children.ended():
            if not self._killing:
                log.warning("the engine's process did not end", extra={"pid": self.pid})
            self._children.kill()
            self._children.wait(LEAVE_S)

    def _stopped(self, _number: int) -> None:
        """In the watching thread: the child is stopped."""
        self._verdict = EngineHung("the engine's process is stopped")
        self.kill()

    def _forward(self, channel: EngineChannel) -> None:
        while self._seen and self._outgoing:
            try:
                channel.send([0], self._outgoing[0])
            except PeerGone:
                return  # it doesn't read now, or has ended
            self._outgoing.popleft()

    def _take(self, channel: EngineChannel, timeout_s: float | None) -> bool:
        """Pass on what came, waiting for it for so long. False when nothing came.

        Raises: BadMessage for what no child of this version says: what else it says can't be trusted.
        """
        came = channel.receive(timeout_s)
        for message in came:
            match message:
                case messages.Hello(protocol=protocol):
                    channel.seal()
                    self._seen = True
                    if protocol != messages.PROTOCOL:
                        raise BadMessage(
                            f"version {protocol} of the messages came; expected {messages.PROTOCOL}"
                        )
                    continue
                case BadReply(why=why):
                    raise BadMessage(f"the engine's process said something that can't be read: {why}")
                case messages.Leaving():
                    self._leave_by_s = time.monotonic() + LEAVE_S
                case messages.Told(events=events) if events:
                    message = replace(message, events=tuple(map(self._whole, events)))
            self._hear(message)
        return bool(came)

    def _whole(self, event: messages.Event) -> messages.Event:
        return replace(event, outcome=attach(event.outcome, event.parcel, self._receiver.take), parcel=None)
