"""Which pod this is and where it meets the others, from its environment."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from stage_api import names
from stage_api.errors import SpecError
from stage_runtime.executor.pods import (
    MeetingPoint,
    listening_channel,
    meeting_point,
    pod_ordinal,
    spanning_life,
)
from stage_runtime.ipc.addresses import dials_ipv6, listening_host, port_of
from support.far_pod import key_folder, pod_environ, two_pods
from support.mp_stage import a_config


def test_the_first_pod_is_met_where_the_contract_says() -> None:
    point = meeting_point({names.ENV_MASTER_ADDR: "flux-0-e1-0.flux-ranks.art.svc"})
    assert point.address == f"tcp://flux-0-e1-0.flux-ranks.art.svc:{names.RANKS_PORT}"
    assert point.keys == Path(names.KEYS_DIR)


def test_a_local_run_may_meet_elsewhere() -> None:
    environ = {names.ENV_MASTER_ADDR: "::1", names.ENV_RANKS_PORT: "31000", names.ENV_KEYS: "/keys"}
    assert meeting_point(environ) == MeetingPoint("::1", 31000, Path("/keys"))
    assert meeting_point(environ).address == "tcp://[::1]:31000"


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "²"])
def test_every_fault_of_the_environment_is_named(port: str) -> None:
    with pytest.raises(SpecError) as refused:
        meeting_point({names.ENV_RANKS_PORT: port})
    assert [fault.path for fault in refused.value.faults] == [names.ENV_MASTER_ADDR, names.ENV_RANKS_PORT]


@pytest.mark.parametrize(("given", "ordinal"), [(None, 0), ("", 0), ("0", 0), ("1", 1)])
def test_a_pod_knows_its_ordinal(given: str | None, ordinal: int) -> None:
    environ = {} if given is None else {names.ENV_GROUP_RANK: given}
    assert pod_ordinal(environ, two_pods(data=2).topology()) == ordinal


@pytest.mark.parametrize("given", ["2", "-1", "one", "²"])
def test_an_ordinal_that_the_topology_has_not_is_refused(given: str) -> None:
    with pytest.raises(SpecError, match=r"GROUP_RANK: expected an integer 0\.\.1, got"):
        pod_ordinal({names.ENV_GROUP_RANK: given}, two_pods(data=2).topology())


def test_lives_differ_by_epoch_and_topology_and_matter_between_pods_only() -> None:
    copies, guidance = two_pods(data=2).topology(), two_pods(cfg=2).topology()
    lives = {spanning_life(copies, 0), spanning_life(copies, 1), spanning_life(guidance, 0)}
    assert len(lives) == 3
    assert spanning_life(a_config(data=2).topology(), 0) == ""


def test_a_port_that_is_taken_is_a_fault_of_the_environment(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environ = pod_environ(0, master="127.0.0.1", keys=key_folder(tmp_path / "keys"), epoch=0, port=port)
        with pytest.raises(
            SpecError, match=f"{names.ENV_RANKS_PORT}: expected a port that is free, got {port}"
        ):
            listening_channel(environ, "1.0.abc", lambda rank: None)


@pytest.mark.parametrize(
    ("master", "hosts"),
    [
        ("127.0.0.1", {"127.0.0.1"}),
        ("::1", {"::1"}),
        ("10.1.2.3", {"::", "0.0.0.0"}),
        ("flux-0-e1-0.flux-ranks.art.svc", {"::", "0.0.0.0"}),
    ],
)
def test_pods_of_one_machine_are_heard_on_that_machine_only(master: str, hosts: set[str]) -> None:
    assert listening_host(master) in hosts


@pytest.mark.parametrize(
    ("address", "dials"),
    [
        ("tcp://10.1.2.3:29501", False),
        ("tcp://[fd00::1]:29501", True),
        ("tcp://flux-0-e1-0.flux-ranks.art.svc:29501", socket.has_dualstack_ipv6()),
    ],
)
def test_a_name_may_be_known_by_ipv6_alone(address: str, dials: bool) -> None:
    assert dials_ipv6(address) == dials


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "1e3"])
def test_a_port_that_is_none_is_the_configs_fault_wherever_it_stands(port: str) -> None:
    with pytest.raises(SpecError, match=f"{names.ENV_MASTER_PORT}: expected a port, 1..65535, got {port}"):
        port_of({names.ENV_MASTER_PORT: port}, names.ENV_MASTER_PORT, names.MASTER_PORT)
