"""Where control calls come in: a socket of the pod's own user in a local run, the pod's own loopback on a cluster."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import FastAPI

from stage_api import names
from stage_api.control import ControlSpec
from stage_runtime.hosting.client import StageClient
from stage_runtime.ipc.socket_folder import private_folder
from stage_runtime.server.control.app import create_control_app
from stage_runtime.server.http.serve import CannotListen, listen

LOOPBACK: Final = "127.0.0.1"
"""What a port-forward of the kubelet reaches, and nobody else outside the pod."""
BACKLOG: Final = 16


@dataclass(frozen=True, slots=True)
class ControlListener:
    """An application and the socket that it is served on."""

    app: FastAPI
    listening: socket.socket


def control_listener(
    spec: ControlSpec, stage: StageClient, environ: Mapping[str, str]
) -> ControlListener | None:
    """The listener, if the stage is to have one. Raises: CannotListen; OSError for a folder that can't be made."""
    if not spec.enabled:
        return None
    path = environ.get(names.ENV_CONTROL_SOCKET)
    token = None if path else Path(names.CONTROL_TOKEN_DIR) / names.TOKEN_FILE
    traces = private_folder(None, "traces")
    app = create_control_app(stage, traces=traces, token=token)
    return ControlListener(app, _listen_at(path) if path else listen(LOOPBACK, names.CONTROL_PORT))


def _listen_at(path: str) -> socket.socket:
    """A socket that only this user may connect to, in the place of one that another life left."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        Path(path).unlink(missing_ok=True)
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise CannotListen(f"can't listen on {path}: {error.strerror or error}") from error
    return listening
