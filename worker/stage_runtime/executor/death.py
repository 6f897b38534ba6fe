"""Why a group died: from the exits of its ranks and their last words to one typed error. Pure.

When one rank is killed, the others often end too, since their collectives break. So a rank that was killed from
outside is the cause before one that ended by itself, and a special exit code before the general one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from stage_api.errors import SpecError
from stage_api.outcome import ExitCode
from stage_api.topology import Topology
from stage_runtime.core.error_codec import decoded
from stage_runtime.core.errors import EngineDeadError, EngineHung, ModelError
from stage_runtime.exit import exit_code_of
from stage_runtime.ipc.messages import Dying, Ended, Frozen
from stage_runtime.processes.child import death_of

LOST: Final = 1 << 16
"""In place of an exit code: nobody knows how it ended."""

_OF_OTHERS: Final = (EngineDeadError.__name__, EngineHung.__name__)
_CONSEQUENCES: Final = (ExitCode.RANK_DIED, ExitCode.HANG)


class Deaths:
    """What is known of the ranks that ended."""

    def __init__(self) -> None:
        self._codes: dict[int, int] = {}
        self._words: dict[int, Dying] = {}
        self.frozen: set[int] = set()
        """Ranks that their agents saw stopped."""
        self.served = False
        """All ranks were ready: config and model were well then, whatever one ends with now."""

    def said(self, dying: Dying | Ended | Frozen) -> None:
        """A rank's last words, or what an agent saw of one."""
        if isinstance(dying, Frozen):
            (self.frozen.add if dying.is_frozen else self.frozen.discard)(dying.who)
            return
        if isinstance(dying, Ended):
            self.exited(dying.who, dying.code)
            return
        self._words[dying.rank] = dying
        if self._codes.get(dying.rank, LOST) == LOST:
            self._codes[dying.rank] = exit_code_of(decoded(dying.error))

    def lost(self, rank: int) -> None:
        """The connection to a rank in another pod ended, and nothing was said."""
        self._codes.setdefault(rank, LOST)

    def exited(self, rank: int, code: int) -> None:
        """A rank's process ended; a negative code is a signal."""
        if rank not in self._words:
            self._codes[rank] = code

    @property
    def may_be_another(self) -> bool:
        """True when ranks ended only by themselves, as they do when another one is gone, or nobody knows how."""
        return bool(self._codes) and all(code in (*_CONSEQUENCES, LOST) for code in self._codes.values())

    @property
    def wordless(self) -> bool:
        """A rank ended by itself, and what it said last has not been heard."""
        return any(0 < code < LOST and rank not in self._words for rank, code in self._codes.items())

    def cause(self) -> EngineDeadError | None:
        """What killed the group; None while all ranks live.

        Raises: SpecError or ModelError, when a rank couldn't start for such a reason.
        """
        try:
            return self._found()
        except (SpecError, ModelError) as error:
            if not self.served:
                raise
            rank = self._first()
            return EngineDeadError(f"rank {rank} ended while it served: {error}", rank=rank)

    def _first(self) -> int:
        return min(self._codes, key=lambda one: (_order(self._codes[one]), one))

    def _found(self) -> EngineDeadError | None:
        if not self._codes:
            return None
        rank = self._first()
        words = self._words.get(rank)
        if words is None and self._codes[rank] == LOST and rank in self.frozen:
            message = f"rank {rank}, in another pod, is stopped, and its connection ended of it"
            return EngineHung(message, rank=rank)
        if words is None:
            return _wordless(rank, self._codes[rank])
        error = decoded(words.error)
        if isinstance(error, SpecError | ModelError):
            raise error
        kind = type(error) if isinstance(error, EngineDeadError) else EngineDeadError
        return kind(f"rank {rank}: {words.error.message}", rank=_at_fault(words))


def hang_of(topology: Topology, copy: int, silent_s: float, stopped: Collection[int]) -> EngineHung:
    """The error of a copy of the model that hangs: the doing of a rank of it that is stopped, where one is."""
    for rank in sorted(stopped):
        if topology.coordinates[rank].data == copy:
            return EngineHung(f"rank {rank} is stopped: nothing was said for {silent_s:.1f} s", rank=rank)
    rank = topology.data_primaries[copy]
    return EngineHung(f"rank {rank} has said nothing for {silent_s:.1f} s", rank=rank)


def _at_fault(words: Dying) -> int | None:
    """Whose doing it was; None when the rank that says so doesn't know: that others are gone is none of its own."""
    if words.error.rank is None and words.error.kind in _OF_OTHERS:
        return None
    return words.rank if words.error.rank is None else words.error.rank


def _wordless(rank: int, code: int) -> EngineDeadError:
    """The error of a rank of which only the end is known.

    Raises: SpecError, ModelError, for the exit codes that say so.
    """
    if code == LOST:
        return EngineDeadError(f"rank {rank}, in another pod, is gone: its connection ended", rank=rank)
    return death_of(f"rank {rank}", code, rank=rank)


def _order(code: int) -> int:
    """Killed from outside first, then lost, then special codes, then the general one."""
    if code < 0:
        return 0
    if code == LOST:
        return 1
    return 3 if code == ExitCode.RANK_DIED else 2
