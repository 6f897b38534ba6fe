"""What must hold on a shared module while calls run: their processors, their cache contexts, their adapters."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import torch

from stage_runtime.scripts.script import Call


class Run(NamedTuple):
    """One run of a real module, for one call or for several merged ones."""

    module: torch.nn.Module
    method: str
    """"forward" or another method's name."""
    calls: tuple[Call, ...]
    """The members, in the order of their rows."""
    rows: tuple[int, ...] = ()
    """Rows of each member; empty for a call that runs alone, whose all rows are."""


class CallHook(Protocol):
    """Something that must hold while calls run, alone or merged."""

    def needs_solo(self, call: Call) -> bool:
        """True when `call` may not be merged with another request's."""

    def key(self, call: Call) -> Hashable:
        """Its part of the group key: calls are merged only where it is equal, such as an adapter's name."""

    def around(self, run: Run) -> AbstractContextManager[None]:
        """Entered around each run. Who said `needs_solo` of a call sees it in a run of its own."""

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request."""
