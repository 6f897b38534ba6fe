"""Which of the replicas acts: the one that holds the Lease, until it can't be sure any more.

`judge` decides on what was seen, with this machine's own clock: another's clock is never read. A leader that can't
renew stops acting well before the others may think it gone. What it had under way then still can't do harm: statuses
are written against a version, pods by a name that can exist once, deletions by uid.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from stage_operator.client.kube import LEASES, Conflict, Kube, KubeError, Missing, Refused
from stage_operator.settings import LeaseTerms
from stage_operator.values import Manifest

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """A Lease as it was read last."""

    holder: str
    version: str
    since: float
    """When this version was first seen, by the clock of who looks."""
    lasts_s: float
    """How long its holder promised to renew it within."""


class Step(Enum):
    """What to do about the Lease."""

    TAKE = "take"  # nobody holds it
    RENEW = "renew"
    WAIT = "wait"  # somebody else holds it


def look(lease: Manifest, now: float, before: Seen | None) -> Seen:
    """What is seen now. A version that was seen before is as old as it was then."""
    spec = lease.get("spec") or {}
    version = str(lease["metadata"]["resourceVersion"])
    since = before.since if before is not None and before.version == version else now
    return Seen(
        spec.get("holderIdentity") or "", version, since, float(spec.get("leaseDurationSeconds") or 0)
    )


def judge(seen: Seen, me: str, now: float) -> Step:
    """What follows from a Lease: a holder that was silent for as long as it promised to speak within is gone."""
    if seen.holder == me:
        return Step.RENEW
    if not seen.holder or now >= seen.since + seen.lasts_s:
        return Step.TAKE
    return Step.WAIT


def may_act(renewed_at: float | None, terms: LeaseTerms, now: float) -> bool:
    """Whether a leader that began its last good renewal then can still be sure that it is one."""
    return renewed_at is not None and now < renewed_at + terms.renew_s


class Leadership:
    """One replica's part in taking turns."""

    def __init__(
        self,
        kube: Kube,
        terms: LeaseTerms,
        *,
        on_gain: Callable[[], None],
        on_loss: Callable[[str], None],
        owner: Manifest | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_gain` and `on_loss` are called as soon as it is known; the latter with the reason.

        `owner`: with what the Lease goes. Who uninstalls takes away the rights by which it could be released.
        """
        self._kube = kube
        self._terms = terms
        self._owners = {} if owner is None else {"ownerReferences": [owner]}
        self._on_gain = on_gain
        self._on_loss = on_loss
        self._clock = clock
        self._seen: Seen | None = None
        self._lease: Manifest | None = None
        self._renewed_at: float | None = None
        self._leads = False

    @property
    def leads(self) -> bool:
        """Whether this replica is the one that acts, at this moment."""
        return self._leads and may_act(self._renewed_at, self._terms, self._clock())

    async def run(self) -> None:
        """Take turns until cancelled."""
        failing = False
        while True:
            try:
                async with asyncio.timeout(self._patience_s()):
                    await self.turn()
            except (KubeError, TimeoutError) as error:
                if not failing:
                    log.warning("the Lease can't be reached", extra={"error": str(error)})
                failing = True
            else:
                if failing:
                    log.info("the Lease can be reached again")
                failing = False
            if self._leads and not may_act(self._renewed_at, self._terms, self._clock()):
                self._lose("it could not be renewed in time")
            await asyncio.sleep(self._pause_s())

    async def release(self) -> None:
        """Let another take over at once, if this one leads."""
        if not self._leads:
            return
        self._lose("this replica ends")
        try:
            async with asyncio.timeout(self._terms.retry_s):
                await self._let_go()
        except (KubeError, TimeoutError) as error:
            log.warning("the Lease was not released; it runs out by itself", extra={"error": str(error)})

    async def _let_go(self) -> None:
        # Read, since a renewal may have been cut off half-way.
        lease = await self._kube.get(LEASES, self._terms.namespace, self._terms.name)
        if lease["spec"].get("holderIdentity") == self._terms.identity:
            spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
            await self._kube.replace({**lease, "spec": spec}, in_turn=False)

    async def turn(self) -> None:
        """Look, and take or renew what can be had. KubeError if that can't be known."""
        began = self._clock()
        if self._leads and self._lease is not None:
            try:
                return self._hold(await self._put(self._lease, took=False), began)
            except (Conflict, Missing):
                pass  # somebody changed it: look who
        lease = await self._read()
        self._seen = look(lease, self._clock(), self._seen)
        step = judge(self._seen, self._terms.identity, self._clock())
        if step is Step.WAIT:
            self._lease = None
            if self._leads:
                self._lose(f"{self._seen.holder} holds the Lease")
            return None
        began = self._clock()
        try:
            self._hold(await self._put(lease, took=step is Step.TAKE), began)
        except Conflict:
            log.info("another was quicker to take the Lease")
        return None

    async def _read(self) -> Manifest:
        """The Lease, made if there is none yet."""
        terms = self._terms
        try:
            return await self._kube.get(LEASES, terms.namespace, terms.name)
        except Missing:
            metadata = {"name": terms.name, "namespace": terms.namespace}
            empty = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": {}}
            try:
                return await self._kube.create(empty, in_turn=False)
            except Conflict:
                return await self._kube.get(LEASES, terms.namespace, terms.name)

    async def _put(self, lease: Manifest, *, took: bool) -> Manifest:
        old = lease.get("spec") or {}
        spec: dict[str, Any] = {
            "holderIdentity": self._terms.identity,
            "leaseDurationSeconds": self._terms.lease_s,
            "acquireTime": old.get("acquireTime") if not took and old.get("acquireTime") else _now(),
            "renewTime": _now(),
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + took,
        }
        wanted = {**lease, "spec": spec}
        try:
            owned = {**wanted, "metadata": {**lease["metadata"], **self._owners}}
            return await self._kube.replace(owned, in_turn=False)
        except Refused:
            if not self._owners:
                raise
            self._owners = {}  # some clusters let only those name an owner who may delete the object
            return await self._kube.replace(wanted, in_turn=False)

    def _hold(self, lease: Manifest, began: float) -> None:
        self._lease = lease
        self._renewed_at = began
        if not self._leads:
            self._leads = True
            log.info("this replica leads", extra={"identity": self._terms.identity})
            self._on_gain()

    def _lose(self, why: str) -> None:
        self._leads = False
        self._renewed_at = None
        log.warning("this replica leads no more", extra={"why": why})
        self._on_loss(why)

    def _patience_s(self) -> float:
        """How long one turn may take: a leader's not beyond the moment at which it must stop."""
        if self._renewed_at is None:
            return self._terms.renew_s
        return max(0.01, self._renewed_at + self._terms.renew_s - self._clock())

    def _pause_s(self) -> float:
        pause_s = self._terms.retry_s
        if not self._leads:  # those who wait don't come all at once
            return pause_s * random.uniform(1, 1.2)
        if self._renewed_at is None:
            return pause_s
        return min(pause_s, max(0.01, self._renewed_at + self._terms.renew_s - self._clock()))


class Always:
    """The leadership of the only replica."""

    leads: Final = True


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
