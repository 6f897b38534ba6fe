"""What the chart lets the operator do: all that it does, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from stage_api import names
from stage_operator.client import discovery, kube
from support.helm import needs_helm, one, render

pytestmark = needs_helm

ROLES = ("Role", "ClusterRole")
OWN_GROUPS = ("scheduling.k8s.io", "scheduling.volcano.sh", "scheduling.x-k8s.io")
CHILD_VERBS = {"get", "list", "watch", "create", "patch", "delete"}
Rights = dict[tuple[str, str], set[str]]


def rights(role: dict[str, Any]) -> Rights:
    """(API group, resource) -> verbs."""
    found: Rights = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def for_stages(values: dict[str, Any] | None = None) -> Rights:
    """What the operator may do with stages, wherever it may do it."""
    objects = render(values)
    roles = [each for each in objects if each["kind"] in ROLES and grants_status(each)]
    first, *others = [rights(role) for role in roles]
    assert all({key: first[key] for key in other} == other for other in others)
    return first


def grants_status(role: dict[str, Any]) -> bool:
    return "patch" in rights(role).get((names.GROUP, f"{names.PLURAL}/status"), ())


def test_it_may_do_with_stages_pods_and_nodes_what_it_does() -> None:
    may = for_stages()
    assert may[names.GROUP, names.PLURAL] == {"get", "list", "watch"}
    assert may[names.GROUP, f"{names.PLURAL}/status"] == {"patch"}
    assert may["", kube.PODS.plural] == {"get", "list", "watch", "create", "delete"}
    assert may["", kube.NODES.plural] == {"get", "list", "watch"}


def test_it_may_keep_every_kind_of_child() -> None:
    may = for_stages()
    for api_version, kind in discovery.CHILD_KINDS:
        group = api_version.rpartition("/")[0]
        assert may[group, kube.resource_of(api_version, kind).plural] == CHILD_VERBS, kind
    for group in OWN_GROUPS:
        assert may[group, "podgroups"] == CHILD_VERBS
    assert may["monitoring.coreos.com", "podmonitors"] == CHILD_VERBS


def test_it_makes_secrets_and_reads_none() -> None:
    assert for_stages()["", kube.SECRETS.plural] == {"create"}


def test_it_tells_events_and_reads_those_of_pods() -> None:
    group = kube.EVENTS.api_version.partition("/")[0]
    assert for_stages()[group, kube.EVENTS.plural] == {"list", "create", "patch"}


def test_it_may_do_nothing_else() -> None:
    known = {
        (names.GROUP, names.PLURAL),
        (names.GROUP, f"{names.PLURAL}/status"),
        ("", "pods"),
        ("", "nodes"),
        ("", "secrets"),
        ("events.k8s.io", "events"),
        ("monitoring.coreos.com", "podmonitors"),
        *((group, "podgroups") for group in OWN_GROUPS),
        *(
            (version.rpartition("/")[0], kube.resource_of(version, kind).plural)
            for version, kind in discovery.CHILD_KINDS
        ),
    }
    assert set(for_stages()) == known


@pytest.mark.parametrize("values", [{}, {"watch": {"namespaces": ["a", "b"]}}], ids=["cluster", "namespaces"])
def test_no_right_is_a_wildcard(values: dict[str, Any]) -> None:
    for role in (each for each in render(values) if each["kind"] in ROLES):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_with_namespaces_there_is_a_role_in_each_and_no_cluster_role() -> None:
    objects = render({"watch": {"namespaces": ["a", "b"]}})
    assert not [each for each in objects if each["kind"].startswith("ClusterRole")]
    roles = [each for each in objects if each["kind"] == "Role" and grants_status(each)]
    assert [role["metadata"]["namespace"] for role in roles] == ["a", "b"]
    assert "nodes" not in {resource for role in roles for _, resource in rights(role)}


def test_with_namespaces_it_may_do_there_what_it_may_do_everywhere_else() -> None:
    everywhere = for_stages()
    del everywhere["", "nodes"]
    assert for_stages({"watch": {"namespaces": ["a", "b"]}}) == everywhere


def test_every_binding_binds_the_operator_to_a_role_that_is_there() -> None:
    for values in ({}, {"watch": {"namespaces": ["a", "b"]}}):
        objects = render(values)
        account = one(objects, "ServiceAccount")["metadata"]
        roles = {
            (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects
        }
        for binding in (each for each in objects if each["kind"].endswith("RoleBinding")):
            ref, namespace = binding["roleRef"], binding["metadata"].get("namespace")
            assert (ref["kind"], namespace, ref["name"]) in roles
            assert binding["subjects"] == [
                {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
            ]


def test_the_lease_is_the_only_one_that_it_may_touch() -> None:
    objects = render(name="other")
    role = one(objects, "Role", "other-omnistage-lease")
    create, rest = role["rules"]
    assert create["verbs"] == ["create"]
    (args,) = [each["args"] for each in one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]]
    assert [f"--lease-name={name}" for name in rest["resourceNames"]] == [
        arg for arg in args if arg.startswith("--lease-name=")
    ]
    assert set(rest["verbs"]) == {"get", "update", "delete"}


def test_viewers_see_stages_and_editors_change_them_but_nobody_their_status() -> None:
    objects = render()
    view = rights(one(objects, "ClusterRole", "omnistage-house-view"))
    edit = rights(one(objects, "ClusterRole", "omnistage-house-edit"))
    assert {verb for verbs in view.values() for verb in verbs} == {"get", "list", "watch"}
    assert "update" in edit[names.GROUP, names.PLURAL]
    assert (names.GROUP, f"{names.PLURAL}/status") not in edit


def test_people_s_rights_can_be_left_as_they_are() -> None:
    objects = render({"rbac": {"aggregate": False}})
    assert [each["metadata"]["name"] for each in objects if each["kind"] == "ClusterRole"] == [
        "omnistage-house"
    ]
