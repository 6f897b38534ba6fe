"""What Kubernetes and people may ask the operator itself: is it alive, is it ready, how is it doing.

Alive is what a restart would mend: the loop turns, stages get their turn, the watches move. An API server that can't
be reached is no fault of this process, which tries again and so counts as moving.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from stage_operator.telemetry.metrics import CONTENT_TYPE

MAX_LAG_S: Final = 5.0
MAX_QUEUE_S: Final = 600.0
MAX_WORK_S: Final = 600.0
MAX_QUIET_S: Final = 150.0
_BEAT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """What liveness is judged by. Seconds."""

    lag_s: float
    oldest_s: float
    longest_s: float
    quiet_s: float
    """Since the watches last asked or heard anything."""


def ailments(pulse: Pulse) -> tuple[str, ...]:
    """Why a restart would be good; nothing if it wouldn't."""
    limits = (
        ("the event loop was late by", pulse.lag_s, MAX_LAG_S),
        ("a stage has waited for its turn for", pulse.oldest_s, MAX_QUEUE_S),
        ("a reconcile has been going on for", pulse.longest_s, MAX_WORK_S),
        ("no watch has moved for", pulse.quiet_s, MAX_QUIET_S),
    )
    return tuple(
        f"{what} {value:.1f} s, more than {limit:.0f} s" for what, value, limit in limits if value > limit
    )


class Heart:
    """How late the event loop is: a beat that is due each second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beat_at = clock()
        self._late_s = 0.0

    @property
    def lag_s(self) -> float:
        """How late the last beat was, or how late the next one is by now."""
        return max(self._late_s, self._clock() - self._beat_at - _BEAT_S, 0.0)

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await asyncio.sleep(_BEAT_S)
            now = self._clock()
            self._late_s = max(0.0, now - self._beat_at - _BEAT_S)
            self._beat_at = now


class HealthServer:
    """/livez, /readyz and /metrics on one port."""

    def __init__(
        self,
        *,
        pulse: Callable[[], Pulse],
        missing: Callable[[], str | None],
        metrics: Callable[[], bytes],
    ) -> None:
        """`missing` says what this replica still lacks to be ready, as leader or as a warm standby."""
        self._pulse = pulse
        self._missing = missing
        self._metrics = metrics
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._scrape)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1)

    async def start(self, port: int) -> int:
        """Listen on all addresses. The answer is the port."""
        await self._runner.setup()
        listener = _listener(port)
        await web.SockSite(self._runner, listener).start()
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """Listen no more."""
        await self._runner.cleanup()

    async def _livez(self, request: web.Request) -> web.Response:
        found = ailments(self._pulse())
        return web.Response(text="\n".join(found) or "ok", status=500 if found else 200)

    async def _readyz(self, request: web.Request) -> web.Response:
        lacks = self._missing()
        return web.Response(text=lacks or "ok", status=200 if lacks is None else 503)

    async def _scrape(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": CONTENT_TYPE})


def _listener(port: int) -> socket.socket:
    """One socket for both families, so that a port chosen by the system is the same for both."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", port))
