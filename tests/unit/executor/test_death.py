"""Why a group died: one typed error from the exits and last words of its ranks."""

from __future__ import annotations

import signal

import pytest

from stage_api.errors import Fault, SpecError
from stage_api.outcome import ExitCode
from stage_runtime.core.error_codec import Raised, encoded
from stage_runtime.core.errors import (
    DeviceLost,
    EngineDeadError,
    EngineHung,
    ModelError,
    OutOfDeviceMemory,
    RendezvousTimeout,
)
from stage_runtime.executor.death import Deaths, hang_of
from stage_runtime.ipc.messages import Dying, Ended, Frozen
from support.mp_stage import a_config

BY_CODE = {
    ExitCode.CONFIG: "SpecError",
    ExitCode.MODEL: "ModelError",
    ExitCode.RANK_DIED: "InternalError",
    ExitCode.HANG: "EngineHung",
    ExitCode.ACCELERATOR_FAULT: "DeviceLost",
    ExitCode.RENDEZVOUS_TIMEOUT: "RendezvousTimeout",
    ExitCode.OUT_OF_MEMORY: "OutOfDeviceMemory",
}


def dying(rank: int, code: int, message: str = "why") -> Dying:
    """Last words."""
    return Dying(rank=rank, error=Raised(kind=BY_CODE[code], message=message))


def test_while_all_live_there_is_no_cause() -> None:
    assert Deaths().cause() is None


def test_a_killed_rank_is_named_with_its_signal() -> None:
    deaths = Deaths()
    deaths.exited(1, -signal.SIGKILL)
    cause = deaths.cause()
    assert type(cause) is EngineDeadError
    assert str(cause) == "rank 1 was killed by SIGKILL"
    assert cause.rank == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ExitCode.RANK_DIED, EngineDeadError),
        (ExitCode.HANG, EngineHung),
        (ExitCode.ACCELERATOR_FAULT, DeviceLost),
        (ExitCode.RENDEZVOUS_TIMEOUT, RendezvousTimeout),
        (ExitCode.OUT_OF_MEMORY, OutOfDeviceMemory),
    ],
)
def test_an_exit_code_keeps_its_type_with_and_without_last_words(
    code: ExitCode, kind: type[EngineDeadError]
) -> None:
    silent, heard = Deaths(), Deaths()
    silent.exited(0, code)
    heard.said(dying(0, code))
    for deaths in (silent, heard):
        cause = deaths.cause()
        assert type(cause) is kind
        assert cause.exit_code is code


def test_a_model_that_a_rank_cannot_load_is_the_model_s_fault() -> None:
    deaths = Deaths()
    deaths.said(dying(0, ExitCode.MODEL, "no such folder"))
    with pytest.raises(ModelError, match="no such folder"):
        deaths.cause()


def test_a_config_that_a_rank_refuses_keeps_its_faults() -> None:
    deaths = Deaths()
    deaths.said(Dying(rank=0, error=encoded(SpecError([Fault("spec.engine.a", "1", "2")]))))
    with pytest.raises(SpecError) as refused:
        deaths.cause()
    assert str(refused.value.faults[0]) == "spec.engine.a: expected 1, got 2"


def test_the_rank_that_was_killed_is_the_cause_and_not_those_that_missed_it() -> None:
    deaths = Deaths()
    deaths.said(dying(0, ExitCode.RANK_DIED, "connection closed by peer"))
    assert deaths.may_be_another
    deaths.exited(1, -signal.SIGKILL)
    assert not deaths.may_be_another
    cause = deaths.cause()
    assert cause is not None
    assert cause.rank == 1


@pytest.mark.parametrize("kind", [EngineDeadError, EngineHung])
def test_a_rank_that_knows_nobody_to_blame_is_not_blamed_itself(kind: type[EngineDeadError]) -> None:
    deaths = Deaths()
    deaths.said(Dying(rank=0, error=encoded(kind("the ranks went apart"))))
    cause = deaths.cause()
    assert type(cause) is kind
    assert str(cause) == "rank 0: the ranks went apart"
    assert cause.rank is None


def test_a_rank_blames_itself_for_what_it_could_not_do_and_another_where_it_says_so() -> None:
    for words, rank in (
        (dying(0, ExitCode.RANK_DIED), 0),
        (Dying(rank=0, error=encoded(DeviceLost("sticky"))), 0),
        (Dying(rank=0, error=encoded(EngineDeadError("rank 1 is gone", rank=1))), 1),
    ):
        deaths = Deaths()
        deaths.said(words)
        cause = deaths.cause()
        assert cause is not None
        assert cause.rank == rank


def test_a_poisoned_device_is_the_cause_and_not_the_collective_that_broke() -> None:
    deaths = Deaths()
    deaths.said(dying(0, ExitCode.RANK_DIED))
    deaths.said(dying(1, ExitCode.ACCELERATOR_FAULT))
    assert type(deaths.cause()) is DeviceLost


