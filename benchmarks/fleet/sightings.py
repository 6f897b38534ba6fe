"""A watch of our own, beside the operator's: what became of objects, and when that could be known."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.dynamic import DynamicClient

from stage_operator.client.kube import Resource

Manifest = dict[str, Any]
See = Callable[[str, Manifest, float], None]
"""Gets an event's type, its object, and the time by `time.monotonic` at which it was read."""

_LINE_BYTES: Final = 2**20


@asynccontextmanager
async def watching(
    configuration: Configuration, resource: Resource, namespace: str, see: See
) -> AsyncIterator[None]:
    """Tell of every event from now on. An end of the watch by the server is an error: nothing may be missed."""
    client = ApiClient(configuration)
    dynamic = DynamicClient(client)
    path = resource.path(namespace)
    try:
        listing = await dynamic.request("get", path, query_params=[("limit", "1")], serialize=False)
        version = json.loads(await listing.read())["metadata"]["resourceVersion"]
        query = [("watch", "true"), ("resourceVersion", version), ("timeoutSeconds", "3600")]
        timeout = aiohttp.ClientTimeout(total=None)
        response = await dynamic.request(
            "get", path, query_params=query, serialize=False, _request_timeout=timeout
        )
        task = asyncio.create_task(_read(response, see))
        try:
            yield
            if task.done():
                task.result()
                raise RuntimeError(f"the watch of {path} ended")
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    finally:
        await client.close()


async def _read(response: Any, see: See) -> None:
    rest = b""
    async for chunk in response.content.iter_any():
        at = time.monotonic()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise RuntimeError(f"a watch failed: {event['object']}")
            see(event["type"], event["object"], at)
