"""What a sound stage asks for that this operator or this cluster hasn't got."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stage_api.errors import Fault
from stage_api.stage import DiffusionStage
from stage_operator.manifests import gang
from stage_operator.values import Api, PlanSettings

_NO_HOST_PATH: Final = "since this operator lets no stage have folders of nodes"


def refused(stage: DiffusionStage, api: Api, settings: PlanSettings) -> tuple[Fault, ...]:
    """Everything that is wrong with making this stage here; empty if it can be made."""
    faults: list[Fault] = [] if settings.allow_host_path else list(_folders_of_nodes(stage))
    if stage.spec.engine.image is None and not settings.worker_image:
        faults.append(Fault("spec.engine.image", "an image, since the operator has no default", "nothing"))
    if (fault := gang.fault(stage, api)) is not None:
        faults.append(fault)
    if stage.spec.monitoring.pod_monitor.enabled and api.pod_monitor is None:
        expected = "false, since the cluster has no PodMonitors"
        faults.append(Fault("spec.monitoring.podMonitor.enabled", expected, "true"))
    return tuple(faults)


def _folders_of_nodes(stage: DiffusionStage) -> Iterator[Fault]:
    if stage.spec.model.source.host_path is not None:
        yield Fault("spec.model.source", f"another source, {_NO_HOST_PATH}", "hostPath")
    for i, volume in enumerate((stage.spec.pod_template.get("spec") or {}).get("volumes") or ()):
        if "hostPath" in volume:
            path = f"spec.podTemplate.spec.volumes[{i}]"
            yield Fault(path, f"another kind of volume, {_NO_HOST_PATH}", "hostPath")
