"""Asks a pod about itself over HTTP. Its answer is small, comes soon and is JSON, or it is none."""

from __future__ import annotations

import json
from typing import Final

import aiohttp

from stage_operator.values import FIELD_MANAGER, Manifest

CONNECT_S: Final = 2.0
ANSWER_S: Final = 3.0
MAX_BYTES: Final = 256 * 1024


class Unreachable(Exception):
    """The pod gave no answer that can be used."""


class PodHttp:
    """A client for one event loop. It follows no redirect and knows no proxy: pods are asked themselves."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def get(self, address: str, port: int, path: str) -> Manifest:
        """The object that a pod answers with, whatever the status. Raises: Unreachable, with address and cause."""
        host = f"[{address}]" if ":" in address else address
        where = f"{host}:{port}"
        try:
            return _object(await self._read(f"http://{where}{path}"))
        except TimeoutError as error:
            raise Unreachable(f"{where}: no answer within {ANSWER_S:.0f} s") from error
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            raise Unreachable(f"{where}: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _read(self, url: str) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
                timeout=aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S),
                headers={"User-Agent": FIELD_MANAGER, "Accept-Encoding": "identity"},
                auto_decompress=False,
                trust_env=False,
            )
        async with self._session.get(url, allow_redirects=False) as response:
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > MAX_BYTES:
                    raise ValueError(f"an answer of more than {MAX_BYTES} bytes")
            return bytes(body)


def _object(body: bytes) -> Manifest:
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError("an answer that is no JSON object")
    return found
