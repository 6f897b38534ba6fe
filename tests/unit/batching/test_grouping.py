"""Members of a group fail one by one, with their own fault, whatever it is that was raised, and wherever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import pytest

from stage_runtime.batching.grouping import ALONE, run_grouped
from stage_runtime.core.errors import RequestFailed

BAD = 3

ENDS: tuple[Callable[[], BaseException], ...] = (
    lambda: ValueError("no"),
    lambda: SystemExit(3),
    asyncio.CancelledError,
    GeneratorExit,
    lambda: BaseExceptionGroup("both", [SystemExit(1), ValueError("no")]),
    lambda: StopIteration(5),
)


@dataclass
class Numbers:
    """Doubles numbers; what `where` names raises `end` over a 3."""

    where: str
    end: Callable[[], BaseException]
    told: list[tuple[list[int], Exception]] = field(default_factory=list)

    def key(self, item: int) -> Hashable:
        self._check("key", [item])
        return ALONE if item > 5 else "small"

    def together(self, items: Sequence[int]) -> Sequence[int]:
        self._check("run", items)
        return [2 * item for item in items]

    def alone(self, item: int) -> int:
        return self.together([item])[0]

    def failed(self, items: Sequence[int], error: Exception) -> None:
        self.told.append((list(items), error))

    def agreed(self, items: Sequence[int], failed: bool) -> bool:
        return failed

    def _check(self, where: str, items: Sequence[int]) -> None:
        if where == self.where and BAD in items:
            raise self.end()


@pytest.mark.parametrize("items", [[3], [1, 3], [3, 7], [1, 2, 3, 4, 6, 7]])
@pytest.mark.parametrize("where", ["key", "run"])
@pytest.mark.parametrize("end", ENDS)
def test_what_one_raises_is_its_own_end_and_nobody_elses(
    end: Callable[[], BaseException], where: str, items: list[int]
) -> None:
    numbers = Numbers(where, end)
    answers = dict(zip(items, run_grouped(items, numbers), strict=True))
    if (where, items) != ("key", [3]):  # one alone needs no key
        failure = answers.pop(3)
        assert type(failure) in (type(end()), RequestFailed)
        assert type(end()).__name__ in repr(failure)
        assert numbers.told[-1] == ([3], failure)
    assert answers == {item: 2 * item for item in answers}


def test_a_key_that_is_none_is_its_items_end() -> None:
    class Listed(Numbers):
        def key(self, item: int) -> Hashable:
            return [item] if item == BAD else "small"  # type: ignore[return-value]

    first, failure, last = run_grouped([1, 3, 2], Listed("", SystemExit))
    assert (first, last) == (2, 4)
    assert isinstance(failure, TypeError)


@pytest.mark.parametrize("where", ["key", "run"])
def test_somebody_at_the_terminal_ends_all(where: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_grouped([1, 3], Numbers(where, KeyboardInterrupt))
