"""What a ready pod tells of itself: facts that were found out while it loaded, as `/v1/models` has them.

They are shown in the stage's status, for people and for programs that choose among stages. Nothing about life and
death is decided by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Self

from pydantic import ConfigDict, Field

from stage_api.base import Contract

MAX_WORD: Final = 128
MAX_REASON: Final = 256
MAX_COMPONENTS: Final = 16

Word = Annotated[str, Field(max_length=MAX_WORD)]
Why = Annotated[str, Field(max_length=MAX_REASON)]


class _Told(Contract):
    # A status is read by programs that may be older than the one that wrote it.
    model_config = ConfigDict(extra="ignore")


class ComponentFacts(_Told):
    """What was found out about one component of the model."""

    name: Word = Field(description="Component and method, such as transformer.forward.")
    merges: bool = Field(description="Whether calls of several requests are run as one.")
    reason: Why = Field("", description="Why they aren't.")


class CapabilityFacts(_Told):
    """What the model was found able to do."""

    pipeline: Word = Field("", description="Class of the pipeline.")
    modality: Word = Field("", description="What it makes, such as image.")
    batches: bool = Field(description="Whether requests share the denoiser's calls.")
    resumable: bool = Field(description="Whether a request can go on elsewhere from where it is.")
    reason: Why = Field("", description="Why it can't.")
    previews: bool = Field(False, description="Whether previews can be made of its requests.")
    components: Annotated[tuple[ComponentFacts, ...], Field(strict=False, max_length=MAX_COMPONENTS)] = Field(
        default=(), description="Of each component that is called, the first few."
    )


class PodFacts(_Told):
    """All that a pod tells."""

    capability: CapabilityFacts = Field(description="What the model was found able to do.")

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self | None:
        """The facts in the body of `/v1/models`, cut to what fits; None if they aren't there, or not yet."""
        models = _items(body.get("data"))
        found = models[0].get("capability") if models else None
        if not isinstance(found, Mapping) or not isinstance(found.get("batches"), bool):
            return None
        capability = CapabilityFacts(
            pipeline=_text(models[0].get("pipeline"), MAX_WORD),
            modality=_text(models[0].get("modality"), MAX_WORD),
            batches=found["batches"],
            resumable=found.get("resumable") is True,
            reason=_text(found.get("reason"), MAX_REASON),
            previews=found.get("previews") is True,
            components=tuple(
                ComponentFacts(
                    name=_text(one.get("name"), MAX_WORD),
                    merges=one.get("merges") is True,
                    reason=_text(one.get("reason"), MAX_REASON),
                )
                for one in _items(found.get("components"))[:MAX_COMPONENTS]
            ),
        )
        return cls(capability=capability)


def _items(value: object) -> list[Mapping[str, Any]]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [one for one in value if isinstance(one, Mapping)]


def _text(value: object, most: int) -> str:
    """A text as the API server can store it: half a surrogate pair can't be."""
    if not isinstance(value, str):
        return ""
    sound = value.encode("utf-8", "replace").decode("utf-8")
    return sound if len(sound) <= most else sound[: most - 1] + "…"
