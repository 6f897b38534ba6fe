"""Puts a group of ranks to rest and wakes it as one. Pure, but for the asking.

Ranks that share a copy of the model must stop and go on at the same place. Moving weights can fail on one rank alone,
so they are moved only while all are paused, and nobody goes on before everybody can: ranks that `Wake` stay paused.
"""

from __future__ import annotations

from collections.abc import Callable

from stage_runtime.core.control import Control, Pause, Resume, Sleep, Wake
from stage_runtime.core.errors import EngineDeadError, RequestError


class GroupSleep:
    """Whether the group is paused and asleep. `ask` has every rank carry out a call, and raises when one fails."""

    def __init__(self, ask: Callable[[Control], object]) -> None:
        self._ask = ask
        self._paused = False
        self._asleep = False

    def carry_out(self, call: Control) -> object:
        """The answer to any control call.

        Raises: RequestError, and all is as it was before; EngineDeadError when it can't be.
        """
        match call:
            case Sleep():
                return self._sleep(call)
            case Wake():
                came = self._ask(call)
                self._asleep = False
                self.carry_out(Resume())
                return came
        answer = self._ask(call)
        if isinstance(call, Pause | Resume):
            self._paused = isinstance(call, Pause)
        return answer

    def _sleep(self, call: Sleep) -> object:
        was_paused = self._paused
        self.carry_out(Pause())
        try:
            freed = self._ask(call)
        except RequestError as failure:
            if not self._asleep:  # else all sleep on, some of them deeper
                self._put_back(failure)
            if not was_paused:
                self.carry_out(Resume())
            raise
        self._asleep = True
        return freed

    def _put_back(self, failure: RequestError) -> None:
        """Have the weights back on those ranks that put them away."""
        try:
            self._ask(Wake())
        except RequestError as error:
            raise EngineDeadError(
                f"{failure}; what the others put away can't be had back: {error}"
            ) from error
