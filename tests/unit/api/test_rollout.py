"""How many replicas may be away at once, and how many more there may be."""

from __future__ import annotations

import pytest

from stage_api.rollout import DisruptionSpec, RolloutSpec


@pytest.mark.parametrize(
    ("away", "more", "replicas", "room"),
    [
        (1, 0, 3, (1, 0)),
        (0, 1, 1, (0, 1)),
        ("50%", "50%", 3, (1, 2)),
        ("10%", 0, 3, (1, 0)),
        ("10%", 0, 0, (1, 0)),
    ],
)
def test_a_rollout_always_has_room_to_move(
    away: int | str, more: int | str, replicas: int, room: tuple[int, int]
) -> None:
    assert RolloutSpec(max_unavailable=away, max_surge=more).room(replicas) == room


@pytest.mark.parametrize(
    ("most", "replicas", "room"), [(1, 5, 1), (0, 5, 0), ("0%", 5, 0), ("10%", 5, 1), ("40%", 5, 2)]
)
def test_a_share_of_a_few_replicas_still_lets_one_move(most: int | str, replicas: int, room: int) -> None:
    assert DisruptionSpec(max_unavailable=most).room(replicas) == room
