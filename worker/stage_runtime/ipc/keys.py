"""CURVE keys for ranks on other hosts, read from a folder of small text files: a mounted Kubernetes secret.

Server and clients of one stage share a secret, so a folder may hold all four files; each side reads its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import zmq
from msgspec import Struct

from stage_api.errors import Fault, SpecError
from stage_api.names import KEY_CLIENT_PUBLIC, KEY_CLIENT_SECRET, KEY_SERVER_PUBLIC, KEY_SERVER_SECRET

KEY_CHARS = 40
"""A key is 32 bytes in Z85."""


class ServerKeys(Struct, frozen=True):
    """The engine's key pair, and the public keys of those who may connect. All in Z85."""

    secret: bytes
    public: bytes
    allowed: frozenset[bytes]

    def __repr__(self) -> str:
        return f"ServerKeys(public={self.public.decode()})"


class ClientKeys(Struct, frozen=True):
    """A rank's key pair, and the public key by which it knows the engine. All in Z85."""

    secret: bytes
    public: bytes
    server_public: bytes

    def __repr__(self) -> str:
        return f"ClientKeys(public={self.public.decode()})"


def generate() -> dict[str, str]:
    """New keys for one stage: text by file name."""
    server_public, server_secret = zmq.curve_keypair()
    client_public, client_secret = zmq.curve_keypair()
    return {
        KEY_SERVER_SECRET: server_secret.decode(),
        KEY_SERVER_PUBLIC: server_public.decode(),
        KEY_CLIENT_SECRET: client_secret.decode(),
        KEY_CLIENT_PUBLIC: client_public.decode(),
    }


def load_server(folder: Path) -> ServerKeys:
    """Raises: SpecError with every file that is missing or holds no key."""
    keys = _read(
        folder, {"secret": KEY_SERVER_SECRET, "public": KEY_SERVER_PUBLIC, "client": KEY_CLIENT_PUBLIC}
    )
    _check_pair(folder / KEY_SERVER_SECRET, keys["secret"], keys["public"])
    return ServerKeys(keys["secret"], keys["public"], frozenset({keys["client"]}))


def load_client(folder: Path) -> ClientKeys:
    """Raises: SpecError with every file that is missing or holds no key."""
    keys = _read(
        folder, {"secret": KEY_CLIENT_SECRET, "public": KEY_CLIENT_PUBLIC, "server": KEY_SERVER_PUBLIC}
    )
    _check_pair(folder / KEY_CLIENT_SECRET, keys["secret"], keys["public"])
    return ClientKeys(keys["secret"], keys["public"], keys["server"])


def _read(folder: Path, files: Mapping[str, str]) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    faults: list[Fault] = []
    for part, name in files.items():
        read = _key(folder / name)
        if isinstance(read, Fault):
            faults.append(read)
        else:
            keys[part] = read
    if faults:
        raise SpecError(faults)
    return keys


def _key(path: Path) -> bytes | Fault:
    expected = f"a CURVE key, {KEY_CHARS} characters of Z85"
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        return Fault(str(path), expected, error.strerror or str(error))
    # What a file holds is never shown: it may be a secret with a flaw.
    if len(key) != KEY_CHARS:
        return Fault(str(path), expected, f"{len(key)} characters")
    try:
        zmq.curve_public(key)
    except (zmq.ZMQError, ValueError):
        return Fault(str(path), expected, "other characters")
    return key


def _check_pair(path: Path, secret: bytes, public: bytes) -> None:
    if zmq.curve_public(secret) != public:
        raise SpecError([Fault(str(path), "the secret of the public key beside it", "another key's")])
