"""The pods of one life of a replica.

A pod is made once and never restarted: when one ends, its whole replica has. Its name holds the life, so that no
late pod is taken for one of a newer life. It passes the restricted Pod Security standard, runs as any user, and
writes to /tmp and to shared memory only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, Final

from stage_api import names
from stage_api.kube_values import Quantity
from stage_api.revision import revision_of
from stage_api.spec import DiffusionStageSpec
from stage_api.stage import DiffusionStage
from stage_api.topology import derive
from stage_operator.manifests import environment, gang, volume
from stage_operator.manifests.config_map import config_map
from stage_operator.manifests.identity import child
from stage_operator.manifests.placement import avoiding
from stage_operator.manifests.template import overlay
from stage_operator.values import Api, Manifest, PlanSettings

COMMAND: Final = ("python", "-m", "stage_runtime")

GRACE_S: Final = 15
"""For the end itself, after what runs has had its time."""
FROZEN_GRACE_S: Final = 5
"""For a process that answered no probe: there is nothing to wait for. The kubelet heeds it only where another container
of the pod goes on; else it gives all of the pod's grace."""
STARTUP_PERIOD_S: Final = 2
STARTUP_SPARE_S: Final = 60
"""The operator ends a start that takes too long, and says so; the node does where no operator runs."""


def pods(
    stage: DiffusionStage,
    replica: int,
    epoch: int,
    *,
    settings: PlanSettings,
    api: Api,
    avoid: Sequence[str] = (),
) -> tuple[Manifest, ...]:
    """Every pod of one life, by ordinal; `avoid` are nodes where they go only if no other has room."""
    topology = derive(stage.spec.parallelism, stage.spec.ranks_per_pod)
    config = config_map(stage)["metadata"]["name"]
    group = gang.membership(stage, replica, epoch, api)
    shared = _identity(stage, replica, epoch)
    made = []
    for ordinal in range(topology.pods):
        pod = child(
            stage,
            "Pod",
            names.pod_name(stage.metadata.name, replica, epoch, ordinal),
            more_labels={**shared, **_place(ordinal), **group.labels},
        )
        pod["metadata"]["annotations"] = {
            names.ANNOTATION_MODEL: stage.served_name,
            names.ANNOTATION_TOPOLOGY: topology.digest,
            **group.annotations,
        }
        spec = _spec(stage, volume.mounted(stage, config, ordinal), settings)
        spec["containers"][0]["env"] = environment.of_stage(stage, replica, epoch, ordinal, topology)
        for fetch in spec.get("initContainers", ()):
            fetch["env"] = environment.of_any(stage, replica, epoch)
        pod["spec"] = {**spec, "hostname": pod["metadata"]["name"], **group.spec}
        pod = overlay(pod, stage.spec.pod_template)
        made.append({**pod, "spec": avoiding(pod["spec"], avoid)})
    return tuple(made)


def pod_grace_s(spec: DiffusionStageSpec) -> int:
    """How long a pod has to end."""
    return spec.drain.admit_seconds + spec.drain.timeout_seconds + GRACE_S


def _identity(stage: DiffusionStage, replica: int, epoch: int) -> dict[str, str]:
    return {
        names.LABEL_REPLICA: str(replica),
        names.LABEL_EPOCH: str(epoch),
        names.LABEL_REVISION: revision_of(stage),
        names.LABEL_MODEL: names.label_value(stage.served_name),
    }


def _place(ordinal: int) -> dict[str, str]:
    first = {names.LABEL_RANK0: "true"} if ordinal == 0 else {}
    return {names.LABEL_ORDINAL: str(ordinal), **first}


def _spec(stage: DiffusionStage, mounted: Sequence[volume.Mounted], settings: PlanSettings) -> Manifest:
    spec = stage.spec
    made: Manifest = {
        "restartPolicy": "Never",
        "subdomain": names.ranks_service(stage.metadata.name),
        "serviceAccountName": names.service_account(stage.metadata.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": pod_grace_s(spec),
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_stage_container(stage, mounted, settings)],
        "volumes": [one.volume for one in mounted],
    }
    if secrets := spec.engine.image_pull_secrets:
        made["imagePullSecrets"] = [secret.to_json() for secret in secrets]
    if spec.model.source.hugging_face is not None:
        made["initContainers"] = [_fetch_container(stage, mounted, settings)]
    return made


def _stage_container(
    stage: DiffusionStage, mounted: Sequence[volume.Mounted], settings: PlanSettings
) -> Manifest:
    spec = stage.spec
    resources = _amounts(stage)
    if spec.accelerator:
        # Requests of what can't be shared equal its limits.
        resources["limits"] = {**resources.get("limits", {}), spec.accelerator: spec.ranks_per_pod}
    return {
        **_container(stage, names.CONTAINER, "serve", settings),
        "ports": [{"name": names.PORT_NAME, "containerPort": spec.engine.port, "protocol": "TCP"}],
        "resources": resources,
        **_probes(stage),
        "volumeMounts": [one.in_stage for one in mounted if one.in_stage is not None],
    }


def _fetch_container(
    stage: DiffusionStage, mounted: Sequence[volume.Mounted], settings: PlanSettings
) -> Manifest:
    return {
        **_container(stage, names.FETCH_CONTAINER, "fetch", settings),
        "resources": _amounts(stage),
        "volumeMounts": [one.in_fetch for one in mounted if one.in_fetch is not None],
    }


def _container(stage: DiffusionStage, name: str, command: str, settings: PlanSettings) -> Manifest:
    """What both containers have in common."""
    engine = stage.spec.engine
    return {
        "name": name,
        "image": engine.image or settings.worker_image,
        "imagePullPolicy": engine.image_pull_policy.value,
        "command": [*COMMAND, command],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePath": names.TERMINATION_LOG,
        # Who ends before it can say why, such as an interpreter that can't be started, has said so in its log at most.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _amounts(stage: DiffusionStage) -> dict[str, dict[str, Quantity]]:
    wanted = {"requests": stage.spec.resources.requests, "limits": stage.spec.resources.limits}
    return {part: dict(amounts) for part, amounts in wanted.items() if amounts}


def _probes(stage: DiffusionStage) -> Manifest:
    def get(path: str, *, period_s: int, failures: int, **more: Any) -> Manifest:
        action = {"path": path, "port": names.PORT_NAME}
        return {
            "httpGet": action,
            "periodSeconds": period_s,
            "timeoutSeconds": 3,
            "failureThreshold": failures,
            **more,
        }

    start_s = stage.spec.startup.timeout_seconds + STARTUP_SPARE_S
    soon = {"terminationGracePeriodSeconds": FROZEN_GRACE_S}
    return {
        "startupProbe": get(
            names.PATH_STARTUP,
            period_s=STARTUP_PERIOD_S,
            failures=ceil(start_s / STARTUP_PERIOD_S),
            timeoutSeconds=STARTUP_PERIOD_S,  # a longer one would stretch the period where nobody answers
            **soon,
        ),
        # Late: an engine that hangs says so by its exit code long before.
        "livenessProbe": get(names.PATH_LIVE, period_s=10, failures=6, **soon),
        "readinessProbe": get(names.PATH_READY, period_s=2, failures=3),
    }
