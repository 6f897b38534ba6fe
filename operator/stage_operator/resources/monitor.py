"""Scraping by the Prometheus operator: the PodMonitor."""

from __future__ import annotations

from stage_api import names
from stage_api.stage import DiffusionStage
from stage_operator.model import Manifest
from stage_operator.resources.identity import child, serving_selector


def pod_monitor(stage: DiffusionStage, api_version: str) -> Manifest:
    """The PodMonitor of the pods that have metrics; `api_version` is the one that the cluster serves."""
    wanted = stage.spec.monitoring.pod_monitor
    return child(
        stage,
        "PodMonitor",
        stage.metadata.name,
        api_version=api_version,
        more_labels=wanted.labels,
        spec={
            "selector": {"matchLabels": serving_selector(stage)},
            "podTargetLabels": [names.LABEL_STAGE, names.LABEL_REPLICA],
            "podMetricsEndpoints": [
                {
                    "port": names.PORT_NAME,
                    "path": names.PATH_METRICS,
                    "interval": f"{wanted.interval_seconds}s",
                }
            ],
        },
    )
