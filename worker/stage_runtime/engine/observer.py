"""Who wants to know how waves and requests get on: metrics. Numbers only, times in seconds."""

from __future__ import annotations

from typing import Protocol

from stage_runtime.core.outcome import Terminal


class Observer(Protocol):
    """Told under the requests' lock, from any thread: each call is quick and raises nothing. Warm-up is not told."""

    def on_started(self, queue_s: float) -> None:
        """A request entered its first wave, `queue_s` after it was admitted."""

    def on_wave(self, size: int, steps: int, seconds: float) -> None:
        """`size` requests were advanced by about `steps` denoise steps each, in `seconds`."""

    def on_ended(self, outcome: Terminal, seconds: float) -> None:
        """A request ended, `seconds` after it was admitted."""


class Nobody:
    """Observes nothing."""

    def on_started(self, queue_s: float) -> None: ...

    def on_wave(self, size: int, steps: int, seconds: float) -> None: ...

    def on_ended(self, outcome: Terminal, seconds: float) -> None: ...
