"""How the operator is set up, and what it says when that is wrong."""

from __future__ import annotations

import pytest

from stage_api.errors import SpecError
from stage_operator import settings
from stage_operator.settings import WatchNodes

IMAGE = "--worker-image=registry/worker:1"


def test_what_is_not_given_has_its_default() -> None:
    found = settings.load([IMAGE], {"POD_NAMESPACE": "ours", "POD_NAME": "pod-1"})
    assert found.namespaces == ()
    assert found.watch_nodes is WatchNodes.AUTO
    assert (found.qps, found.burst, found.resync_s) == (500, 1000, 300)
    assert (found.lease.lease_s, found.lease.renew_s, found.lease.retry_s) == (15, 10, 2)
    assert found.lease.namespace == "ours"
    assert found.lease.identity.startswith("pod-1_")
    assert found.plan.worker_image == "registry/worker:1"
    assert not found.plan.allow_host_path


def test_two_replicas_in_one_place_are_told_apart() -> None:
    env = {"POD_NAME": "pod-1"}
    assert settings.load([IMAGE], env).lease.identity != settings.load([IMAGE], env).lease.identity


def test_the_environment_stands_in_for_a_flag_and_a_flag_goes_first() -> None:
    env = {"OMNISTAGE_OPERATOR_WORKERS": "3", "OMNISTAGE_OPERATOR_WORKER_IMAGE": "from-env"}
    assert settings.load([], env).workers == 3
    assert settings.load(["--workers=5"], env).workers == 5
    assert settings.load([], env).plan.worker_image == "from-env"


def test_namespaces_are_a_list_without_repetition() -> None:
    assert settings.load([IMAGE, "--namespaces=a, b,a"], {}).namespaces == ("a", "b")


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--worker-image=", "--worker-image: expected the name of an image"),
        ("--workers=many", '--workers: expected a number from 1 to 256, got "many"'),
        ("--workers=0", "--workers"),
        ("--allow-host-path=perhaps", "--allow-host-path: expected true or false"),
        ("--namespaces=Bad_Name", "--namespaces: expected names of namespaces"),
        ("--watch-nodes=some", "--watch-nodes: expected auto, true or false"),
        ("--qps=nan", "--qps"),
        ("--port=70000", "--port"),
        ("--log-level=loud", "--log-level"),
        ("--renew-seconds=15", "--renew-seconds: expected less than --lease-seconds 15, got 15"),
        ("--retry-seconds=10", "--retry-seconds: expected less than --renew-seconds 10, got 10.0"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(flag: str, text: str) -> None:
    given = [flag] if flag.startswith("--worker-image") else [IMAGE, flag]
    with pytest.raises(SpecError) as caught:
        settings.load(given, {})
    assert any(text in str(fault) for fault in caught.value.faults)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        settings.load(["--workers=x", "--port=x"], {})
    assert len(caught.value.faults) == 3


def test_a_wrong_flag_ends_with_the_code_for_a_wrong_config(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings.load([IMAGE, "--unknown=1"], {})
    assert "--unknown" in capsys.readouterr().err
