"""Ranks that share a copy of the model see late answers in one order, and decide together what failed together."""

from __future__ import annotations

import pytest
import torch

from stage_runtime.core.errors import InternalError
from stage_runtime.parallel.answer_wire import Leaves, containers, flatten, refilled
from support.ranks import Ranks

pytestmark = pytest.mark.timeout(300)


@pytest.mark.invariant("PARALLEL-INV-003")
def test_what_the_leader_is_answered_late_all_ranks_go_on_with_in_one_order(ranks: Ranks) -> None:
    leader, other = ranks.results("told_world:late")
    assert leader["told"] == other["told"]
    assert sorted(leader["told"]) == ["a", "b", "bad"]
    assert "this prompt is poison" in leader["told"]["bad"]
    assert not any(leader["held"].values())
    assert not any(other["held"].values())
    assert leader["collectives"] == other["collectives"]
    assert leader["calls"]
    assert not other["calls"]


@pytest.mark.invariant("PARALLEL-INV-003")
def test_a_joint_call_that_fails_on_one_rank_runs_one_by_one_on_all(ranks: Ranks) -> None:
    well, broken = ranks.results("told_world:joint")
    assert well["told"] == broken["told"]
    assert well["collectives"] == broken["collectives"]
    # three joint calls, and each of their members alone
    assert well["calls"] == broken["calls"] == {"transformer.forward": 3 + 9}


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6.0).view(2, 3),
        (torch.ones(2), None, 3),
        {"sample": [torch.zeros(1, 2, dtype=torch.bfloat16), {"flag": True}], "name": "x"},
        [],
    ],
    ids=["a tensor", "a tuple", "nested", "nothing"],
)
def test_an_answer_of_plain_containers_is_told_whole(value: object) -> None:
    leaves, tensors = flatten(value)
    sizes = [-(-t.numel() * t.element_size() // 64) * 64 for t in tensors]
    payload = torch.zeros(sum(sizes), dtype=torch.uint8)
    at = 0
    for tensor, size in zip(tensors, sizes, strict=True):
        flat = tensor.reshape(-1).view(torch.uint8)
        payload[at : at + len(flat)] = flat
        at += size
    got = refilled(containers(value), Leaves(leaves, payload, 0))
    assert repr(got) == repr(value)


def test_an_answer_that_could_not_be_made_again_is_refused() -> None:
    with pytest.raises(InternalError, match="holds a Size"):
        containers({"shape": torch.Size([2])})
