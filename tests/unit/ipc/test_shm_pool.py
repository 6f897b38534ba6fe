"""Whatever is placed, taken, dropped, late or lost: no block is handed out twice, and none is lost."""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from stage_runtime.ipc.codec import BadMessage
from stage_runtime.ipc.messages import ShmRef
from stage_runtime.ipc.shm import FOLDER, SMALLEST, Owner, Receiver, Sender, ShmFull

RANKS = (0, 1)
BUDGET = 12 * SMALLEST


class Pool(RuleBasedStateMachine):
    """Two ranks and a receiver, all of this process."""

    parcels = Bundle("parcels")
    stale = Bundle("stale")

    def __init__(self) -> None:
        super().__init__()
        self.owner = Owner.current()
        self.receiver = Receiver(self.owner)
        self.senders = {rank: self.new_sender(rank) for rank in RANKS}
        self.flying: dict[ShmRef, bytes] = {}
        self.of: dict[ShmRef, int] = {}
        self.attached: set[str] = set()
        self.placed = 0

    def new_sender(self, rank: int) -> Sender:
        return Sender(self.owner, rank, patience_s=0.0, budget_bytes=BUDGET)

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
        if ref not in self.flying:  # its rank was killed
            return ref
        data = self.flying.pop(ref)
        if keep:
            assert self.receiver.take(ref) == data
        else:
            self.receiver.drop(ref)
        self.attached.add(ref.name)
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
        """The rank is gone and another one started in its place; what it had placed unseen is swept."""
        self.senders[rank].close()
        self.receiver.sweep_own(rank)
        self.senders[rank] = self.new_sender(rank)
        gone = {ref for ref in self.flying if self.of[ref] == rank and ref.name not in self.attached}
        for ref in gone:
            del self.flying[ref]

    @invariant()
    def as_many_blocks_are_taken_as_there_are_parcels(self) -> None:
        for rank, sender in self.senders.items():
            mine = [ref for ref in self.flying if self.of[ref] == rank]
            assert sender.in_flight <= len(mine)
            assert sender.held_bytes <= BUDGET

    @invariant()
    def only_what_the_receiver_has_not_seen_has_a_name(self) -> None:
        named = {name for name in os.listdir(FOLDER) if name.startswith(self.owner.prefix)}
        assert named == {ref.name for ref in self.flying if ref.name not in self.attached}

    def teardown(self) -> None:
        for ref, data in self.flying.items():
            assert self.receiver.take(ref) == data, "a parcel was lost"
        for sender in self.senders.values():
            assert sender.in_flight == 0
            sender.close()
        self.receiver.close()
        assert not [name for name in os.listdir(FOLDER) if name.startswith(self.owner.prefix)]


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
