"""Scraping by the Prometheus operator: the PodMonitor."""

from __future__ import annotations

import re
from typing import Final

from stage_api import names
from stage_api.stage import DiffusionStage
from stage_operator.manifests.identity import child, serving_selector
from stage_operator.values import Manifest

_META: Final = "__meta_kubernetes_pod_label_"
_REPLICA: Final = re.sub(r"[^a-zA-Z0-9_]", "_", names.LABEL_REPLICA)


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
            "podMetricsEndpoints": [
                {
                    "port": names.PORT_NAME,
                    "path": names.PATH_METRICS,
                    "interval": f"{wanted.interval_seconds}s",
                    # The metrics name their stage themselves.
                    "relabelings": [{"sourceLabels": [_META + _REPLICA], "targetLabel": "replica"}],
                }
            ],
        },
    )
