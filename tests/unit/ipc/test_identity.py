"""Whose connection it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_runtime.ipc.identity import Peer, life_of, peer_of

PEERS = st.builds(
    Peer,
    rank=st.integers(0, 999_999_999),
    life=st.one_of(
        st.just(""), st.builds(life_of, st.integers(0, 10**6), st.from_regex("[0-9a-f]{16}", fullmatch=True))
    ),
    lane=st.sampled_from(["", "pack", "agent"]),
)


@given(PEERS)
def test_a_peer_is_known_by_its_identity(peer: Peer) -> None:
    assert peer_of(peer.identity) == peer
    assert 0 < len(peer.identity) < 256, "ZeroMQ takes no other"


@pytest.mark.parametrize(
    "identity", [b"", b"\x00abcd", b"boss", b"-1", b"1@", b"1/", b"1@2@3", b"1234567890", b"1\n"]
)
def test_what_no_rank_is_called_is_nobody_s(identity: bytes) -> None:
    assert peer_of(identity) is None
