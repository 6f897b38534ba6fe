"""What the ranks' answers to one control call come to. One rank's failure is a failure, and names the rank."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stage_runtime.core.control import Control, Health, Outstanding, Pause, RankHealth, Resume, StopEarly
from stage_runtime.core.errors import EngineHung, InternalError, RequestFailed
from stage_runtime.core.outcome import Failed, as_error
from stage_runtime.ipc.messages import Answered


def combined(call: Control, answers: Mapping[int, Answered]) -> object:
    """One value for calls about the whole engine, else a tuple with a value a rank, in rank order.

    Raises: the ranks' own error when all failed alike; RequestFailed that names the ranks when some did.
    """
    failures = {rank: answer.error for rank, answer in sorted(answers.items()) if answer.error is not None}
    if failures:
        raise _failure(failures, len(answers))
    values = [answer.value for _, answer in sorted(answers.items())]
    if isinstance(call, StopEarly | Pause | Resume):
        return None
    if isinstance(call, Outstanding):
        return _summed(values)
    if isinstance(call, Health):
        return tuple(msgspec.convert(value, RankHealth) for value in values)
    return tuple(values)


def unanswered(call: Control, answers: Mapping[int, Answered], ranks: int) -> EngineHung:
    """What a group of `ranks` has died of when its time for `call` is over."""
    silent = sorted(set(range(ranks)) - set(answers))
    what = type(call).__name__
    if len(silent) == 1:
        return EngineHung(f"rank {silent[0]} has not answered {what}", rank=silent[0])
    # Those that share work wait for each other: which of them is at fault can't be told.
    return EngineHung(f"ranks {', '.join(map(str, silent))} have not answered {what}")


def _failure(failures: Mapping[int, Failed], ranks: int) -> Exception:
    first = next(iter(failures.values()))
    if len(failures) == ranks and all(one.code == first.code for one in failures.values()):
        return as_error(first)
    told = "; ".join(f"rank {rank}: {one.message}" for rank, one in failures.items())
    well = ranks - len(failures)
    return RequestFailed(f"{told} ({well} of {ranks} ranks did it)")


def _summed(values: list[object]) -> dict[str, int]:
    total: dict[str, int] = {}
    for value in values:
        if not isinstance(value, dict):
            raise InternalError(f"a rank counts with {value!r}; expected a dict")
        for kind, count in value.items():
            total[kind] = total.get(kind, 0) + count
    return total
