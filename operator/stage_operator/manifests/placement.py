"""Nodes that the pods of a life had better not go to.

A wish, not a rule: where no other node has room, a node whose device failed once is better than none, and if it
fails again the life ends and counts like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stage_operator.values import Manifest

HEAVIEST: Final = 100
"""For the node that failed last. Each one before it weighs less, so that of bad ones the oldest is met first."""
_LIGHTER: Final = 10
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def avoiding(spec: Manifest, nodes: Sequence[str]) -> Manifest:
    """A pod's spec that keeps away from nodes if there are others, beside what else it asks of them.

    `nodes`: the one that failed last is the last.
    """
    if not nodes:
        return spec
    weights = range(HEAVIEST, 0, -_LIGHTER)
    wishes = [_wish(node, weight) for node, weight in zip(reversed(nodes), weights, strict=False)]
    affinity = spec.get("affinity") or {}
    of_nodes = affinity.get("nodeAffinity") or {}
    preferred = [*(of_nodes.get(_PREFERRED) or ()), *wishes]
    return {**spec, "affinity": {**affinity, "nodeAffinity": {**of_nodes, _PREFERRED: preferred}}}


def _wish(node: str, weight: int) -> Manifest:
    # By a node's own name, since a label may be another.
    field = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
    return {"weight": weight, "preference": {"matchFields": [field]}}
