"""The rules that the pods of a stage keep."""

from __future__ import annotations

from typing import Any

import pytest

from stage_api import names
from stage_api.failure import MAX_BAD_NODES
from stage_api.revision import revision_of
from stage_api.stage import DiffusionStage
from stage_operator.manifests.config_map import config_map
from stage_operator.manifests.pod import pods
from stage_operator.values import Api, Manifest, PlanSettings
from support.stages import COMMIT, TWO_PODS, from_source, stage_of

SETTINGS = PlanSettings(worker_image="registry.example/worker:1")
PLAIN = Api()


def made(stage: DiffusionStage, replica: int = 0, epoch: int = 0, **more: Any) -> tuple[Manifest, ...]:
    return pods(stage, replica, epoch, settings=SETTINGS, api=more.pop("api", PLAIN), **more)


def only(stage: DiffusionStage, **more: Any) -> Manifest:
    (pod,) = made(stage, **more)
    return pod


def container(pod: Manifest, name: str = names.CONTAINER) -> Manifest:
    spec = pod["spec"]
    (found,) = [one for one in (*spec["containers"], *spec.get("initContainers", ())) if one["name"] == name]
    return dict(found)


def env(pod: Manifest, name: str = names.CONTAINER) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container(pod, name)["env"]}


def mount(pod: Manifest, path: str, name: str = names.CONTAINER) -> Manifest | None:
    return next((one for one in container(pod, name)["volumeMounts"] if one["mountPath"] == path), None)


def volume(pod: Manifest, name: str) -> Manifest:
    (found,) = [one for one in pod["spec"]["volumes"] if one["name"] == name]
    return dict(found)


def test_a_replica_has_one_pod_for_each_share_of_its_ranks() -> None:
    four = made(stage_of(parallelism={"data": 8}, topology={"ranksPerPod": 2}))
    assert [pod["metadata"]["labels"][names.LABEL_ORDINAL] for pod in four] == ["0", "1", "2", "3"]
    assert len(made(stage_of(parallelism={"data": 8}))) == 1


def test_a_pods_name_says_its_replica_and_life() -> None:
    first, second = made(stage_of(**TWO_PODS), replica=3, epoch=7)
    assert first["metadata"]["name"] == "flux-3-e7-0"
    assert second["metadata"]["name"] == "flux-3-e7-1"
    assert second["spec"]["hostname"] == "flux-3-e7-1"
    assert second["spec"]["subdomain"] == "flux-ranks"


def test_a_pod_belongs_to_its_stage_and_says_so() -> None:
    stage = stage_of()
    metadata = only(stage, replica=1, epoch=2)["metadata"]
    assert metadata["namespace"] == "art"
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == (names.KIND, stage.metadata.uid, True)
    assert owner["blockOwnerDeletion"] is False
    labels = metadata["labels"]
    assert labels[names.LABEL_STAGE] == "flux"
    assert labels[names.LABEL_REPLICA] == "1"
    assert labels[names.LABEL_EPOCH] == "2"
    assert labels[names.LABEL_REVISION] == revision_of(stage)
    assert labels["app.kubernetes.io/instance"] == "flux"


def test_only_the_first_pod_of_a_replica_serves() -> None:
    first, second = (pod["metadata"]["labels"] for pod in made(stage_of(**TWO_PODS)))
    assert first[names.LABEL_RANK0] == "true"
    assert names.LABEL_RANK0 not in second


def test_any_model_name_fits_into_a_label_and_stands_whole_beside_it() -> None:
    name = "组织/My.Model_v1.0-" + "x" * 200
    metadata = only(stage_of(model={"source": {"embedded": "shapes"}, "name": name}))["metadata"]
    assert metadata["annotations"][names.ANNOTATION_MODEL] == name
    assert metadata["labels"][names.LABEL_MODEL] == names.label_value(name)


def test_a_pod_is_never_restarted() -> None:
    assert only(stage_of())["spec"]["restartPolicy"] == "Never"


