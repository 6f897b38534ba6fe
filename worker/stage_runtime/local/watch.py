"""Tells the person at the terminal what becomes of the stage: where it listens, when it is ready, what it can do.

Asks over HTTP, as a kubelet and a client do.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from stage_api import names
from stage_api.config import StageConfig
from stage_runtime.local.parent_link import ParentEnd

_LOOK_EVERY_S: Final = 0.1
_PATIENCE_S: Final = 5.0  # for one answer


class Watch:
    """Follows one life of the stage up to ready, in a thread of its own, and tells of it."""

    def __init__(self, parent_link: ParentEnd, config: StageConfig, *, again: bool) -> None:
        """`again`: it is not the first life, so what was told of that needs no telling."""
        self._parent_link = parent_link
        self._config = config
        self._again = again
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)
        self.port: int | None = None
        """Where it listens, once it says so."""
        self.ready_at_s: float | None = None
        """When it was ready, on the monotonic clock."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """The life is over: tell nothing more of it."""
        self._over.set()
        self._thread.join(2 * _PATIENCE_S)

    def _follow(self) -> None:
        url = self._parent_link.url()
        if url is None:
            return
        self.port = urlsplit(url).port
        name = self._config.name
        _say(f"{name} starts{' again' if self._again else ''}, and will answer at {url}")
        if not self._wait_ready(url):
            return
        self.ready_at_s = time.monotonic()
        _say(f"{name} is ready at {url}/v1")
        if self._again:
            return
        try:
            found = _get(url, "/v1/models")
        except OSError:  # it ended meanwhile
            return
        for line in _abilities(self._config, found["data"][0] if found else {}):
            _say(f"  {line}")
        _say("Ctrl-C stops it once what runs is done; a second one at once")

    def _wait_ready(self, url: str) -> bool:
        """Wait until requests are admitted. False when the life is over."""
        while not self._over.wait(_LOOK_EVERY_S):
            try:
                if _get(url, names.PATH_READY) is not None:
                    return not self._over.is_set()
            except OSError:
                return False
        return False


def _get(url: str, path: str) -> dict[str, Any] | None:
    """The JSON of an answer; None when it isn't 200. Raises: OSError when nobody listens."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except TimeoutError:
        return None
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()
    if answer.status != http.client.OK:
        return None
    value = json.loads(body)
    return value if isinstance(value, dict) else None


def _abilities(config: StageConfig, card: Mapping[str, Any]) -> Iterator[str]:
    """What was found out about the model at load, for people."""
    found = card.get("capability")
    if not found:
        return
    together = (
        f"up to {config.engine.max_num_seqs} requests run together" if found["batches"] else "runs alone"
    )
    join = {"step": "at the next step", "request": "with the next wave"}[config.engine.mode.value]
    yield f"{card['pipeline']}: {together}; a late one joins {join}"
    for part in found["components"]:
        how = "calls are merged" if part["merges"] else f"calls run alone: {part['reason']}"
        ragged = ", also for prompts of different lengths" if part["ragged"] else ""
        yield f"{part['name']}: {how}{ragged}"
    if not found["previews"]:
        yield f"no previews: {found['previews_reason']}"


def _say(text: str) -> None:
    print(text, flush=True)
