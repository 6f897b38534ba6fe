"""Who may reach a stage's pods: the NetworkPolicy.

The ports between ranks ask nobody for a name (torch's rendezvous and its collectives), so they are for the stage's
own pods alone. What pods themselves may reach is left to the cluster.
"""

from __future__ import annotations

from typing import Final

from stage_api import names
from stage_api.stage import DiffusionStage
from stage_api.surroundings import NetworkPeer
from stage_operator.manifests.identity import child, selector
from stage_operator.values import Manifest

OPERATOR_LABELS: Final = {"app.kubernetes.io/name": "omnistage-operator"}
"""Of the operator's own pods, which ask those of stages what they do and can do."""


def network_policy(stage: DiffusionStage, operator_at: str | None = None) -> Manifest | None:
    """The policy, if the stage wants one. `operator_at`: namespace of the operator's pods, which are let in too."""
    policy, spec = stage.spec.network_policy, stage.spec
    if not policy.enabled:
        return None
    requests: Manifest = {"ports": [{"port": names.PORT_NAME, "protocol": "TCP"}]}
    if policy.ingress_from:
        requests["from"] = [_peer(peer) for peer in policy.ingress_from]
        if operator_at is not None:
            where = {"kubernetes.io/metadata.name": operator_at}
            pods = {"podSelector": {"matchLabels": OPERATOR_LABELS}}
            requests["from"].append({"namespaceSelector": {"matchLabels": where}, **pods})
    ingress = [requests]
    if spec.parallelism.world_size > spec.ranks_per_pod:
        # Collectives listen on ports of the system's choice.
        ingress.append({"from": [{"podSelector": {"matchLabels": selector(stage)}}]})
    return child(
        stage,
        "NetworkPolicy",
        stage.metadata.name,
        api_version="networking.k8s.io/v1",
        spec={
            "podSelector": {"matchLabels": selector(stage)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    )


def _peer(peer: NetworkPeer) -> Manifest:
    """Without empty lists: the server stores them otherwise, so that each apply would be a change."""
    return peer.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)
