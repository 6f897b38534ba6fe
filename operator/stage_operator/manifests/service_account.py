"""Whom the pods of a stage are to the cluster: somebody without any right."""

from __future__ import annotations

from stage_api import names
from stage_api.stage import DiffusionStage
from stage_operator.manifests.identity import child
from stage_operator.values import Manifest


def service_account(stage: DiffusionStage) -> Manifest:
    """The account of the stage's pods. They hold no token of it."""
    return child(
        stage,
        "ServiceAccount",
        names.service_account(stage.metadata.name),
        automountServiceAccountToken=False,
    )
