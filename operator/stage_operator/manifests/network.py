"""Who may reach a stage's pods: the NetworkPolicy.

The ports between ranks ask nobody for a name (torch's rendezvous and its collectives), so they are for the stage's
own pods alone. What pods themselves may reach is left to the cluster.
"""

from __future__ import annotations

from stage_api import names
from stage_api.stage import DiffusionStage
from stage_api.surroundings import NetworkPeer
from stage_operator.manifests.identity import child, selector
from stage_operator.values import Manifest


def network_policy(stage: DiffusionStage) -> Manifest | None:
    """The policy, if the stage wants one."""
    policy, spec = stage.spec.network_policy, stage.spec
    if not policy.enabled:
        return None
    requests: Manifest = {"ports": [{"port": names.PORT_NAME, "protocol": "TCP"}]}
    if policy.ingress_from:
        requests["from"] = [_peer(peer) for peer in policy.ingress_from]
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
