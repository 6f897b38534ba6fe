"""Who acts: decisions on a Lease, by nobody's clock but one's own."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from stage_operator.client.kube import Refused, Trouble
from stage_operator.client.own_account import own_account
from stage_operator.loop.lease import Leadership, Seen, Step, judge, look, may_act
from stage_operator.settings import LeaseTerms
from support.fake_kube import FakeKube

TERMS = LeaseTerms(name="lead", namespace="ns", identity="me", lease_s=15, renew_s=10, retry_s=2)


def lease(holder: str, version: int, lasts_s: int = 15) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": lasts_s}
    return {"metadata": {"resourceVersion": str(version)}, "spec": spec}


@pytest.mark.parametrize(
    ("holder", "age_s", "step"),
    [
        ("", 0, Step.TAKE),
        ("me", 0, Step.RENEW),
        ("me", 99, Step.RENEW),
        ("other", 14.9, Step.WAIT),
        ("other", 15, Step.TAKE),
    ],
)
def test_a_lease_is_taken_from_nobody_or_from_one_that_was_silent_too_long(
    holder: str, age_s: float, step: Step
) -> None:
    assert judge(Seen(holder, "1", since=100, lasts_s=15), "me", 100 + age_s) is step


def test_a_lease_is_as_old_as_what_is_known_of_it_whatever_its_own_time_says() -> None:
    first = look(lease("other", 1), 100, None)
    assert first.since == 100
    assert look(lease("other", 1), 110, first).since == 100
    assert look(lease("other", 2), 110, first).since == 110


def test_a_lease_without_a_spec_is_nobodys() -> None:
    assert judge(look({"metadata": {"resourceVersion": "1"}}, 0, None), "me", 0) is Step.TAKE


def test_a_leader_stops_before_others_may_think_it_gone() -> None:
    assert may_act(100, TERMS, 109.9)
    assert not may_act(100, TERMS, 110)
    assert not may_act(None, TERMS, 0)
    assert TERMS.renew_s < TERMS.lease_s


class Replica:
    """One replica's part, over a clock that the test moves."""

    def __init__(self, kube: FakeKube, name: str, owner: dict[str, Any] | None = None) -> None:
        self.now = 100.0
        self.changes: list[str] = []
        client: Any = kube
        self.part = Leadership(
            client,
            LeaseTerms(name="lead", namespace="ns", identity=name),
            on_gain=lambda: self.changes.append("gained"),
            on_loss=lambda why: self.changes.append("lost"),
            owner=owner,
            clock=lambda: self.now,
        )

    def turn(self) -> None:
        asyncio.run(self.part.turn())


def test_the_first_leads_and_the_second_waits() -> None:
    kube = FakeKube()
    one, two = Replica(kube, "one"), Replica(kube, "two")
    one.turn()
    two.turn()
    assert (one.part.leads, two.part.leads) == (True, False)
    assert one.changes == ["gained"]
    assert two.changes == []


def test_a_renewed_lease_stays_where_it_is() -> None:
    kube = FakeKube()
    one, two = Replica(kube, "one"), Replica(kube, "two")
    for _ in range(20):
        one.turn()
        two.turn()
        one.now += 2
        two.now += 2
    assert (one.part.leads, two.part.leads) == (True, False)
    assert kube.objects[("Lease", "ns", "lead")]["spec"]["leaseTransitions"] == 1


def test_another_takes_over_from_one_that_was_killed() -> None:
    kube = FakeKube()
    one, two = Replica(kube, "one"), Replica(kube, "two")
    one.turn()
    two.turn()
    two.now += 14.9
    two.turn()
    assert not two.part.leads
    two.now += 0.2
    two.turn()
    assert two.part.leads
    assert kube.objects[("Lease", "ns", "lead")]["spec"]["holderIdentity"] == "two"


def test_one_that_slept_too_long_finds_that_it_leads_no_more() -> None:
    kube = FakeKube()
    one, two = Replica(kube, "one"), Replica(kube, "two")
    one.turn()
    two.turn()
    two.now += 20
    two.turn()
    one.now += 20
    assert not one.part.leads, "even before it has looked"
    one.turn()
    assert one.changes == ["gained", "lost"]


def test_a_leader_that_reaches_nobody_may_act_no_more_once_its_time_is_over() -> None:
    kube = FakeKube()
    one = Replica(kube, "one")
    one.turn()
    kube.failures[("update", "Lease")] = [Trouble("down")]
    with pytest.raises(Trouble):
        one.turn()
    one.now += 9.9
    assert one.part.leads
    one.now += 0.1
    assert not one.part.leads


def test_a_released_lease_is_taken_at_once() -> None:
    kube = FakeKube()
    one, two = Replica(kube, "one"), Replica(kube, "two")
    one.turn()
    two.turn()
    asyncio.run(one.part.release())
    assert one.changes == ["gained", "lost"]
    two.turn()
    assert two.part.leads


def test_a_lease_that_another_has_taken_is_not_released() -> None:
    kube = FakeKube()
    one, two = Replica(kube, "one"), Replica(kube, "two")
    one.turn()
    two.turn()
    two.now += 20
    two.turn()
    asyncio.run(one.part.release())
    assert kube.objects[("Lease", "ns", "lead")]["spec"]["holderIdentity"] == "two"


def token(claims: dict[str, Any]) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{payload}.c2lnbmF0dXJl"


CLAIMS = {"kubernetes.io": {"namespace": "ns", "serviceaccount": {"name": "operator", "uid": "account-uid"}}}
ACCOUNT = {"apiVersion": "v1", "kind": "ServiceAccount", "name": "operator", "uid": "account-uid"}


@pytest.mark.parametrize(
    "earlier", [None, {"ownerReferences": [{**ACCOUNT, "uid": "of-an-earlier-install"}]}]
)
def test_the_lease_goes_with_the_account_of_who_holds_it_so_that_no_reinstall_waits_for_it(
    earlier: dict[str, Any] | None,
) -> None:
    kube = FakeKube()
    if earlier is not None:
        metadata = {"name": "lead", "namespace": "ns", **earlier}
        kube.store(
            {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}
        )
    replica = Replica(kube, "one", owner=ACCOUNT)
    replica.turn()
    replica.now += 5
    replica.turn()
    assert kube.objects["Lease", "ns", "lead"]["metadata"]["ownerReferences"] == [ACCOUNT]
    asyncio.run(replica.part.release())
    assert kube.objects["Lease", "ns", "lead"]["spec"]["holderIdentity"] == ""


def test_where_no_owner_may_be_named_it_leads_without_one() -> None:
    kube = FakeKube()
    kube.failures["update", "Lease"] = [Refused("cannot set an ownerRef", code=403)]
    replica = Replica(kube, "one", owner=ACCOUNT)
    replica.turn()
    assert replica.changes == ["gained"]
    assert "ownerReferences" not in kube.objects["Lease", "ns", "lead"]["metadata"]


def test_a_pod_s_token_says_whose_account_it_is(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token(CLAIMS))
    assert own_account("ns", file) == ACCOUNT
    assert own_account("elsewhere", file) is None, "the cluster would take such an owner for gone"


@pytest.mark.parametrize("text", ["", "x", "a.b.c", token({}), token({"kubernetes.io": 1}), "é.é.é", None])
def test_where_no_token_tells_the_lease_has_no_owner(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    assert own_account("ns", file) is None
