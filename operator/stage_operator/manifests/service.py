"""How a stage is found: one Service for those who send requests, another for its own ranks."""

from __future__ import annotations

from stage_api import names
from stage_api.stage import DiffusionStage
from stage_operator.manifests.identity import child, selector, serving_selector
from stage_operator.values import Manifest


def requests(stage: DiffusionStage) -> Manifest:
    """The Service for requests: the first pods of the replicas that are ready."""
    port = {"name": names.PORT_NAME, "port": stage.spec.engine.port, "targetPort": names.PORT_NAME}
    return child(
        stage,
        "Service",
        stage.metadata.name,
        spec={
            "type": "ClusterIP",
            "selector": serving_selector(stage),
            "ports": [{**port, "protocol": "TCP"}],
        },
    )


def ranks(stage: DiffusionStage) -> Manifest:
    """The Service by which pods of a replica find each other, long before they are ready."""
    ports = (("ranks", names.RANKS_PORT), ("rendezvous", names.MASTER_PORT))
    return child(
        stage,
        "Service",
        names.ranks_service(stage.metadata.name),
        spec={
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(stage),
            "ports": [
                {"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports
            ],
        },
    )
