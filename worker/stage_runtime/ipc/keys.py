"""CURVE keys for ranks on other hosts, read from a folder of small text files: a mounted Kubernetes secret.

Server and clients of one stage share a secret, so a folder may hold all four files; each side reads its own.
"""

from __future__ import annotations

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
    secret, public, client = _read(folder, KEY_SERVER_SECRET, KEY_SERVER_PUBLIC, KEY_CLIENT_PUBLIC)
    return ServerKeys(secret, public, frozenset({client}))


def load_client(folder: Path) -> ClientKeys:
    """Raises: SpecError with every file that is missing or holds no key."""
    return ClientKeys(*_read(folder, KEY_CLIENT_SECRET, KEY_CLIENT_PUBLIC, KEY_SERVER_PUBLIC))


def _read(folder: Path, secret: str, public: str, other: str) -> tuple[bytes, bytes, bytes]:
    """A pair of keys that belong together, and the other side's public one, by the names of their files."""
    faults: list[Fault] = []
    mine, shown, theirs = (_key(folder / name, faults) for name in (secret, public, other))
    if not faults and zmq.curve_public(mine) != shown:
        faults.append(Fault(str(folder / secret), "the secret of the public key beside it", "another key's"))
    if faults:
        raise SpecError(faults)
    return mine, shown, theirs


def _key(path: Path, faults: list[Fault]) -> bytes:
    """What the file holds; a fault where that is no key."""
    key, got = b"", ""
    try:
        key = path.read_bytes().strip()
        # What a file holds is never shown: it may be a secret with a flaw.
        if len(key) != KEY_CHARS:
            got = f"{len(key)} characters"
        else:
            zmq.curve_public(key)
    except OSError as error:
        got = error.strerror or str(error)
    except (zmq.ZMQError, ValueError):
        got = "other characters"
    if got:
        faults.append(Fault(str(path), f"a CURVE key, {KEY_CHARS} characters of Z85", got))
    return key
