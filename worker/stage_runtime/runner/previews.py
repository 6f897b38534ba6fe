"""Pictures of requests that are still on their way: each decodes a checkpoint in a script of its own, beside them.

Those that are due together decode together. One whose decoder answers late is shown with a later outcome of its
request, and never if the request ends first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from stage_runtime.core.error_codec import words_of
from stage_runtime.core.outcome import Output
from stage_runtime.core.request import Request
from stage_runtime.runner.script_factory import ScriptFactory
from stage_runtime.scripts.noise import generator_of
from stage_runtime.scripts.replay import Checkpoint
from stage_runtime.scripts.script import Script

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Preview:
    """What a request looked like after one of its steps."""

    output: Output
    index: int
    """Place in the request's `preview_steps`."""


class _Begun(NamedTuple):
    request: Request
    step: int
    script: Script


@dataclass(slots=True)
class Previews:
    """`convert(script)`: what a script that ended has made, or why there is nothing.

    `shown`: False on a rank whose pictures nobody wants; it decodes since the ranks do so together.
    """

    factory: ScriptFactory
    convert: Callable[[Script], Output | Exception]
    on_fault: Callable[[Exception], None]
    shown: bool = True
    _begun: dict[str, _Begun] = field(default_factory=dict)
    _steps: dict[str, int] = field(default_factory=dict)
    """The last step that a preview was begun for, by request."""

    def due(self, request: Request, script: Script) -> bool:
        """True past a step after which one was asked for, once the script waits there for its denoiser."""
        step = self._reached(request, script)
        return (
            step > self._steps.get(request.request_id, 0)
            and not script.done
            and not self.factory.hub.asks(script)
        )

    def begin(self, request: Request, script: Script, checkpoint: Checkpoint) -> None:
        """Decode that checkpoint of the request."""
        step = self._steps[request.request_id] = self._reached(request, script)
        name = f"{request.request_id}/preview-{step}"
        generator = generator_of(request, self.factory.pipeline.device)
        own = self.factory.open(name, request.arguments, generator, checkpoint, decode_only=True)
        self._begun[name] = _Begun(request, step, own)

    @staticmethod
    def _reached(request: Request, script: Script) -> int:
        """The latest step that is done and after which one was asked for; 0: none yet."""
        return max((step for step in request.preview_steps if step <= script.steps), default=0)

    def draw(self) -> dict[str, Preview]:
        """Those that are done, by request: one each."""
        if not self._begun:
            return {}
        self.factory.hub.play(self._begun)
        drawn: dict[str, Preview] = {}
        for name, (request, step, script) in list(self._begun.items()):
            if not script.done or request.request_id in drawn:
                continue
            picture = self.convert(script) if self.shown else None
            if isinstance(picture, Output):
                drawn[request.request_id] = Preview(picture, request.preview_steps.index(step))
            elif picture is not None:
                self.on_fault(picture)
                why = words_of(picture)[:200]
                log.warning("preview not drawn", extra={"request_id": request.request_id, "why": why})
            self._drop(name)
        return drawn

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request."""
        if self._steps.pop(request_id, None) is not None:
            for name in [n for n, one in self._begun.items() if one.request.request_id == request_id]:
                self._drop(name)

    def _drop(self, name: str) -> None:
        del self._begun[name]
        self.factory.forget(name)
