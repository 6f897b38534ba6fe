"""How the operator is set up: flags, or the environment where a flag is not given.

Every fault is found at once and named by its flag, before anything is started.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from stage_api.errors import Fault, SpecError, show
from stage_operator.values import PlanSettings

ENV_PREFIX: Final = "OMNISTAGE_OPERATOR_"  # before a flag's name in capitals
ENV_POD_NAME: Final = "POD_NAME"
ENV_POD_NAMESPACE: Final = "POD_NAMESPACE"
OWN_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


class WatchNodes(StrEnum):
    """Whether the nodes are watched. Namespaced rights don't reach them."""

    AUTO = "auto"
    YES = "true"
    NO = "false"


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Who leads, and for how long without a renewal. Durations in seconds."""

    name: str = "omnistage-operator"
    namespace: str = "default"
    identity: str = ""
    lease_s: int = 15
    renew_s: int = 10
    retry_s: float = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """All that is set from outside."""

    plan: PlanSettings
    namespaces: tuple[str, ...] = ()
    """Where stages are kept; empty is the whole cluster."""
    watch_nodes: WatchNodes = WatchNodes.AUTO
    workers: int = 16
    qps: float = 500
    burst: int = 1000
    resync_s: float = 300
    port: int = 8080
    lead: bool = True
    """Whether to take turns by a Lease; without, this is the only replica."""
    lease: LeaseTerms = field(default_factory=LeaseTerms)
    kubeconfig: str | None = None
    log_level: str = "INFO"


@dataclass(frozen=True, slots=True)
class _Flag:
    name: str
    default: str | None
    read: Callable[[str], Any]
    expected: str
    help: str

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.replace("-", "_").upper()


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return read


def _seconds(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return read


def _switch(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)


def _some(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text.strip()


def _namespace(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise ValueError(text)
    return text


def _namespaces(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_namespace(part.strip()) for part in text.split(",") if part.strip()))


def _level(text: str) -> str:
    if text.upper() not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
        raise ValueError(text)
    return text.upper()


_FLAGS: Final = (
    _Flag(
        "worker-image", None, _some, "the name of an image", "image of stages that name none; must be given"
    ),
    _Flag("allow-host-path", "false", _switch, "true or false", "let stages read folders of the nodes"),
    _Flag(
        "namespaces", "", _namespaces, "names of namespaces, with commas", "where stages are kept; none: all"
    ),
    _Flag(
        "watch-nodes", "auto", WatchNodes, "auto, true or false", "watch the nodes; auto: if it is allowed"
    ),
    _Flag("workers", "16", _whole(1, 256), "a number from 1 to 256", "stages that are worked on at a time"),
    _Flag(
        "qps", "500", _seconds(1, 10_000), "a number from 1 to 10000", "requests a second, in the long run"
    ),
    _Flag("burst", "1000", _whole(1, 100_000), "a number from 1 to 100000", "requests that may go at once"),
    _Flag("resync-seconds", "300", _seconds(5, 86_400), "5 to 86400", "between two lists of everything"),
    _Flag("port", "8080", _whole(0, 65_535), "a port", "of the probes and metrics; 0: any"),
    _Flag("leader-elect", "true", _switch, "true or false", "take turns with other replicas by a Lease"),
    _Flag("lease-name", "omnistage-operator", _some, "a name", "name of the Lease"),
    _Flag("lease-namespace", "", lambda text: text and _namespace(text), "a namespace", "default: its own"),
    _Flag("lease-seconds", "15", _whole(3, 3600), "3 to 3600", "a leader unheard for so long is gone"),
    _Flag("renew-seconds", "10", _whole(2, 3600), "2 to 3600", "a leader that can't renew for so long stops"),
    _Flag("retry-seconds", "2", _seconds(0.1, 600), "0.1 to 600", "between two looks at the Lease"),
    _Flag("identity", "", str, "a name", "who this replica is; default: its pod and a random part"),
    _Flag(
        "kubeconfig", "", str, "a path", "how to reach the API server; default: KUBECONFIG, or as a pod does"
    ),
    _Flag("log-level", "INFO", _level, "DEBUG, INFO, WARNING or ERROR", "what to log"),
)


def load(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> Settings:
    """The settings in flags and environment. SpecError with every fault; `--help` leaves the process."""
    parser = argparse.ArgumentParser("stage_operator", description=__doc__, allow_abbrev=False)
    for flag in _FLAGS:
        default = "" if flag.default in (None, "") else f" (default {flag.default})"
        parser.add_argument(f"--{flag.name}", metavar="VALUE", help=f"{flag.help}{default}; or {flag.env}")
    given = vars(parser.parse_args(list(argv)))
    values: dict[str, Any] = {}
    faults = []
    for flag in _FLAGS:
        text = given[flag.name.replace("-", "_")]
        text = env.get(flag.env, flag.default) if text is None else text
        try:
            values[flag.name] = flag.read("" if text is None else text)
        except ValueError:
            got = "nothing" if text is None else show(text)
            faults.append(Fault(f"--{flag.name}", flag.expected, got))
    faults.extend(_unfit(values))
    if faults:
        raise SpecError(faults)
    return _settings(values, env)


def _unfit(values: Mapping[str, Any]) -> list[Fault]:
    """A leader must stop before others may think it gone, and look more often than that."""
    names = ("lease-seconds", "renew-seconds", "retry-seconds")
    if not values.keys() >= set(names):
        return []
    lease_s, renew_s, retry_s = (values[name] for name in names)
    faults = []
    if renew_s >= lease_s:
        faults.append(Fault("--renew-seconds", f"less than --lease-seconds {lease_s}", str(renew_s)))
    if retry_s >= renew_s:
        faults.append(Fault("--retry-seconds", f"less than --renew-seconds {renew_s}", str(retry_s)))
    return faults


def _settings(values: Mapping[str, Any], env: Mapping[str, str]) -> Settings:
    who = env.get(ENV_POD_NAME) or socket.gethostname()
    lease = LeaseTerms(
        name=values["lease-name"],
        namespace=values["lease-namespace"] or _own_namespace(env) or "default",
        identity=values["identity"] or f"{who}_{secrets.token_hex(4)}",
        lease_s=values["lease-seconds"],
        renew_s=values["renew-seconds"],
        retry_s=values["retry-seconds"],
    )
    return Settings(
        plan=PlanSettings(
            values["worker-image"], allow_host_path=values["allow-host-path"], namespace=_own_namespace(env)
        ),
        namespaces=values["namespaces"],
        watch_nodes=values["watch-nodes"],
        workers=values["workers"],
        qps=values["qps"],
        burst=values["burst"],
        resync_s=values["resync-seconds"],
        port=values["port"],
        lead=values["leader-elect"],
        lease=lease,
        kubeconfig=values["kubeconfig"] or None,
        log_level=values["log-level"],
    )


def _own_namespace(env: Mapping[str, str]) -> str | None:
    """Where the pod is that this program runs in; None if it runs in none."""
    if name := env.get(ENV_POD_NAMESPACE):
        return name
    try:
        return OWN_NAMESPACE_FILE.read_text().strip() or None
    except OSError:
        return None