def test_last_words_say_more_than_the_exit_that_follows_them() -> None:
    deaths = Deaths()
    deaths.said(dying(0, ExitCode.ACCELERATOR_FAULT, "sticky"))
    deaths.exited(0, -signal.SIGKILL)
    assert "sticky" in str(deaths.cause())


def test_a_rank_that_vanished_is_the_cause_before_those_that_ended_of_it() -> None:
    deaths = Deaths()
    deaths.said(dying(0, ExitCode.RANK_DIED, "connection closed by peer"))
    deaths.lost(1)
    cause = deaths.cause()
    assert type(cause) is EngineDeadError
    assert str(cause) == "rank 1, in another pod, is gone: its connection ended"
    assert cause.rank == 1


def test_a_rank_that_is_lost_while_it_is_stopped_hangs() -> None:
    deaths = Deaths()
    deaths.said(Frozen(rank=1, who=2, is_frozen=True))
    assert deaths.cause() is None, "it may run again"
    deaths.lost(2)
    cause = deaths.cause()
    assert type(cause) is EngineHung
    assert cause.rank == 2
    assert "is stopped" in str(cause)


def test_a_rank_that_runs_again_is_lost_like_any_other() -> None:
    deaths = Deaths()
    for is_frozen in (True, False):
        deaths.said(Frozen(rank=1, who=2, is_frozen=is_frozen))
    deaths.lost(2)
    assert type(deaths.cause()) is EngineDeadError


def test_of_a_rank_that_is_lost_more_may_be_heard() -> None:
    deaths = Deaths()
    deaths.lost(1)
    assert deaths.may_be_another


def test_a_hang_is_the_doing_of_a_rank_of_the_copy_that_is_stopped() -> None:
    four = a_config(cfg=2, data=2).topology()
    first, second = (
        [rank for rank, place in enumerate(four.coordinates) if place.data == copy] for copy in (0, 1)
    )
    assert hang_of(four, 1, 11.0, {first[0], second[1]}).rank == second[1]
    hang = hang_of(four, 1, 11.0, {first[0]})
    assert hang.rank == second[0]
    assert str(hang) == f"rank {second[0]} has said nothing for 11.0 s"


@pytest.mark.parametrize("order", ["told first", "lost first"])
def test_how_an_agent_saw_it_end_says_more_than_that_it_is_lost(order: str) -> None:
    deaths = Deaths()
    said = [
        lambda: deaths.said(Ended(rank=1, who=2, code=-signal.SIGKILL)),
        lambda: deaths.lost(2),
    ]
    for say in said if order == "told first" else reversed(said):
        say()
    assert str(deaths.cause()) == "rank 2 was killed by SIGKILL"


def test_last_words_that_come_after_the_loss_count() -> None:
    deaths = Deaths()
    deaths.lost(1)
    deaths.said(dying(1, ExitCode.ACCELERATOR_FAULT))
    deaths.said(Ended(rank=1, who=1, code=ExitCode.ACCELERATOR_FAULT))
    assert type(deaths.cause()) is DeviceLost
    assert str(deaths.cause()) == "rank 1: why"


def test_exit_codes_of_a_wrong_config_or_model_keep_their_type_without_words() -> None:
    config, model = Deaths(), Deaths()
    config.exited(1, ExitCode.CONFIG)
    model.exited(1, ExitCode.MODEL)
    with pytest.raises(SpecError, match="rank 1 exited with code 64"):
        config.cause()
    with pytest.raises(ModelError, match="rank 1 exited with code 65"):
        model.cause()


def test_a_rank_that_blames_another_is_not_the_one_at_fault() -> None:
    deaths = Deaths()
    words = "request a failed on rank 1 alone: nan"
    deaths.said(Dying(rank=0, error=encoded(EngineDeadError(words, rank=1))))
    cause = deaths.cause()
    assert cause is not None
    assert (cause.rank, str(cause)) == (1, f"rank 0: {words}")


def test_only_of_a_rank_that_ended_by_itself_are_last_words_missed() -> None:
    deaths = Deaths()
    deaths.exited(0, -signal.SIGKILL)
    assert not deaths.wordless
    deaths.exited(1, ExitCode.RANK_DIED)
    assert deaths.wordless
    deaths.said(dying(1, ExitCode.RANK_DIED))
    assert not deaths.wordless


@pytest.mark.parametrize("code", [ExitCode.CONFIG, ExitCode.MODEL])
def test_whatever_code_a_rank_ends_with_while_it_serves_the_group_died_of_it(code: int) -> None:
    deaths = Deaths()
    deaths.served = True
    deaths.exited(1, code)
    cause = deaths.cause()
    assert type(cause) is EngineDeadError
    assert cause.rank == 1
    assert "while it served" in str(cause)
