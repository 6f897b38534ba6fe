"""What follows when a replica ends by itself: counted exactly, waited for as the policy says, never past its budget."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_api.failure import (
    MAX_BAD_NODES,
    MAX_MESSAGE_CHARS,
    BackoffSpec,
    Decision,
    Evidence,
    FailurePolicySpec,
    History,
    Hold,
    HoldReason,
    Reason,
    Restart,
    decide,
    lift,
    wait_s,
)
from stage_api.outcome import ExitCode, TerminationReport

POLICY = FailurePolicySpec()
DISRUPTIONS = [reason for reason in Reason if reason.is_disruption]

policies = st.builds(
    lambda restarts, window, first, more, jitter, reset: FailurePolicySpec(
        max_restarts=restarts,
        window_seconds=window,
        backoff=BackoffSpec(initial_seconds=first, max_seconds=first + more, jitter_percent=jitter),
        reset_after_seconds=reset,
    ),
    st.integers(0, 8),
    st.integers(1, 5000),
    st.integers(1, 60),
    st.integers(0, 600),
    st.integers(0, 100),
    st.integers(1, 2000),
)
ends = st.lists(
    st.tuples(
        st.floats(0, 4000),  # seconds since the replica began
        st.none() | st.floats(0, 4000),  # seconds it had been ready
        st.sampled_from([70, 71, 72, 73, 74, 0, 1, 137, None]),
        st.none() | st.sampled_from(list(Reason)),
        st.floats(-1, 1),
    ),
    max_size=30,
)


def ended(epoch: int = 0, code: int | None = 70, reason: Reason | None = None, **more: Any) -> Evidence:
    return Evidence(epoch=epoch, exit_code=code, reason=reason, **more)


def judged(
    history: History, evidence: Evidence, now_s: float = 0.0, ready_for_s: float | None = None
) -> Decision:
    return decide(POLICY, history, evidence, now_s=now_s, ready_for_s=ready_for_s, jitter=0.0)


def lives(policy: FailurePolicySpec, given_ends: list[tuple[Any, ...]]) -> list[tuple[float, Decision]]:
    """The decisions about lives that each begin when the one before allows it, and the time of each."""
    history, now_s, decisions = History(), 0.0, []
    for epoch, (lived_s, ready_for_s, code, reason, jitter) in enumerate(given_ends):
        now_s += lived_s
        evidence = ended(epoch, code, reason)
        decision = decide(policy, history, evidence, now_s=now_s, ready_for_s=ready_for_s, jitter=jitter)
        decisions.append((now_s, decision))
        if not isinstance(decision.action, Restart):
            break
        history, now_s = decision.history, max(now_s, decision.action.at_s)
    return decisions


def test_a_replica_that_never_was_ready_waits_longer_each_time() -> None:
    policy = FailurePolicySpec(max_restarts=100)
    history, waits = History(), []
    for epoch in range(8):
        decision = decide(policy, history, ended(epoch), now_s=0.0, ready_for_s=None, jitter=0.0)
        history = decision.history
        assert isinstance(decision.action, Restart)
        waits.append(decision.action.at_s)
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]


def test_the_first_failure_after_a_long_time_of_being_ready_has_no_wait_and_the_next_the_first() -> None:
    tired = History(epoch=4, consecutive=5)
    first = judged(tired, ended(5), now_s=7.0, ready_for_s=600.0)
    assert first.action == Restart(7.0)
    assert judged(first.history, ended(6), now_s=7.0).action == Restart(17.0)


def test_a_short_time_of_being_ready_forgives_nothing() -> None:
    assert judged(History(epoch=0, consecutive=2), ended(1), ready_for_s=599.0).action == Restart(40.0)


@pytest.mark.parametrize(("jitter", "at_s"), [(-1.0, 8.0), (0.0, 10.0), (1.0, 12.0)])
def test_chance_moves_a_wait_within_its_bounds(jitter: float, at_s: float) -> None:
    decision = decide(POLICY, History(), ended(), now_s=0.0, ready_for_s=None, jitter=jitter)
    assert decision.action == Restart(at_s)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(ExitCode.CONFIG, HoldReason.CONFIG_INVALID), (ExitCode.MODEL, HoldReason.MODEL_INVALID)],
)
def test_a_wrong_spec_or_model_is_held_at_once(code: ExitCode, reason: HoldReason) -> None:
    decision = judged(History(), ended(code=int(code), message="no weights"), ready_for_s=9999.0)
    assert decision.action == Hold(reason)
    assert decision.history.restarts == 0
    assert decision.history.last is not None
    assert decision.history.last.message == "no weights"


@pytest.mark.parametrize("code", [0, 1, 70, 71, 72, 73, 74, 137, 143, 255, None])
def test_any_other_end_that_nobody_asked_for_is_a_failure(code: int | None) -> None:
    decision = judged(History(), ended(code=code))
    assert decision.action == Restart(10.0)
    assert decision.history.recent == (10.0,)


@pytest.mark.parametrize("reason", [Reason.OOM_KILLED, Reason.START_TIMEOUT])
def test_what_a_replica_did_to_itself_is_a_failure(reason: Reason) -> None:
    assert judged(History(), ended(code=137, reason=reason)).history.recent == (10.0,)


@pytest.mark.parametrize("reason", DISRUPTIONS)
@pytest.mark.parametrize("code", [0, 70, 137, None])
def test_what_befell_the_node_or_was_done_on_purpose_is_not_counted(reason: Reason, code: int | None) -> None:
    history = History()
    for epoch in range(20):
        decision = judged(history, ended(epoch, code, reason))
        assert isinstance(decision.action, Restart)
        history = decision.history
    assert (history.recent, history.disruptions, history.restarts) == ((), 20, 20)


@pytest.mark.parametrize("reason", DISRUPTIONS)
@pytest.mark.parametrize("failures", range(4))
def test_disruptions_wait_the_first_wait_however_many_there_were(reason: Reason, failures: int) -> None:
    history = History(epoch=0, consecutive=failures)
    for epoch in range(1, 12):
        decision = judged(history, ended(epoch, None, reason))
        assert decision.action == Restart(10.0)
        history = decision.history
    assert judged(history, ended(99)).action == Restart(10.0 * 2**failures), "and make no later failure wait"


@pytest.mark.parametrize("reason", DISRUPTIONS)
def test_a_replica_that_was_well_is_back_at_once_after_a_disruption_and_its_failures_are_forgiven(
    reason: Reason,
) -> None:
    decision = judged(History(epoch=0, consecutive=5), ended(1, None, reason), ready_for_s=600.0)
    assert decision.action == Restart(0.0)
    assert judged(decision.history, ended(2)).action == Restart(10.0)


@pytest.mark.parametrize("later", [70, 72, 137, None])
def test_a_bad_device_avoids_its_node_in_every_later_life(later: int | None) -> None:
    history = judged(History(), ended(code=72, node="node-3")).history
    for epoch in range(1, 4):
        decision = judged(history, ended(epoch, code=later, node="node-4"))
        assert isinstance(decision.action, Restart)
        assert "node-3" in decision.action.bad_nodes
        history = decision.history
    assert "node-3" in lift(history).bad_nodes, "a new spec mends no device"


def test_the_nodes_that_failed_last_are_avoided_each_once() -> None:
    history = History()
    for epoch in range(3 * MAX_BAD_NODES):
        history = judged(
            history.model_copy(update={"recent": ()}), ended(epoch, code=72, node=f"n{epoch}")
        ).history
    again = history.bad_nodes[0]
    history = judged(history.model_copy(update={"recent": ()}), ended(99, code=72, node=again)).history
    assert len(history.bad_nodes) == MAX_BAD_NODES
    assert len(set(history.bad_nodes)) == MAX_BAD_NODES
    assert history.bad_nodes[-1] == again


def test_the_one_node_that_an_older_version_remembered_is_avoided() -> None:
    old = History.model_validate({"epoch": 3, "avoidNode": "node-3"})
    assert old.bad_nodes == ("node-3",)
    assert judged(old, ended(4, code=72, node="node-5")).history.bad_nodes == ("node-3", "node-5")
    assert judged(old, ended(4, code=72, node="node-3")).history.bad_nodes == ("node-3",)


def test_past_the_budget_it_is_held_with_the_evidence() -> None:
    history = History()
    for epoch in range(6):
        history = judged(history, ended(epoch), now_s=epoch).history
    decision = judged(history, ended(6, code=71, rank=3, message="no progress"), now_s=7.0)
    assert decision.action == Hold(HoldReason.BUDGET_EXCEEDED)
    assert decision.history.last == ended(6, code=71, rank=3, message="no progress")
    assert decision.history.restarts == 6


def test_restarts_that_left_the_window_count_no_more() -> None:
    history = History(epoch=5, recent=(10.0, 20.0, 30.0, 40.0, 50.0, 60.0))
    assert isinstance(judged(history, ended(6), now_s=3609.0).action, Hold)
    later = judged(history, ended(6), now_s=3610.0)
    assert later.action == Restart(3620.0)
    assert later.history.recent == (20.0, 30.0, 40.0, 50.0, 60.0, 3620.0)


def test_no_restarts_at_all_may_be_asked_for() -> None:
    policy = FailurePolicySpec(max_restarts=0)
    decision = decide(policy, History(), ended(), now_s=0.0, ready_for_s=9999.0, jitter=0.0)
    assert decision.action == Hold(HoldReason.BUDGET_EXCEEDED)


def test_the_same_life_is_judged_once() -> None:
    first = judged(History(), ended(3, code=72, node="a"), now_s=5.0)
    for evidence in (ended(3, code=72, node="a"), ended(3, code=64), ended(1)):
        again = judged(first.history, evidence, now_s=99.0, ready_for_s=9999.0)
        assert again == first


def test_what_is_held_stays_held_whatever_comes() -> None:
    held = judged(History(), ended(code=64)).history
    assert judged(held, ended(9), ready_for_s=9999.0) == Decision(held, Hold(HoldReason.CONFIG_INVALID))


def test_a_lift_lets_the_next_life_begin_at_once_and_keeps_the_totals() -> None:
    held = judged(History(epoch=1, restarts=4, disruptions=2), ended(2, code=65)).history
    lifted = lift(held)
    assert judged(lifted, ended(2, code=65), now_s=50.0).action == Restart(50.0)
    assert (lifted.restarts, lifted.disruptions, lifted.last) == (4, 2, held.last)
    assert judged(lifted, ended(3), now_s=50.0).action == Restart(60.0)


def test_a_history_can_be_kept_as_json_and_read_by_another_program() -> None:
    history = judged(History(), ended(code=72, node="a", rank=1, message="bad")).history
    assert History.model_validate(history.to_json() | {"later": 1}) == history


def test_evidence_is_made_of_an_exit_and_its_last_words() -> None:
    report = TerminationReport(exit_code=ExitCode.HANG, reason="EngineHung", message="x" * 999, rank=2)
    evidence = Evidence.of_exit(4, 71, report, node="a")
    assert (evidence.epoch, evidence.exit_code, evidence.rank, evidence.node) == (4, 71, 2, "a")
    assert len(evidence.message) == MAX_MESSAGE_CHARS
    assert Evidence.of_exit(0, 137) == Evidence(epoch=0, exit_code=137)


@given(policies, ends)
def test_within_any_window_there_are_never_more_restarts_than_the_budget(
    policy: FailurePolicySpec, given_ends: list[tuple[Any, ...]]
) -> None:
    counted_s = [
        decision.action.at_s
        for (_, decision), (*_, reason, _) in zip(lives(policy, given_ends), given_ends, strict=False)
        if isinstance(decision.action, Restart) and not (reason is not None and reason.is_disruption)
    ]
    for first, at_s in enumerate(counted_s):
        inside = [other for other in counted_s[first:] if other < at_s + policy.window_seconds]
        assert len(inside) <= policy.max_restarts


@given(policies, ends)
def test_every_count_is_exact(policy: FailurePolicySpec, given_ends: list[tuple[Any, ...]]) -> None:
    restarts = disruptions = 0
    for (_, decision), (*_, reason, _) in zip(lives(policy, given_ends), given_ends, strict=False):
        if isinstance(decision.action, Restart):
            restarts += 1
            disruptions += reason is not None and reason.is_disruption
        assert (decision.history.restarts, decision.history.disruptions) == (restarts, disruptions)
        assert len(decision.history.recent) <= policy.max_restarts


@given(policies, ends)
def test_every_wait_is_within_its_bounds(
    policy: FailurePolicySpec, given_ends: list[tuple[Any, ...]]
) -> None:
    spread = policy.backoff.jitter_percent / 100
    for (now_s, decision), (_, ready_for_s, *_) in zip(lives(policy, given_ends), given_ends, strict=False):
        if not isinstance(decision.action, Restart):
            continue
        waited_s = decision.action.at_s - now_s
        if ready_for_s is not None and ready_for_s >= policy.reset_after_seconds:
            assert waited_s == 0
        else:
            assert waited_s >= policy.backoff.initial_seconds * (1 - spread) - 1e-6
        assert waited_s <= policy.backoff.max_seconds * (1 + spread) + 1e-6


@given(policies, st.floats(-1, 1))
def test_waits_grow_until_they_are_the_longest(policy: FailurePolicySpec, jitter: float) -> None:
    waits = [wait_s(policy.backoff, consecutive, jitter) for consecutive in range(2000)]
    assert all(one <= other for one, other in itertools.pairwise(waits))
    assert waits[0] == 0
    assert waits[-1] == policy.backoff.max_seconds * (1 + jitter * policy.backoff.jitter_percent / 100)


@given(policies, ends)
def test_evidence_that_comes_again_changes_nothing(
    policy: FailurePolicySpec, given_ends: list[tuple[Any, ...]]
) -> None:
    for epoch, (now_s, decision) in enumerate(lives(policy, given_ends)):
        again = decide(policy, decision.history, ended(epoch), now_s=now_s + 9, ready_for_s=None, jitter=0.5)
        assert again == decision
