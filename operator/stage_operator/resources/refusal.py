"""What a sound stage asks for that this operator or this cluster hasn't got."""

from __future__ import annotations

from stage_api.errors import Fault
from stage_api.stage import DiffusionStage
from stage_operator.model import Api, PlanSettings
from stage_operator.resources import gang


def refused(stage: DiffusionStage, api: Api, settings: PlanSettings) -> tuple[Fault, ...]:
    """Everything that is wrong with making this stage here; empty if it can be made."""
    faults = []
    if stage.spec.model.source.host_path is not None and not settings.allow_host_path:
        expected = "another source, since this operator lets no stage read folders of nodes"
        faults.append(Fault("spec.model.source", expected, "hostPath"))
    if (fault := gang.fault(stage, api)) is not None:
        faults.append(fault)
    if stage.spec.monitoring.pod_monitor.enabled and api.pod_monitor is None:
        expected = "false, since the cluster has no PodMonitors"
        faults.append(Fault("spec.monitoring.podMonitor.enabled", expected, "true"))
    return tuple(faults)
