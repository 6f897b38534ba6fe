"""The revision of a stage: a short hash of what its user asks of the pods.

Pods of another revision are replaced. So it holds the user's words only, nothing that the operator fills in, and
leaves out what equals its default: a version with another field, or with another default image, replaces no pod.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Final

from stage_api.section import entries
from stage_api.spec import DiffusionStageSpec

REVISION_CHARS: Final = 10


def revision_of(spec: DiffusionStageSpec) -> str:
    """The revision of a spec; equal for equal wishes, however they are written down."""
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
