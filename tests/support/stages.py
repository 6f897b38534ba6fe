"""Stages for tests of what the operator makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stage_api import names
from stage_api.manifest import parse_stage
from stage_api.stage import DiffusionStage

EMBEDDED: Mapping[str, Any] = {"source": {"embedded": "shapes"}}
TWO_PODS: Mapping[str, Any] = {"parallelism": {"cfg": 2}, "topology": {"ranksPerPod": 1}}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def stage_of(name: str = "flux", namespace: str = "art", **spec: Any) -> DiffusionStage:
    """A stage as the API server has it, with the embedded model unless `spec` says otherwise."""
    return parse_stage(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": "0f0e0d0c-0000-4000-8000-000000000001",
                "generation": 1,
            },
            "spec": {"model": EMBEDDED, **spec},
        }
    )


def from_source(**source: Any) -> DiffusionStage:
    """A stage whose model comes from elsewhere."""
    return stage_of(model={"source": source})
