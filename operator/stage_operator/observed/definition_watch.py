"""Whether the definition of stages still knows every field, as long as this program runs.

Somebody may take the cluster back to an older one. From then on fields are dropped without a word, among them what is
remembered of failures; so whoever decides by it stops until the definition is whole again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from stage_api import names
from stage_operator.client.definition import DefinitionOlder, check_definition
from stage_operator.client.kube import Kube, KubeError, Missing

LOOK_S: Final = 15.0
"""Between two looks at which schema is served. What it says is read only if it is another."""
INDEX: Final = "/openapi/v3"
_PATH: Final = f"apis/{names.API_VERSION}"

log = logging.getLogger(__name__)


class DefinitionWatch:
    """Looks at the definition, again and again."""

    def __init__(self, kube: Kube, *, on_whole: Callable[[], None]) -> None:
        """`on_whole`: it knows all fields again, after it did not."""
        self._kube = kube
        self._on_whole = on_whole
        self._wanted = asyncio.Event()
        self._served: str | None = None
        self.problem: str | None = None
        """What the definition lacks; None if it lacks nothing, as far as is known."""

    def look_soon(self) -> None:
        """Something speaks for it that the definition has changed."""
        self._served = None
        self._wanted.set()

    async def run(self) -> None:
        """Look until cancelled; it was whole at first."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wanted.wait()
            self._wanted.clear()
            await self.look()

    async def look(self) -> None:
        """Find out what is served now. Who gets no answer knows as much as before."""
        try:
            served = await self._served_now()
            if served is not None and served == self._served:
                return
            await check_definition(self._kube)
        except (DefinitionOlder, Missing) as error:
            self._served = None
            if self.problem is None:
                log.error("the definition is not whole any more", extra={"error": error.message})
            self.problem = error.message
        except KubeError as error:
            log.debug("the definition was not looked at", extra={"error": error.message})
        else:
            self._served = served
            if self.problem is not None:
                self.problem = None
                log.info("the definition is whole again")
                self._on_whole()

    async def _served_now(self) -> str | None:
        """A mark of the schema that is served, which is another for another one; None if there is none to be had."""
        paths = (await self._kube.fetch(INDEX)).get("paths") or {}
        url = (paths.get(_PATH) or {}).get("serverRelativeURL")
        return str(url) if url is not None else None
