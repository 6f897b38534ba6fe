"""Nodes that the pods of one life had better not go to.

A wish, not a rule: where no other node has room, a node whose device failed once is better than none, and if it
fails again the life ends and counts like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stage_operator.values import Manifest

HEAVIEST: Final = 100
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def avoiding(spec: Manifest, nodes: Sequence[str]) -> Manifest:
    """A pod's spec that keeps away from nodes if there are others, beside what else it asks of them."""
    if not nodes:
        return spec
    # By a node's own name, since a label may be another; such a field takes one value at a time.
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    wish = {"weight": HEAVIEST, "preference": {"matchFields": fields}}
    affinity = spec.get("affinity") or {}
    of_nodes = affinity.get("nodeAffinity") or {}
    preferred = [*(of_nodes.get(_PREFERRED) or ()), wish]
    return {**spec, "affinity": {**affinity, "nodeAffinity": {**of_nodes, _PREFERRED: preferred}}}
