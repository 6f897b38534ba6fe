"""The real engine with a lower floor for hangs, and the real executor with a channel that loses replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from stage_api.config import StageConfig
from stage_runtime.core.control import Control
from stage_runtime.engine.engine import Engine
from stage_runtime.engine.pace import Pace
from stage_runtime.executor.mp import MpExecutor
from stage_runtime.ipc.channel import BadReply, EngineChannel
from stage_runtime.ipc.codec import BadMessage, decode_reply, encode
from stage_runtime.ipc.messages import Answered, OutputReady, Reply, Ticked
from stage_runtime.pipelines.contract import ResolvedModel

FLOOR_S: Final = 3.0
"""What any tick may take here. A busy machine makes pauses of its own, so not less."""
ANSWER_S: Final = 3.0
"""What a rank that has nothing else to do may take to answer a call."""

Heard = Reply | BadReply


class HastyEngine(Engine):
    """Takes a hang for one sooner."""

    def __init__(self, *, startup_timeout_s: float, **options: Any) -> None:
        pace = Pace(startup_timeout_s=startup_timeout_s, floor_s=FLOOR_S)
        super().__init__(startup_timeout_s=startup_timeout_s, pace=pace, **options)


class LossyChannel(EngineChannel):
    """Loses, spoils or holds back replies: those that `meddle` is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: Callable[[Reply], bool] = lambda reply: False
        self.spoil: Callable[[Reply], Heard | None] = lambda reply: reply
        self.once = True

    def receive(self, timeout_s: float | None) -> list[Heard]:
        """What has come, less what is lost."""
        heard = [self._meddled(reply) for reply in super().receive(timeout_s)]
        return [reply for reply in heard if reply is not None]

    def _meddled(self, reply: Heard) -> Heard | None:
        if isinstance(reply, BadReply) or not self.wanted(reply):
            return reply
        if self.once:
            self.wanted = lambda _: False
        return self.spoil(reply)


def lost(_reply: Reply) -> None:
    """It never came."""


def cut_short(reply: Reply) -> Heard:
    """The same bytes without the last ones, and what the codec makes of them."""
    try:
        return decode_reply(encode(reply)[:-3])
    except BadMessage as bad:
        return BadReply(reply.rank, str(bad))


def is_answer(reply: Reply) -> bool:
    """The answer to a control call."""
    return isinstance(reply, Answered)


def ends_work(reply: Reply) -> bool:
    """The last word on a command: in step mode each tick's, in request mode of the whole run."""
    return isinstance(reply, Ticked) and reply.idle


def is_output(reply: Reply) -> bool:
    """An output that was on its way."""
    return isinstance(reply, OutputReady)


class LossyExecutor(MpExecutor):
    """Ranks whose replies may get lost."""

    def __init__(self, config: StageConfig, model: ResolvedModel, *, epoch: int) -> None:
        channels: list[LossyChannel] = []

        def open_channel() -> LossyChannel:
            channels.append(LossyChannel())
            return channels[0]

        super().__init__(config, epoch=epoch, open_channel=open_channel, patience_s=_patience_s)
        (self.lossy,) = channels


def _patience_s(_call: Control) -> float:
    return ANSWER_S
