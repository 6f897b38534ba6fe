"""The rules that the children of a stage keep, pods aside."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stage_api import names
from stage_api.config import parse
from stage_api.stage import DiffusionStage
from stage_operator.manifests.children import children
from stage_operator.manifests.config_map import config_map
from stage_operator.manifests.disruption import budgets
from stage_operator.manifests.network import OPERATOR_LABELS
from stage_operator.manifests.pod import pods
from stage_operator.manifests.refusal import refused
from stage_operator.manifests.secret import keys, new_keys
from stage_operator.values import Api, Manifest, PlanSettings
from support.stages import TWO_PODS, from_source, stage_of

PLAIN = Api()
RICH = Api(
    pod_group="scheduling.k8s.io/v1beta1",
    volcano="scheduling.volcano.sh/v1beta1",
    coscheduling="scheduling.x-k8s.io/v1alpha1",
    pod_monitor="monitoring.coreos.com/v1",
)
SETTINGS = PlanSettings(worker_image="worker:1")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
MONITORED = {"podMonitor": {"enabled": True, "intervalSeconds": 15, "labels": {"release": "prometheus"}}}


def find(stage: DiffusionStage, kind: str, name: str = "", api: Api = PLAIN) -> Manifest:
    (found,) = [
        one for one in children(stage, api) if one["kind"] == kind and name in ("", one["metadata"]["name"])
    ]
    return found


def kinds(stage: DiffusionStage, api: Api = PLAIN) -> list[tuple[str, str]]:
    return [(one["kind"], one["metadata"]["name"]) for one in children(stage, api)]


def selects(selector: dict[str, str], pod: Manifest) -> bool:
    return selector.items() <= pod["metadata"]["labels"].items()


def made_pods(stage: DiffusionStage, replica: int = 0) -> tuple[Manifest, ...]:
    return pods(stage, replica, 0, settings=SETTINGS, api=PLAIN)


def test_a_stage_of_one_pod_has_what_it_needs_and_no_more() -> None:
    assert [kind for kind, _ in kinds(stage_of())] == [
        "ConfigMap",
        "ServiceAccount",
        "Service",
        "PodDisruptionBudget",
        "NetworkPolicy",
    ]


def test_a_stage_that_spans_pods_has_a_second_service() -> None:
    assert ("Service", "flux-ranks") in kinds(stage_of(**TWO_PODS))


def test_every_child_belongs_to_its_stage_and_is_found_by_it() -> None:
    stage = stage_of(monitoring=MONITORED, **TWO_PODS)
    for one in (*children(stage, RICH), keys(stage).manifest):
        metadata = one["metadata"]
        assert metadata["namespace"] == "art"
        assert metadata["labels"][names.LABEL_STAGE] == "flux"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "omnistage-operator"
        (owner,) = metadata["ownerReferences"]
        assert owner["uid"] == stage.metadata.uid
        assert owner["controller"] is True
        assert owner["blockOwnerDeletion"] is False


def test_the_children_of_the_longest_stage_have_valid_names_of_their_own() -> None:
    longest = stage_of("s" * names.MAX_NAME, replicas=3, monitoring=MONITORED, **TWO_PODS)
    named = kinds(longest, RICH)
    assert len(set(named)) == len(named)
    assert [name for _, name in named if not DNS_LABEL.fullmatch(name)] == []


def test_no_child_of_one_stage_has_the_name_of_anothers() -> None:
    stages = [
        stage_of(name, replicas=2, **TWO_PODS) for name in ("flux", "flux-0", "flux-stage", "flux-keys")
    ]
    named = [each for stage in stages for each in kinds(stage)]
    assert len(set(named)) == len(named)


def test_the_config_map_holds_what_pods_read() -> None:
    stage = stage_of(engine={"image": "mine:1", "maxNumSeqs": 4}, **TWO_PODS)
    data = config_map(stage)["data"]
    config = parse(data[names.CONFIG_FILE], executable=True)
    assert config.engine.max_num_seqs == 4
    assert "image" not in json.loads(data[names.CONFIG_FILE])["engine"]
    assert data["ranks.txt"] == config.topology().rank_table() + "\n"


def test_a_config_map_never_changes_but_another_config_has_another() -> None:
    one, other = config_map(stage_of()), config_map(stage_of(engine={"maxNumSeqs": 4}))
    assert one["immutable"] is True
    assert one["metadata"]["name"] != other["metadata"]["name"]


@pytest.mark.parametrize("spec", [{"replicas": 3}, {"engine": {"image": "mine:1"}}, {"suspend": True}])
def test_what_pods_do_not_read_makes_no_other_config(spec: dict[str, Any]) -> None:
    assert config_map(stage_of(**spec)) == config_map(stage_of())


def test_requests_go_to_the_first_pod_of_each_replica() -> None:
    stage = stage_of(engine={"port": 9000}, **TWO_PODS)
    spec = find(stage, "Service", "flux")["spec"]
    first, second = made_pods(stage)
    assert selects(spec["selector"], first)
    assert not selects(spec["selector"], second)
    assert [(port["port"], port["targetPort"]) for port in spec["ports"]] == [(9000, "http")]
    assert "publishNotReadyAddresses" not in spec


def test_ranks_find_each_other_before_they_are_ready() -> None:
    stage = stage_of(**TWO_PODS)
    service = find(stage, "Service", "flux-ranks")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    for pod in made_pods(stage):
        assert selects(service["spec"]["selector"], pod)
        assert pod["spec"]["subdomain"] == service["metadata"]["name"]


def test_the_account_of_the_pods_has_no_token() -> None:
    account = find(stage_of(), "ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    assert account["metadata"]["name"] == made_pods(stage_of())[0]["spec"]["serviceAccountName"]


def test_a_plan_holds_no_key() -> None:
    made = keys(stage_of(**TWO_PODS))
    assert made.manifest["kind"] == "Secret"
    assert not {"data", "stringData"} & set(made.manifest)
    assert made.draw is new_keys


def test_new_keys_are_new_and_have_the_names_by_which_pods_read_them() -> None:
    one, other = new_keys(), new_keys()
    assert set(one) == {"server.key", "server.pub", "client.key", "client.pub"}
    assert all(len(key) == 40 for key in one.values())
    assert not set(one.values()) & set(other.values())


def test_a_drain_may_take_as_many_single_pods_as_the_stage_says() -> None:
    (budget,) = budgets(stage_of(replicas=5, disruption={"maxUnavailable": "40%"}))
    assert budget["spec"]["minAvailable"] == 3
    (budget,) = budgets(stage_of(replicas=1))
    assert budget["spec"]["minAvailable"] == 0
    (budget,) = budgets(stage_of(replicas=2, disruption={"maxUnavailable": 0}))
    assert budget["spec"]["minAvailable"] == 2


def test_no_pod_of_a_replica_that_spans_pods_is_evicted_by_itself() -> None:
    stage = stage_of(replicas=2, parallelism={"data": 4}, topology={"ranksPerPod": 1})
    first, second = budgets(stage)
    for replica, budget in enumerate((first, second)):
        selector = budget["spec"]["selector"]["matchLabels"]
        assert budget["spec"]["minAvailable"] == 4
        assert all(selects(selector, pod) for pod in made_pods(stage, replica))
        assert not any(selects(selector, pod) for pod in made_pods(stage, 1 - replica))


def test_a_pod_that_does_not_serve_holds_up_no_drain() -> None:
    assert budgets(stage_of())[0]["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_everybody_may_send_requests_unless_the_stage_says_who() -> None:
    (rule,) = find(stage_of(), "NetworkPolicy")["spec"]["ingress"]
    assert rule == {"ports": [{"port": "http", "protocol": "TCP"}]}
    peer = {"namespaceSelector": {"matchLabels": {"team": "art"}}}
    (rule,) = find(stage_of(networkPolicy={"ingressFrom": [peer]}), "NetworkPolicy")["spec"]["ingress"]
    assert rule["from"] == [peer]


def test_a_peer_may_be_every_pod_of_every_namespace() -> None:
    peer = {"namespaceSelector": {}}
    (rule,) = find(stage_of(networkPolicy={"ingressFrom": [peer]}), "NetworkPolicy")["spec"]["ingress"]
    assert rule["from"] == [peer]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"resources": {"requests": {"cpu": "1000m"}}}, {"resources": {"requests": {"cpu": 1}}}),
        ({"resources": {"limits": {"memory": "4096Mi"}}}, {"resources": {"limits": {"memory": "4Gi"}}}),
        ({"resources": {"sharedMemory": "1024Mi"}}, {"resources": {"sharedMemory": "1Gi"}}),
        (
            {},
            {"replicas": 1, "engine": {"port": 8000}, "networkPolicy": {"enabled": True, "ingressFrom": []}},
        ),
        (
            {"replicas": 4, "disruption": {"maxUnavailable": 1}},
            {"replicas": 4, "disruption": {"maxUnavailable": "25%"}},
        ),
        (
            {"networkPolicy": {"ingressFrom": [{"podSelector": {}}]}},
            {
                "networkPolicy": {
                    "ingressFrom": [{"podSelector": {"matchLabels": {}, "matchExpressions": []}}]
                }
            },
        ),
    ],
    ids=str,
)
def test_equal_values_that_are_written_otherwise_make_the_same_children(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert children(stage_of(**one), RICH) == children(stage_of(**other), RICH)


def test_the_operator_is_let_in_beside_those_that_the_stage_names() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "art"}}}
    stage = stage_of(networkPolicy={"ingressFrom": [peer]})
    policies = [one for one in children(stage, RICH, operator_at="house") if one["kind"] == "NetworkPolicy"]
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "house"}},
        "podSelector": {"matchLabels": OPERATOR_LABELS},
    }
    assert policies[0]["spec"]["ingress"][0]["from"] == [peer, operator]
    for one in children(stage_of(), RICH, operator_at="house"):
        assert "from" not in str(one.get("spec", {}).get("ingress", "")), "everybody is let in already"


def test_only_the_stages_own_pods_reach_the_ports_of_its_ranks() -> None:
    stage = stage_of(**TWO_PODS)
    policy = find(stage, "NetworkPolicy")["spec"]
    _, between = policy["ingress"]
    (peer,) = between["from"]
    assert set(peer) == {"podSelector"}
    assert "ports" not in between
    for pod in made_pods(stage):
        assert selects(peer["podSelector"]["matchLabels"], pod)
        assert selects(policy["podSelector"]["matchLabels"], pod)


def test_a_stage_may_have_no_policy() -> None:
    assert "NetworkPolicy" not in dict(kinds(stage_of(networkPolicy={"enabled": False})))


def test_a_pod_monitor_reads_the_metrics_of_the_pods_that_have_some() -> None:
    stage = stage_of(monitoring=MONITORED, **TWO_PODS)
    monitor = find(stage, "PodMonitor", api=RICH)
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["interval"]) == ("http", "/metrics", "15s")
    first, second = made_pods(stage)
    assert selects(monitor["spec"]["selector"]["matchLabels"], first)
    assert not selects(monitor["spec"]["selector"]["matchLabels"], second)


def test_there_is_no_pod_monitor_unless_asked_for() -> None:
    assert "PodMonitor" not in dict(kinds(stage_of(), RICH))


def test_what_this_cluster_has_not_got_is_refused_all_at_once() -> None:
    stage = stage_of(
        model={"source": {"hostPath": {"path": "/srv/m"}}},
        monitoring=MONITORED,
        gang={"mode": "Volcano"},
        podTemplate={"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}},
        **TWO_PODS,
    )
    why = "since this operator lets no stage have folders of nodes"
    assert [str(fault) for fault in refused(stage, PLAIN, SETTINGS)] == [
        f"spec.model.source: expected another source, {why}, got hostPath",
        f"spec.podTemplate.spec.volumes[0]: expected another kind of volume, {why}, got hostPath",
        "spec.gang.mode: expected a kind that the cluster serves (it serves none), got Volcano",
        "spec.monitoring.podMonitor.enabled: expected false, since the cluster has no PodMonitors, got true",
    ]
    assert refused(stage, RICH, PlanSettings("worker:1", allow_host_path=True)) == ()


def test_a_claim_is_not_refused() -> None:
    assert refused(from_source(persistentVolumeClaim={"claimName": "m"}), PLAIN, SETTINGS) == ()
