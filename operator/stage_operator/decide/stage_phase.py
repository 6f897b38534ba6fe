"""The stage in a word, for a table. Programs read the conditions."""

from __future__ import annotations

from collections.abc import Mapping

from stage_api import status as st
from stage_api.replica_status import ReplicaPhase
from stage_operator.decide.conditions import ROLLING_OUT, Finding, View


def phase(view: View, found: Mapping[str, Finding]) -> str:
    """The word that says most about it."""
    if found[st.SUSPENDED].holds:
        return "Suspended"
    if found[st.FAILED].holds:
        return "Failed"
    if found[st.ACCEPTED].holds is False:
        return "Refused"
    if view.wish.replicas == 0:
        return "Stopped"
    if found[st.PROGRESSING].reason == ROLLING_OUT:
        return "Updating"
    if view.serving >= view.wish.replicas:
        return "Degraded" if found[st.DEGRADED].holds else "Ready" if found[st.READY].holds else "Updating"
    return _coming(view, found)


def _coming(view: View, found: Mapping[str, Finding]) -> str:
    """Of a stage that lacks replicas: what the one does that is furthest from serving."""
    phases = {replica.phase for replica in view.replicas}
    if ReplicaPhase.BACK_OFF in phases:
        return "BackOff"
    if any(replica.is_lost for replica in view.replicas):
        return "Restarting"
    if found[st.DEGRADED].holds:
        return "Degraded"
    return "Starting" if ReplicaPhase.STARTING in phases else "Provisioning" if view.standing else "Pending"
