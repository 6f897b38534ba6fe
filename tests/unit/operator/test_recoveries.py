"""What a change of status says of ends and recoveries."""

from __future__ import annotations

from typing import Any

import pytest

from stage_operator.telemetry.recoveries import Recoveries, ends_between


def status(*histories: dict[str, Any] | None, ready: str = "False") -> dict[str, Any]:
    replicas = [
        {"index": index, **({} if history is None else {"history": history})}
        for index, history in enumerate(histories)
    ]
    return {"replicaStatuses": replicas, "conditions": [{"type": "Ready", "status": ready}]}


def stage(**fields: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": "s"}, "status": status(**fields)}


def test_each_end_is_counted_by_its_reason_or_exit_code() -> None:
    before = status(None, {"restarts": 1, "last": {"exitCode": 70}}, {"restarts": 2})
    after = status(
        {"restarts": 1, "last": {"exitCode": 71}},
        {"restarts": 2, "last": {"exitCode": 70, "reason": "OOMKilled"}},
        {"restarts": 2},
    )
    assert ends_between(before, after) == {"Hang": 1, "OOMKilled": 1}


def test_an_end_that_holds_a_replica_is_an_end() -> None:
    held = {"restarts": 0, "held": "ConfigInvalid", "last": {"exitCode": 64}}
    assert ends_between(status(None), status(held)) == {"Config": 1}
    assert not ends_between(status(held), status(held))


@pytest.mark.parametrize("odd", [{}, {"replicaStatuses": "none"}, {"replicaStatuses": [7, {"history": []}]}])
def test_a_status_that_cannot_be_read_tells_of_no_end(odd: dict[str, Any]) -> None:
    assert not ends_between(odd, odd)
    assert not ends_between(status(None), odd)


def test_a_stage_has_recovered_when_all_of_it_serves_again() -> None:
    recoveries = Recoveries()
    assert recoveries.see(stage(), False, 0) is None
    assert recoveries.see(stage(), True, 10) is None
    assert recoveries.see(stage(), True, 15) is None
    assert recoveries.see(stage(ready="True"), False, 30) == 20
    assert recoveries.see(stage(ready="True"), False, 40) is None
