"""Nodes that the pods of one life must not go to."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from stage_operator.model import Manifest


def avoiding(spec: Manifest, nodes: Sequence[str]) -> Manifest:
    """A pod's spec that keeps away from nodes, whatever else it asks of them."""
    if not nodes:
        return spec
    made = copy.deepcopy(spec)
    affinity = made.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    # One term is enough for a node to fit, so each must say it. Fields, since a label can be another name.
    for term in required.setdefault("nodeSelectorTerms", [{}]):
        fields = term.setdefault("matchFields", [])
        fields.append({"key": "metadata.name", "operator": "NotIn", "values": [nodes[0]]})
        fields += (
            {"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes[1:]
        )  # a field takes one value only
    return made
