"""What the chart makes of its values, object by object."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from stage_api import crdgen, names
from stage_operator import settings
from stage_operator.manifests.network import OPERATOR_LABELS
from support.helm import CHART, ROOT, helm, needs_helm, one, render, template

pytestmark = needs_helm

EVERYTHING: dict[str, Any] = {
    "metrics": {
        name: {"enabled": True, "labels": {"release": "prometheus"}}
        for name in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboards")
    },
    "stages": [{"name": "shapes", "spec": {"model": {"source": {"embedded": "shapes"}}}}],
}
MATRIX: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "everything": EVERYTHING,
    "two namespaces": {"watch": {"namespaces": ["team-a", "team-b"]}, **EVERYTHING},
    "as little as possible": {
        "replicas": 1,
        "crds": {"install": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False},
        "pdb": {"enabled": False},
        "networkPolicy": {"enabled": False},
    },
    "placed": {
        "imagePullSecrets": [{"name": "pull"}],
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "podLabels": {"team": "a"},
        "podAnnotations": {"note": "b"},
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
    },
}
CLUSTER_KINDS = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = one(objects, "Deployment")["spec"]["template"]["spec"]
    return spec


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = pod(objects)["containers"]
    assert isinstance(found, dict)
    return found


def test_helm_finds_nothing_to_complain_about() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_every_object_says_whose_it_is(values: dict[str, Any]) -> None:
    for each in render(values):
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm", each["metadata"]["name"]
        assert labels["helm.sh/chart"].startswith("omnistage-")
        assert ("namespace" in each["metadata"]) == (each["kind"] not in CLUSTER_KINDS), each["kind"]


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_no_two_objects_have_one_name(values: dict[str, Any]) -> None:
    found = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in render(values)
    ]
    assert len(found) == len(set(found))


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_the_operator_understands_every_flag_that_it_is_given(values: dict[str, Any]) -> None:
    found = settings.load(container(render(values))["args"], env={})
    assert found.namespaces == tuple(values.get("watch", {}).get("namespaces", ()))


def test_what_is_set_reaches_the_operator() -> None:
    objects = render(
        {
            "workers": 3,
            "client": {"qps": 7.5, "burst": 11},
            "resyncSeconds": 60,
            "lease": {"durationSeconds": 9, "renewSeconds": 6, "retrySeconds": 1.5},
            "logLevel": "DEBUG",
            "allowHostPath": True,
            "metrics": {"port": 9000},
            "worker": {"defaultImage": "a/b:c"},
        }
    )
    found = settings.load(container(objects)["args"], env={})
    assert (found.workers, found.qps, found.burst, found.resync_s) == (3, 7.5, 11, 60)
    assert (found.lease.lease_s, found.lease.renew_s, found.lease.retry_s) == (9, 6, 1.5)
    assert (found.log_level, found.port) == ("DEBUG", 9000)
    assert (found.plan.worker_image, found.plan.allow_host_path) == ("a/b:c", True)


def test_no_service_of_the_namespace_sets_the_operator_up_by_its_variables() -> None:
    assert pod(render())["enableServiceLinks"] is False


def test_stages_let_the_operator_s_pods_in_by_the_labels_that_they_have() -> None:
    labels = one(render(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert OPERATOR_LABELS.items() <= labels.items()


def test_both_images_come_from_the_registry_that_is_given() -> None:
    objects = render({"registry": "registry.example/team/", "image": {"tag": "9"}})
    assert container(objects)["image"] == "registry.example/team/omnistage-operator:9"
    assert "--worker-image=registry.example/team/omnistage-worker:9" in container(objects)["args"]


@pytest.mark.parametrize(
    "name",
    [
        "omnistage",
        "a",
        "a.b",
        "1a",
        "0x1e",
        "123",
        "x" * 53,
        "9" * 53,
        "x" * 38 + "--tail",
        "omnistage-" * 5 + "a",
    ],
)
@pytest.mark.parametrize("namespace", ["house", "123", "null"])
def test_every_release_gives_names_that_the_cluster_takes(name: str, namespace: str) -> None:
    for each in render(EVERYTHING, name=name, namespace=namespace):
        metadata = each["metadata"]
        if each["kind"] != "CustomResourceDefinition":
            assert re.fullmatch(names.NAME_PATTERN, metadata["name"]), metadata["name"]
            assert len(metadata["name"]) <= names.MAX_LABEL or each["kind"] in ("ClusterRole", "ConfigMap")
        assert all(
            isinstance(value, str) for value in (metadata.get("namespace", ""), *metadata["labels"].values())
        )
        assert metadata["labels"].get("app.kubernetes.io/instance", name) == name


def test_nobodys_labels_take_the_place_of_those_by_which_objects_are_found() -> None:
    ours = "app.kubernetes.io/name"
    objects = render({"podLabels": {ours: "other", "team": "a"}})
    deployment = one(objects, "Deployment")["spec"]
    assert (
        deployment["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()
    )
    assert deployment["template"]["metadata"]["labels"]["team"] == "a"


def test_a_digest_wins_over_a_tag() -> None:
    digest = "sha256:" + "0" * 64
    objects = render({"image": {"tag": "9", "digest": digest}})
    assert container(objects)["image"] == f"omnistage-operator@{digest}"


def test_the_operator_may_run_where_pod_security_is_restricted() -> None:
    objects = render()
    assert pod(objects)["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert [set(volume) - {"name"} for volume in pod(objects)["volumes"]] == [{"emptyDir"}]


def test_replicas_spread_over_nodes_and_go_one_at_a_time() -> None:
    objects = render()
    (spread,) = pod(objects)["topologySpreadConstraints"]
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    for selector in (spread["labelSelector"], one(objects, "PodDisruptionBudget")["spec"]["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert one(objects, "Deployment")["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_a_single_replica_holds_no_drain_up() -> None:
    assert not [each for each in render({"replicas": 1}) if each["kind"] == "PodDisruptionBudget"]


def test_the_definition_is_that_of_the_contract_and_stays_when_the_chart_goes() -> None:
    crd = one(render(), "CustomResourceDefinition")
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert crd["spec"] == yaml.safe_load((ROOT / crdgen.CRD_FILE).read_text(encoding="utf-8"))["spec"]


def test_stages_are_made_as_they_are_given() -> None:
    spec = {"model": {"source": {"embedded": "shapes"}}, "replicas": 2}
    stage = one(
        render({"stages": [{"name": "a", "namespace": "b", "labels": {"c": "d"}, "spec": spec}]}), names.KIND
    )
    assert (stage["apiVersion"], stage["spec"]) == (names.API_VERSION, spec)
    assert (stage["metadata"]["namespace"], stage["metadata"]["labels"]["c"]) == ("b", "d")


def test_stages_on_a_cluster_that_does_not_know_them_are_refused_with_what_to_do() -> None:
    done = template(EVERYTHING, api="v1")
    assert done.returncode != 0
    assert "Install the chart without them first" in done.stderr


def test_the_pods_of_stages_are_found_by_the_names_of_the_contract() -> None:
    spec = one(render(EVERYTHING), "PodMonitor")["spec"]
    assert spec["selector"]["matchLabels"] == {names.LABEL_RANK0: "true"}
    (endpoint,) = spec["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == (names.PORT_NAME, names.PATH_METRICS)
    assert spec["namespaceSelector"] == {"any": True}


def test_the_service_and_its_monitor_find_the_operator() -> None:
    objects = render(EVERYTHING)
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    service = one(objects, "Service")
    assert service["spec"]["selector"].items() <= labels.items()
    monitor = one(objects, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]


def test_the_alerts_measure_by_the_objectives_that_are_set() -> None:
    objectives = {"latencySeconds": 2.5, "latencyTarget": 0.999, "successTarget": 0.95}
    objects = render({"metrics": {"prometheusRule": {"enabled": True, "objectives": objectives}}})
    rules = [
        rule
        for each in objects
        if each["kind"] == "PrometheusRule"
        for rule in each["spec"]["groups"][0]["rules"]
    ]
    assert {rule["record"]: rule["expr"] for rule in rules if "record" in rule} == {
        "omnistage:latency_objective:seconds": "vector(2.5)",
        "omnistage:latency_target:ratio": "vector(0.999)",
        "omnistage:success_target:ratio": "vector(0.95)",
    }


@pytest.mark.parametrize("folder", ["rules/*.yaml", "dashboards/*.json"])
def test_every_file_for_monitoring_is_installed_as_it_is(folder: str) -> None:
    files = sorted(CHART.glob(folder))
    objects = render(EVERYTHING)
    if folder.startswith("rules"):
        found = [each["spec"] for each in objects if each["kind"] == "PrometheusRule"]
        wanted = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in files]
    else:
        found = [each["data"] for each in objects if each["kind"] == "ConfigMap"]
        wanted = [{path.name: path.read_text(encoding="utf-8").rstrip("\n") + "\n"} for path in files]
    assert sorted(map(str, found)) == sorted(map(str, wanted))
    assert not [
        each
        for each in render()
        if each["kind"] in ("PrometheusRule", "ConfigMap", "PodMonitor", "ServiceMonitor")
    ]
