"""What a pod that starts is doing just now, as `/startupz` has it under `progress`.

The runtime writes it; the operator, a local run and people read it. It is told, and nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import ConfigDict, Field, ValidationError

from stage_api.base import Contract

FIELD: Final = "progress"
"""Of the body of `/startupz`."""
MAX_CHARS: Final = 128
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


class Activity(StrEnum):
    """What a start goes through, in this order; not each has all."""

    FETCHING = "fetching"  # the model's files, counted in bytes
    LOADING = "loading"  # its components
    PROBING = "probing"  # what of it can be batched, a component at a time
    WARMING = "warming up"  # by requests of its own


_COUNTED: Final = {
    Activity.LOADING: "components",
    Activity.PROBING: "components",
    Activity.WARMING: "requests",
}


class StartProgress(Contract):
    """How far a start has come in what it is doing."""

    # A reader may be older than who wrote it.
    model_config = ConfigDict(extra="ignore")

    activity: Annotated[Activity, Field(strict=False)] = Field(description="What it is doing.")
    what: Annotated[str, Field(max_length=MAX_CHARS)] = Field("", description="On which file or component.")
    done: Annotated[int, Field(ge=0)] | None = Field(default=None, description="How much of it is done.")
    total: Annotated[int, Field(ge=0)] | None = Field(default=None, description="How much there is.")

    def text(self) -> str:
        """In words: `fetching the model: 1.2 GB of 3.4 GB`, `loading the model: transformer, 2 of 5 components`."""
        about = f"{self.activity} the model"
        facts = ", ".join(fact for fact in (self.what, self._count()) if fact)
        return f"{about}: {facts}" if facts else about

    def encode(self) -> str:
        """For another process of the pod."""
        return self.model_dump_json(by_alias=True, exclude_none=True)

    @classmethod
    def decode(cls, text: str) -> Self:
        """What `encode` gave."""
        return cls.model_validate_json(text, by_alias=True, by_name=False)

    def _count(self) -> str:
        if self.done is None:
            return ""
        if self.activity is Activity.FETCHING:
            return _bytes(self.done) if self.total is None else f"{_bytes(self.done)} of {_bytes(self.total)}"
        counted = _COUNTED[self.activity]
        return f"{self.done} {counted}" if self.total is None else f"{self.done} of {self.total} {counted}"

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self | None:
        """What the body of `/startupz` tells; None if it tells nothing that this version understands."""
        try:
            return cls.model_validate(body.get(FIELD), by_alias=True, by_name=False)
        except ValidationError:
            return None


def _bytes(count: int) -> str:
    size, unit = float(count), 0
    while size >= 999.95 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{count} B"
