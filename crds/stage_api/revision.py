"""The revision of a stage: a short hash of what its user asks of the pods.

Pods of another revision are replaced. So it holds the user's words only, nothing that the operator fills in, and
leaves out what equals its default: a version with another field, or with another default image, replaces no pod.
Equal wishes have one revision, however they are written down.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Final

from stage_api.canonical import canonical_spec
from stage_api.section import entries
from stage_api.spec import DiffusionStageSpec
from stage_api.stage import DiffusionStage

REVISION_CHARS: Final = 10


def revision_of(stage: DiffusionStage) -> str:
    """The revision of a stage."""
    return _hash(canonical_spec(stage))


def spelled_revision_of(stage: DiffusionStage) -> str:
    """The revision that older versions gave it, which took each spelling of a wish for another one.

    Pods that have it are what the stage asks for, as long as it is written as it was.
    """
    return _hash(stage.spec)


def _hash(spec: DiffusionStageSpec) -> str:
    said = spec.model_dump(
        mode="json", by_alias=True, include=_counted(), exclude_defaults=True, exclude_none=True
    )
    said = {section: value for section, value in said.items() if value != {}}
    canonical = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:REVISION_CHARS]


@cache
def _counted() -> dict[str, bool | set[str]]:
    """The fields of the spec that change a pod, as pydantic selects them."""
    return {
        entry.name: counted if isinstance(counted, bool) else set(counted)
        for entry in entries(DiffusionStageSpec)
        if (counted := entry.section.replaces_pods)
    }