def test_a_pod_passes_the_restricted_standard_and_names_no_user() -> None:
    for pod in made(stage_of(**TWO_PODS)):
        spec = pod["spec"]
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        for one in spec["containers"]:
            assert one["securityContext"]["allowPrivilegeEscalation"] is False
            assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert one["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_pod_has_no_access_to_the_cluster() -> None:
    spec = only(stage_of())["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["serviceAccountName"] == "flux-stage"


def test_a_pod_gets_time_to_drain_and_a_little_more() -> None:
    pod = only(stage_of(drain={"admitSeconds": 7, "timeoutSeconds": 100}))
    assert pod["spec"]["terminationGracePeriodSeconds"] == 7 + 100 + 15


def test_the_probes_ask_the_paths_of_the_contract() -> None:
    stage = container(only(stage_of(startup={"timeoutSeconds": 900})))
    probes = {name: stage[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/startupz", "liveness": "/livez", "readiness": "/readyz"}
    startup = probes["startup"]
    assert startup["failureThreshold"] * startup["periodSeconds"] >= 900
    assert probes["liveness"]["failureThreshold"] > 1


def test_a_process_that_answers_no_probe_is_not_waited_for() -> None:
    stage = container(only(stage_of()))
    assert stage["livenessProbe"]["terminationGracePeriodSeconds"] < 10
    assert stage["startupProbe"]["terminationGracePeriodSeconds"] < 10
    assert stage["startupProbe"]["timeoutSeconds"] <= stage["startupProbe"]["periodSeconds"]
    assert "terminationGracePeriodSeconds" not in stage["readinessProbe"]


def test_the_last_words_are_read_from_their_file_or_else_from_the_log() -> None:
    stage = container(only(stage_of()))
    assert stage["terminationMessagePath"] == names.TERMINATION_LOG
    assert stage["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_image_is_the_stages_or_else_the_operators() -> None:
    assert container(only(stage_of()))["image"] == "registry.example/worker:1"
    own = stage_of(
        engine={"image": "mine:2", "imagePullPolicy": "Always", "imagePullSecrets": [{"name": "p"}]}
    )
    assert container(only(own))["image"] == "mine:2"
    assert container(only(own))["imagePullPolicy"] == "Always"
    assert only(own)["spec"]["imagePullSecrets"] == [{"name": "p"}]


def test_the_environment_says_who_a_pod_is() -> None:
    _, second = made(stage_of(**TWO_PODS), replica=1, epoch=4)
    told = env(second)
    assert told["OMNISTAGE_STAGE"] == "flux"
    assert (told["OMNISTAGE_REPLICA"], told["OMNISTAGE_EPOCH"], told["GROUP_RANK"]) == ("1", "4", "1")
    assert (told["WORLD_SIZE"], told["LOCAL_WORLD_SIZE"]) == ("2", "1")


def test_all_pods_of_a_life_meet_at_its_first() -> None:
    first, second = made(stage_of(**TWO_PODS), replica=1, epoch=4)
    assert env(first)["MASTER_ADDR"] == env(second)["MASTER_ADDR"] == "flux-1-e4-0.flux-ranks.art.svc"
    assert env(second)["MASTER_PORT"] == str(names.MASTER_PORT)


def test_a_replica_of_one_pod_meets_nowhere() -> None:
    assert "MASTER_ADDR" not in env(only(stage_of(parallelism={"cfg": 2})))


def test_variables_that_a_user_may_refer_to_come_first() -> None:
    template = {"spec": {"containers": [{"name": "stage", "env": [{"name": "A", "value": "$(WORLD_SIZE)"}]}]}}
    variables = [one["name"] for one in container(only(stage_of(podTemplate=template)))["env"]]
    assert variables[-1] == "A"


def test_each_rank_gets_an_accelerator() -> None:
    eight = stage_of(parallelism={"data": 8})
    assert container(only(eight))["resources"]["limits"] == {"nvidia.com/gpu": 8}
    other = stage_of(parallelism={"data": 2}, resources={"accelerator": "amd.com/gpu"})
    assert container(only(other))["resources"]["limits"] == {"amd.com/gpu": 2}


@pytest.mark.parametrize("spec", [{"engine": {"device": "cpu"}}, {"resources": {"accelerator": ""}}])
def test_a_stage_without_accelerators_asks_for_none(spec: dict[str, Any]) -> None:
    assert container(only(stage_of(**spec)))["resources"] == {}


def test_what_else_a_pod_needs_stands_beside_its_accelerators() -> None:
    wanted = {"requests": {"cpu": 4, "memory": "16Gi"}, "limits": {"memory": "64Gi"}}
    resources = container(only(stage_of(resources=wanted)))["resources"]
    assert resources["requests"] == {"cpu": 4, "memory": "16Gi"}
    assert resources["limits"] == {"memory": "64Gi", "nvidia.com/gpu": 1}


def test_shared_memory_is_memory_of_the_size_asked_for() -> None:
    pod = only(stage_of(resources={"sharedMemory": "512Mi"}))
    assert volume(pod, "omnistage-shm")["emptyDir"] == {"medium": "Memory", "sizeLimit": "512Mi"}
    assert mount(pod, "/dev/shm") is not None


def test_no_shared_memory_leaves_the_runtimes_own() -> None:
    assert mount(only(stage_of(resources={"sharedMemory": 0})), "/dev/shm") is None


def test_a_pod_reads_the_config_of_its_stage() -> None:
    stage = stage_of()
    pod = only(stage)
    assert volume(pod, "omnistage-config")["configMap"] == {"name": config_map(stage)["metadata"]["name"]}
    assert mount(pod, names.CONFIG_DIR) == {
        "name": "omnistage-config",
        "mountPath": names.CONFIG_DIR,
        "readOnly": True,
    }


def test_keys_are_mounted_only_where_a_replica_spans_pods_and_each_side_gets_its_own() -> None:
    first, second = made(stage_of(**TWO_PODS))

    def files(pod: Manifest) -> set[str]:
        secret = volume(pod, "omnistage-keys")["secret"]
        assert secret["secretName"] == "flux-keys"
        return {item["path"] for item in secret["items"]}

    assert files(first) == {"server.key", "server.pub", "client.pub"}
    assert files(second) == {"client.key", "client.pub", "server.pub"}
    assert mount(only(stage_of()), names.KEYS_DIR) is None


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ({"hostPath": {"path": "/srv/m"}}, {"hostPath": {"path": "/srv/m", "type": "Directory"}}),
        (
            {"persistentVolumeClaim": {"claimName": "m"}},
            {"persistentVolumeClaim": {"claimName": "m", "readOnly": True}},
        ),
        ({"image": {"reference": "m:1"}}, {"image": {"reference": "m:1", "pullPolicy": "IfNotPresent"}}),
    ],
)
def test_a_model_is_mounted_read_only_where_the_pod_is_told(
    source: dict[str, Any], kind: dict[str, Any]
) -> None:
    pod = only(from_source(**source))
    assert volume(pod, "omnistage-model") == {"name": "omnistage-model", **kind}
    mounted = mount(pod, env(pod)["OMNISTAGE_MODEL_DIR"])
    assert mounted is not None
    assert mounted["readOnly"] is True
    assert "initContainers" not in pod["spec"]


def test_a_folder_in_a_volume_is_mounted_as_the_model() -> None:
    for kind, ref in (("persistentVolumeClaim", {"claimName": "m"}), ("image", {"reference": "m:1"})):
        mounted = mount(only(from_source(**{kind: {**ref, "subPath": "a/b"}})), names.MODEL_DIR)
        assert mounted is not None
        assert mounted["subPath"] == "a/b"


def test_an_embedded_model_needs_no_mount() -> None:
    pod = only(stage_of())
    assert "OMNISTAGE_MODEL_DIR" not in env(pod)
    assert mount(pod, names.MODEL_DIR) is None


def hub(**more: Any) -> DiffusionStage:
    return from_source(huggingFace={"repo": "org/flux", "revision": COMMIT, **more})


def test_a_model_of_the_hub_is_fetched_before_the_stage_starts() -> None:
    pod = only(hub())
    fetch = container(pod, "fetch")
    assert fetch in pod["spec"]["initContainers"]
    assert fetch["image"] == container(pod)["image"]
    assert fetch["command"][-1] == "fetch"
    assert env(pod, "fetch")["OMNISTAGE_MODEL_DIR"] == env(pod)["OMNISTAGE_MODEL_DIR"]
    assert volume(pod, "omnistage-model")["emptyDir"] == {}


def test_only_the_fetching_container_writes_the_model_and_sees_the_token() -> None:
    pod = only(hub(tokenSecretRef={"name": "hub", "key": "read"}))
    assert mount(pod, names.TOKEN_DIR, "fetch") is not None
    assert mount(pod, names.TOKEN_DIR) is None
    assert volume(pod, "omnistage-token")["secret"] == {
        "secretName": "hub",
        "items": [{"key": "read", "path": "token"}],
    }
    read, write = mount(pod, names.MODEL_DIR), mount(pod, names.MODEL_DIR, "fetch")
    assert read is not None
    assert write is not None
    assert read["readOnly"] is True
    assert "readOnly" not in write


def test_a_fetching_container_needs_no_accelerator() -> None:
    stage = stage_of(
        model={"source": {"huggingFace": {"repo": "org/flux", "revision": COMMIT}}},
        resources={"limits": {"memory": "4Gi"}},
    )
    assert container(only(stage), "fetch")["resources"] == {"limits": {"memory": "4Gi"}}


def test_a_stage_never_asks_the_hub_itself() -> None:
    pod = only(hub())
    assert env(pod)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in env(pod, "fetch")


def test_a_volume_keeps_each_choice_of_files_in_its_own_folder() -> None:
    cache = {"claimName": "models", "subPath": "hub"}
    choices = [
        hub(cache=cache),
        hub(cache=cache, ignorePatterns=["*.bin"]),
        hub(cache=cache, allowPatterns=["*.bin"]),
        hub(cache=cache, revision="f" * 40),
        hub(cache=cache, repo="org:flux".replace(":", "-")),
    ]
    assert len({env(only(stage))["OMNISTAGE_MODEL_DIR"] for stage in choices}) == len(choices)
    pod = only(choices[0])
    assert volume(pod, "omnistage-model")["persistentVolumeClaim"] == {"claimName": "models"}
    mounted = mount(pod, names.MODEL_DIR, "fetch")
    assert mounted is not None
    assert mounted["subPath"] == "hub"


def wishes(pod: Manifest) -> list[Any]:
    return list(pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"])


def test_no_pod_of_a_life_goes_to_a_node_to_be_avoided_if_there_is_another() -> None:
    for pod in made(stage_of(**TWO_PODS), avoid=("node-1", "node-2")):
        fields = [(wish["weight"], *wish["preference"]["matchFields"]) for wish in wishes(pod)]
        assert fields == [
            (100, {"key": "metadata.name", "operator": "NotIn", "values": ["node-2"]}),
            (90, {"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}),
        ]


@pytest.mark.parametrize("count", range(1, MAX_BAD_NODES + 1))
def test_of_bad_nodes_alone_the_one_that_failed_longest_ago_is_liked_best(count: int) -> None:
    bad = [f"node-{i}" for i in range(count)]
    pod = only(stage_of(), avoid=bad)
    liked = {
        node: sum(
            wish["weight"]
            for wish in wishes(pod)
            if node not in wish["preference"]["matchFields"][0]["values"]
        )
        for node in [*bad, "good"]
    }
    assert sorted(liked, key=lambda node: -liked[node]) == ["good", *bad]


def test_nodes_are_avoided_beside_what_the_user_asks_of_them() -> None:
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    asked = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [zone]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": zone}],
    }
    stage = stage_of(podTemplate={"spec": {"affinity": {"nodeAffinity": asked, "podAffinity": {}}}})
    pod = only(stage, avoid=("node-1",))
    affinity = pod["spec"]["affinity"]
    assert affinity["podAffinity"] == {}
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required == {"nodeSelectorTerms": [zone]}
    assert len(wishes(pod)) == 2
    assert asked["preferredDuringSchedulingIgnoredDuringExecution"] == wishes(pod)[:1]


def test_a_template_is_laid_over_every_pod() -> None:
    template = {
        "metadata": {"labels": {"team": "art"}, "annotations": {"note": "x"}},
        "spec": {
            "nodeSelector": {"pool": "gpu"},
            "securityContext": {"fsGroup": 1000},
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "imagePullSecrets": [{"name": "pull"}, {"name": "more"}],
            "containers": [
                {"name": "proxy", "image": "proxy:1"},
                {"name": "stage", "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]},
            ],
        },
    }
    stage = stage_of(podTemplate=template, engine={"imagePullSecrets": [{"name": "pull"}]}, **TWO_PODS)
    for pod in made(stage):
        assert pod["metadata"]["labels"]["team"] == "art"
        assert pod["metadata"]["annotations"]["note"] == "x"
        spec = pod["spec"]
        assert spec["nodeSelector"] == {"pool": "gpu"}
        assert spec["securityContext"]["fsGroup"] == 1000
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["imagePullSecrets"] == [{"name": "pull"}, {"name": "more"}]
        assert [one["name"] for one in spec["containers"]] == ["stage", "proxy"]
        assert mount(pod, "/scratch") is not None
        assert mount(pod, names.CONFIG_DIR) is not None
        assert volume(pod, "scratch") == {"name": "scratch", "emptyDir": {}}


def test_the_same_stage_gives_the_same_pods() -> None:
    assert made(stage_of(**TWO_PODS)) == made(stage_of(**TWO_PODS))
