"""Are two sides' pictures the same? Asked before anything is timed: a fast wrong picture is worth nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Picture = np.ndarray
"""uint8 [height, width, 3]."""


class WrongPicture(Exception):
    """A side drew something else than plain diffusers did."""


def check_same(what: str, ours: Sequence[Picture], theirs: Sequence[Picture], *, within: int = 0) -> int:
    """The largest difference of any value, of 255. Raises: WrongPicture when it is above `within`."""
    if len(ours) != len(theirs):
        raise WrongPicture(f"{what}: {len(ours)} pictures, expected {len(theirs)}")
    worst = 0
    for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one.shape != other.shape or one.dtype != np.uint8 or other.dtype != np.uint8:
            raise WrongPicture(
                f"{what}: picture {place} is {one.dtype} {one.shape}, expected uint8 {other.shape}"
            )
        difference = int(np.abs(one.astype(int) - other.astype(int)).max(initial=0))
        if difference > within:
            raise WrongPicture(
                f"{what}: picture {place} differs from diffusers' by {difference}/255; allowed are {within}"
            )
        worst = max(worst, difference)
    return worst
