"""Collective calls of one group: counted, with a deadline, and with errors that say what became of a peer.

There is one collective, a gather of equal bytes from all to all. With a single kind of call, ranks that went apart
still meet in it, and what they brought tells that they did.
"""

from __future__ import annotations

import time
from typing import Any, Final, NoReturn

import torch

from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import EngineDeadError, EngineHung, InternalError

CPU: Final = torch.device("cpu")
_TIMED_OUT: Final = ("timed out", "timeout")


class Collectives:
    """One rank's end of its group. Each method is called by every rank of the group, in the same order.

    `count` is the number of collectives so far: equal on all ranks at any time between two of them.
    """

    def __init__(
        self,
        group: Any,
        ranks: tuple[int, ...],
        index: int,
        *,
        device: torch.device = CPU,
        timeout_s: float,
    ) -> None:
        """`device`: where the tensors that are exchanged lie."""
        self._group = group
        self.device = device
        self.ranks, self.index, self.timeout_s = ranks, index, timeout_s
        self.count = 0
        self.seconds = 0.0
        """Spent waiting for the others and for the wire."""

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return len(self.ranks)

    @property
    def rank(self) -> int:
        """This rank."""
        return self.ranks[self.index]

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        """What each rank brought.

        Produced: by each rank, (n,) uint8, contiguous, n the same on all. Consumed: by every rank, (size, n) uint8, in
        the order of the group. Both on the group's device.

        Raises: EngineDeadError when a peer is gone, EngineHung when it does not come.
        """
        if mine.device.type != self.device.type:
            raise InternalError(
                f"rank {self.rank} has a tensor on {mine.device}, and its group is of {self.device}"
            )
        everything = torch.empty((self.size, mine.numel()), dtype=torch.uint8, device=mine.device)
        began = time.perf_counter()
        self.count += 1
        try:
            self._group._allgather_base(everything.view(-1), mine).wait()
        except RuntimeError as error:
            self._fail(error)
        self.seconds += time.perf_counter() - began
        return everything

    def close(self) -> None:
        """Let go of the transport; what still waits in it fails."""
        group, self._group = self._group, None
        if group is not None and hasattr(group, "abort"):
            group.abort()

    def _fail(self, error: RuntimeError) -> NoReturn:
        others = [rank for rank in self.ranks if rank != self.rank]
        peer = others[0] if len(others) == 1 else None
        who = f"rank {peer}" if peer is not None else f"one of the ranks {', '.join(map(str, others))}"
        text = words_of(error, kind=False)
        if any(word in text.lower() for word in _TIMED_OUT):
            message = f"{who} did not come to a collective within {self.timeout_s:.0f} s"
            raise EngineHung(message, rank=peer) from error
        raise EngineDeadError(f"{who} is gone: {text[:200]}", rank=peer) from error
