"""Whatever is placed, taken, dropped, late or lost: no block is handed out twice, and none is lost."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from stage_runtime.ipc.codec import BadMessage
from stage_runtime.ipc.messages import ShmRef
from stage_runtime.ipc.shm import SMALLEST, Receiver, Sender, ShmFull
from support.segments import held

RANKS = (0, 1)
BUDGET = 12 * SMALLEST


class Pool(RuleBasedStateMachine):
    """Two ranks and a receiver, all of this process."""

    parcels = Bundle("parcels")
    stale = Bundle("stale")

    def __init__(self) -> None:
        super().__init__()
        self.before = held()
        self.receiver = Receiver()
        self.file_pipes = {rank: self.receiver.file_pipe() for rank in RANKS}
        self.senders = {rank: self.new_sender(rank) for rank in RANKS}
        self.flying: dict[ShmRef, bytes] = {}
        self.of: dict[ShmRef, int] = {}
        self.placed = 0

    def new_sender(self, rank: int) -> Sender:
        return Sender(self.file_pipes[rank], rank, patience_s=0.0, budget_bytes=BUDGET)

    @rule(target=parcels, rank=st.sampled_from(RANKS), size=st.integers(0, 5 * SMALLEST))
    def place(self, rank: int, size: int) -> object:
        self.placed += 1
        data = self.placed.to_bytes(4, "little") * (size // 4 + 1)
        data = data[:size]
        busy = {ref.name for ref in self.flying}
        try:
            ref = self.senders[rank].place(data)
        except ShmFull:
            assert self.senders[rank].in_flight, "nothing may be refused while all blocks are free"
            return multiple()
        assert ref.name not in busy, "a block was handed out twice"
        self.flying[ref], self.of[ref] = data, rank
        return ref

    @rule(target=stale, ref=consumes(parcels), keep=st.booleans())
    def take_or_drop(self, ref: ShmRef, keep: bool) -> ShmRef:
        data = self.flying.pop(ref)
        if keep:
            assert self.receiver.take(ref) == data
        else:
            self.receiver.drop(ref)
        return ref

    @rule(ref=stale, keep=st.booleans())
    def come_late(self, ref: ShmRef, keep: bool) -> None:
        before = {rank: sender.in_flight for rank, sender in self.senders.items()}
        try:
            if keep:
                self.receiver.take(ref)
            else:
                self.receiver.drop(ref)
        except BadMessage:
            assert before == {rank: sender.in_flight for rank, sender in self.senders.items()}
        else:
            raise AssertionError(f"{ref} was freed twice")

    @rule(rank=st.sampled_from(RANKS))
    def kill(self, rank: int) -> None:
        """The rank is gone, and what it had told can still be taken; another one starts in its place."""
        self.senders[rank].close()
        self.file_pipes[rank].close()
        self.file_pipes[rank] = self.receiver.file_pipe()
        self.senders[rank] = self.new_sender(rank)

    @invariant()
    def as_many_blocks_are_taken_as_there_are_parcels(self) -> None:
        for rank, sender in self.senders.items():
            mine = [ref for ref in self.flying if self.of[ref] == rank]
            assert sender.in_flight <= len(mine)
            assert sender.held_bytes <= BUDGET

    def teardown(self) -> None:
        for ref, data in self.flying.items():
            assert self.receiver.take(ref) == data, "a parcel was lost"
        for sender in self.senders.values():
            assert sender.in_flight == 0
            sender.close()
        self.receiver.close()
        for file_pipe in self.file_pipes.values():
            file_pipe.close()
        assert held() == self.before, "memory is left"


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
