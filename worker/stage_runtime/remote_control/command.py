"""`omnistage control STAGE ACTION`: what a person asks for, done by every replica, told in a line for each."""

from __future__ import annotations

import argparse
import errno
import os
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from stage_runtime.core.errors import StageError
from stage_runtime.local.control_socket import runs_of
from stage_runtime.remote_control.client import ControlClient
from stage_runtime.remote_control.cluster import KubernetesCluster, NoSuchStage, replicas_on

_MIB: Final = 1 << 20


def control(arguments: argparse.Namespace) -> int:
    """Do it; 1 if any replica did not. Raises: NoSuchStage; OSError for a file of the arguments."""
    replicas = _replicas(arguments)
    if arguments.replica is not None:
        if arguments.replica not in replicas:
            there = ", ".join(map(str, replicas)) or "none"
            raise NoSuchStage(
                f"{arguments.stage} has no replica {arguments.replica} that runs; there: {there}"
            )
        replicas = {arguments.replica: replicas[arguments.replica]}
    failed = False
    for replica, client in replicas.items():
        try:
            said = _ACTIONS[arguments.action](client, arguments, replica)
        except (StageError, OSError) as error:
            failed = True
            print(f"omnistage: {arguments.stage} replica {replica}: {error}", file=sys.stderr)
        else:
            print(f"{arguments.stage} replica {replica}: {said}", flush=True)
    return int(failed)


def _replicas(arguments: argparse.Namespace) -> dict[int, ControlClient]:
    """A client for each replica that runs. Raises: NoSuchStage if there is none."""
    if any((arguments.namespace, arguments.context, arguments.kubeconfig, arguments.token_file)):
        token = (
            None
            if arguments.token_file is None
            else arguments.token_file.read_bytes().decode("latin-1").strip()
        )
        cluster = KubernetesCluster(arguments.namespace, arguments.context, arguments.kubeconfig)
        found = replicas_on(cluster, arguments.stage, token)
        where = f"in namespace {cluster.namespace}"
    else:
        paths = runs_of(arguments.stage)
        found = {place: ControlClient(partial(_connect, path)) for place, path in enumerate(paths)}
        where = "on this machine with spec.control.enabled; for one on a cluster say --namespace"
    if not found:
        raise NoSuchStage(f"no replica of {arguments.stage} runs {where}")
    return found


def _connect(path: Path) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.connect(str(path))
    except OSError:
        connected.close()
        raise
    return connected


def _health(client: ControlClient, _arguments: argparse.Namespace, _replica: int) -> str:
    told = client.call("GET", "")
    return "\n".join([told["phase"], *(f"  rank {rank['rank']}: {_rank(rank)}" for rank in told["ranks"])])


def _rank(rank: Mapping[str, Any]) -> str:
    words = [rank["device"], f"{rank['allocated_bytes'] / _MIB:.0f} MiB"]
    words += [state for state in ("paused", "asleep") if rank.get(state)]
    return ", ".join(words)


def _pause(client: ControlClient, _arguments: argparse.Namespace, _replica: int) -> str:
    client.call("POST", "/pause")
    return "paused"


def _resume(client: ControlClient, _arguments: argparse.Namespace, _replica: int) -> str:
    client.call("POST", "/resume")
    return "goes on"


def _sleep(client: ControlClient, arguments: argparse.Namespace, _replica: int) -> str:
    freed = client.call("POST", "/sleep", {"level": arguments.level})["bytes"]
    return f"asleep, {sum(freed) / _MIB:.0f} MiB freed"


def _wake(client: ControlClient, _arguments: argparse.Namespace, _replica: int) -> str:
    back = client.call("POST", "/wake")["bytes"]
    return f"awake, {sum(back) / _MIB:.0f} MiB back"


def _start_profile(client: ControlClient, _arguments: argparse.Namespace, _replica: int) -> str:
    client.call("POST", "/profile/start")
    return "recording"


def _stop_profile(client: ControlClient, arguments: argparse.Namespace, replica: int) -> str:
    """Traces of several replicas have the same names, so each replica has its folder.

    It is there before the recording ends, which ends but once.
    """
    folder = arguments.output / f"{arguments.stage}-{replica}"
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    traces = client.call("POST", "/profile/stop")["traces"]
    lines = ["recorded"]
    for rank, name in enumerate(traces):
        target = folder / Path(name).name
        client.download(rank, target)
        lines.append(f"  {target}")
    return "\n".join(lines)


_Action = Callable[[ControlClient, argparse.Namespace, int], str]
_ACTIONS: Final[Mapping[str, _Action]] = {
    "health": _health,
    "pause": _pause,
    "resume": _resume,
    "sleep": _sleep,
    "wake": _wake,
    "profile-start": _start_profile,
    "profile-stop": _stop_profile,
}
