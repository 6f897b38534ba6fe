"""What stands beside a stage's pods: gang scheduling, who may reach them, who scrapes them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from stage_api.base import Contract, Law
from stage_api.errors import Fault
from stage_api.kube_values import LabelKey, Labels, LabelValue


class GangMode(StrEnum):
    """Who sees to it that the pods of a replica are scheduled together or not at all."""

    AUTO = "Auto"
    NONE = "None"
    POD_GROUP = "PodGroup"
    VOLCANO = "Volcano"
    COSCHEDULING = "Coscheduling"


class GangSpec(Contract):
    """How the pods of one replica are scheduled together or not at all."""

    mode: Annotated[GangMode, Field(strict=False)] = Field(
        default=GangMode.AUTO,
        description="Auto is None for replicas of one pod; for more the first of Kubernetes' own PodGroup, "
        "Volcano and the coscheduling plugin that the cluster serves, and None if it serves none.",
    )
    schedule_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=600, description="A replica that finds no room for so long is reported as unschedulable."
    )


class SelectorOperator(StrEnum):
    """How a label is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class SelectorRequirement(Contract):
    """One condition on a label."""

    key: LabelKey = Field(description="The label.")
    operator: Annotated[SelectorOperator, Field(strict=False)] = Field(description="How it is compared.")
    values: Annotated[tuple[LabelValue, ...], Field(strict=False, max_length=16)] = Field(
        default=(), description="With what; empty for Exists and DoesNotExist."
    )


class LabelSelector(Contract):
    """Objects by their labels. An empty one means all."""

    match_labels: Labels = Field(default={}, description="Labels with exactly these values.")
    match_expressions: Annotated[tuple[SelectorRequirement, ...], Field(strict=False, max_length=8)] = Field(
        default=(), description="Further conditions, all of which must hold."
    )


def _names_somebody(namespaces: LabelSelector | None, pods: LabelSelector | None) -> Fault | None:
    if namespaces is not None or pods is not None:
        return None
    return Fault("", "namespaceSelector, podSelector or both", "neither")


class NetworkPeer(Contract):
    """Pods that may send requests."""

    namespace_selector: LabelSelector | None = Field(
        default=None, description="Namespaces of the pods. Left out, the stage's own."
    )
    pod_selector: LabelSelector | None = Field(default=None, description="The pods. Left out, all.")

    laws: ClassVar[tuple[Law, ...]] = (
        Law(
            ("namespace_selector", "pod_selector"),
            "has(self.namespaceSelector) || has(self.podSelector)",
            "namespaceSelector or podSelector must be set",
            _names_somebody,
        ),
    )


class NetworkPolicySpec(Contract):
    """Who may reach the stage's pods. Without a policy that is everybody, on the ports between ranks too."""

    enabled: bool = Field(
        default=True,
        description="Make a NetworkPolicy. Ports between ranks are then for the stage's own pods only.",
    )
    ingress_from: Annotated[tuple[NetworkPeer, ...], Field(strict=False, max_length=16)] = Field(
        default=(),
        description="Who may send requests and scrape metrics, beside the operator. Empty, everybody.",
    )


class PodMonitorSpec(Contract):
    """Scraping by the Prometheus operator."""

    enabled: bool = Field(
        default=False, description="Make a PodMonitor. Refused where the cluster doesn't know that kind."
    )
    interval_seconds: Annotated[int, Field(ge=1, le=3600)] = Field(
        default=30, description="How often metrics are read."
    )
    labels: Labels = Field(default={}, description="Labels by which a Prometheus finds the PodMonitor.")


class MonitoringSpec(Contract):
    """How the stage is watched."""

    pod_monitor: PodMonitorSpec = Field(
        default=PodMonitorSpec(), description="Scraping by the Prometheus operator."
    )
