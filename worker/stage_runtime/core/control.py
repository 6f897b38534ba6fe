"""Calls that steer running work; they pass through the engine's loop, between two ticks."""

from __future__ import annotations

from msgspec import Struct


class StopEarly(Struct, frozen=True, tag="stop_early"):
    """Skip the denoise steps of a running request after the one it is in, and decode what it has."""

    request_id: str


class Outstanding(Struct, frozen=True, tag="outstanding"):
    """Count what the runner still holds, by kind: scripts, checkpoints, pending calls. All 0 at rest."""


Control = StopEarly | Outstanding
