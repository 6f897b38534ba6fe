"""A real API server takes what the operator makes of a stage, in a namespace with the restricted Pod Security standard.

Needs KUBECONFIG, kubectl and the right to make a namespace and a CustomResourceDefinition. Pods are only tried
(dry run), so nothing is scheduled and nothing is pulled.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from stage_api import crdgen, names
from stage_api.manifest import parse_stage
from stage_api.stage import DiffusionStage
from stage_operator.manifests.children import children
from stage_operator.manifests.gang import pod_group
from stage_operator.manifests.pod import pods
from stage_operator.manifests.secret import keys
from stage_operator.values import FIELD_MANAGER, Api, Manifest, PlanSettings
from support.live_cluster import needs_api_server
from support.stages import COMMIT, EMBEDDED, TWO_PODS
from unit.api.bad_stages import ROOT

NAMESPACE = "omnistage-manifests-test"
POD_GROUPS = "scheduling.k8s.io/v1beta1"
SETTINGS = PlanSettings(worker_image="registry.example/worker:1")
PLAIN = Api()
APPLY = (
    *("apply", "--server-side", f"--field-manager={FIELD_MANAGER}", "--force-conflicts"),
    *("-o", "json", "-f", "-"),
)
WAIT_S = 60

pytestmark = [
    pytest.mark.cluster,
    *needs_api_server,
]

TEMPLATE = {
    "metadata": {"labels": {"team": "art"}, "annotations": {"note": "x"}},
    "spec": {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "securityContext": {"fsGroup": 1000},
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "containers": [
            {
                "name": names.CONTAINER,
                "env": [{"name": "WHO", "value": "$(OMNISTAGE_STAGE)"}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            }
        ],
    },
}
STAGES: Mapping[str, dict[str, Any]] = {
    "embedded": {"model": EMBEDDED},
    "two-pods": {"model": EMBEDDED, **TWO_PODS},
    "cpu": {"model": EMBEDDED, "engine": {"device": "cpu"}, "resources": {"sharedMemory": 0}},
    "claim": {"model": {"source": {"persistentVolumeClaim": {"claimName": "models", "subPath": "flux"}}}},
    "image": {"model": {"source": {"image": {"reference": "registry.example/flux:1", "subPath": "a"}}}},
    "hub": {
        "model": {
            "source": {
                "huggingFace": {
                    "repo": "org/flux",
                    "revision": COMMIT,
                    "tokenSecretRef": {"name": "hub"},
                    "cache": {"claimName": "models"},
                }
            },
            "name": "组织/My.Model_v1.0-" + "x" * 200,
        }
    },
    "resources": {
        "model": EMBEDDED,
        "resources": {"requests": {"cpu": 4, "memory": "8Gi"}, "limits": {"memory": "64Gi"}},
        "engine": {"imagePullSecrets": [{"name": "pull"}], "port": 9000},
    },
    "template": {"model": EMBEDDED, "podTemplate": TEMPLATE},
    "peers": {
        "model": EMBEDDED,
        "networkPolicy": {
            "ingressFrom": [
                {"namespaceSelector": {}},
                {"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}},
            ]
        },
    },
    "s" * names.MAX_NAME: {"model": EMBEDDED, "replicas": 2, **TWO_PODS},
}


def kubectl(*args: str, stdin: object = None) -> subprocess.CompletedProcess[str]:
    """Run kubectl in the test's namespace; an object on `stdin` goes in as JSON."""
    command = ["kubectl", f"--namespace={NAMESPACE}", *args]
    text = json.dumps(stdin)
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=WAIT_S, check=False)


