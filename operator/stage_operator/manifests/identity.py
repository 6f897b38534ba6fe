"""What all children of a stage have in common: whose they are, and how they are found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stage_api import names
from stage_api.stage import DiffusionStage
from stage_operator.values import FIELD_MANAGER, Manifest

APP: Final = "omnistage"


def selector(stage: DiffusionStage, **more: str) -> dict[str, str]:
    """Labels that all pods of a stage have."""
    return {names.LABEL_STAGE: stage.metadata.name, **more}


def serving_selector(stage: DiffusionStage) -> dict[str, str]:
    """Labels of the pods that answer requests: the first of each replica."""
    return {**selector(stage), names.LABEL_RANK0: "true"}


def labels(stage: DiffusionStage) -> dict[str, str]:
    """Labels of every child."""
    return {
        **selector(stage),
        "app.kubernetes.io/name": APP,
        "app.kubernetes.io/instance": stage.metadata.name,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
    }


def owner(stage: DiffusionStage) -> Manifest:
    """What makes the cluster delete a child after its stage."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": stage.metadata.name,
        "uid": stage.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def child(
    stage: DiffusionStage,
    kind: str,
    name: str,
    *,
    api_version: str = "v1",
    more_labels: Mapping[str, str] | None = None,
    **fields: Any,
) -> Manifest:
    """A child of a stage with these fields beside its identity."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": stage.metadata.namespace,
            "labels": {**labels(stage), **(more_labels or {})},
            "ownerReferences": [owner(stage)],
        },
        **fields,
    }