def succeed(*args: str, stdin: object = None) -> str:
    done = kubectl(*args, stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


def as_list(manifests: Iterable[Manifest]) -> Manifest:
    return {"apiVersion": "v1", "kind": "List", "items": list(manifests)}


@pytest.fixture(scope="module", autouse=True)
def _place() -> Iterator[None]:
    """The CRD and a restricted namespace; what was not there before goes again."""
    was_there = kubectl("get", "crd", names.CRD_NAME).returncode == 0
    succeed("apply", "-f", str(ROOT / crdgen.CRD_FILE))
    succeed("wait", "--for=condition=Established", f"--timeout={WAIT_S}s", f"crd/{names.CRD_NAME}")
    standard = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    metadata = {"name": NAMESPACE, "labels": standard}
    succeed("create", "-f", "-", stdin={"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    yield
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    if not was_there:
        done = kubectl("delete", "crd", names.CRD_NAME, f"--timeout={WAIT_S}s")
        assert done.returncode == 0, done.stderr


def defaulted(name: str, spec: Mapping[str, Any]) -> DiffusionStage:
    """The stage as the API server would have it. It is only tried, so that no operator makes anything of it."""
    stage = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }
    text = succeed("create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-", stdin=stage)
    return parse_stage(json.loads(text), executable=True)


def apply(manifests: tuple[Manifest, ...]) -> list[Manifest]:
    """Server-side apply, as the operator does it; the objects as they are then.

    Without their owner, since the cluster deletes what belongs to nobody.
    """
    orphans = [
        {**one, "metadata": {k: v for k, v in one["metadata"].items() if k != "ownerReferences"}}
        for one in manifests
    ]
    made = json.loads(succeed(*APPLY, stdin=as_list(orphans)))
    return list(made["items"]) if made["kind"] == "List" else [made]


def asked(one: Manifest) -> Manifest:
    """What an object is asked to be, and the count of its changes; budgets get a status from the cluster."""
    metadata = one["metadata"]
    changes = "generation" if "generation" in metadata else "resourceVersion"
    return {**one, "metadata": metadata[changes], "status": None}


@pytest.mark.parametrize("name", STAGES)
def test_the_server_takes_every_child_and_would_take_every_pod(name: str) -> None:
    stage = defaulted(name, STAGES[name])
    first = apply(children(stage, PLAIN))
    again = apply(children(stage, PLAIN))
    assert [asked(one) for one in first] == [asked(one) for one in again], (
        "an apply of the same changed something"
    )
    succeed(*APPLY, "--dry-run=server", stdin=as_list(children(stage, PLAIN)))
    life = pods(stage, 0, 1, settings=SETTINGS, api=PLAIN, avoid=("node-1",))
    succeed("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=as_list(life))


def test_the_server_takes_keys_once() -> None:
    made = keys(defaulted("two-pods", STAGES["two-pods"]))
    assert made.draw is not None
    secret = {**made.manifest, "stringData": dict(made.draw())}
    secret["metadata"] = {"name": secret["metadata"]["name"], "namespace": NAMESPACE}
    succeed("create", "-f", "-", stdin=secret)
    refused = kubectl("create", "-f", "-", stdin=secret)
    assert "AlreadyExists" in refused.stderr
    assert "immutable" in kubectl("apply", "-f", "-", stdin={**secret, "stringData": {"a": "b"}}).stderr


def test_a_restricted_namespace_takes_no_folder_of_a_node() -> None:
    stage = defaulted("folder", {"model": {"source": {"hostPath": {"path": "/srv/models"}}}})
    apply(children(stage, PLAIN))
    (pod,) = pods(stage, 0, 1, settings=SETTINGS, api=PLAIN)
    refused = kubectl("create", "--dry-run=server", "-f", "-", stdin=pod)
    assert "restricted volume types" in refused.stderr


def test_the_server_takes_the_group_of_a_life_where_it_serves_groups() -> None:
    if POD_GROUPS not in succeed("api-versions").split():
        pytest.skip(f"NOT TESTED: this cluster doesn't serve {POD_GROUPS}")
    api = Api(pod_group=POD_GROUPS)
    stage = defaulted("two-pods", STAGES["two-pods"])
    group = pod_group(stage, 0, 1, api)
    assert group is not None
    apply((group, *children(stage, api)))
    life = pods(stage, 0, 1, settings=SETTINGS, api=api)
    for pod in life:
        text = succeed("create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-", stdin=pod)
        assert json.loads(text)["spec"]["schedulingGroup"]["podGroupName"] == group["metadata"]["name"]
