"""How the VAE turns latents into pixels when there are many of them, as the user asks for it."""

from __future__ import annotations

from pydantic import Field

from stage_api.base import Contract


class VaeSpec(Contract):
    """How the VAE saves memory, at the price of time."""

    slicing: bool = Field(
        default=False, description="Decode the pictures of a batch one after the other, with the same result."
    )
    tiling: bool = Field(
        default=False,
        description="Decode a large picture in overlapping tiles, which are blended where they meet. "
        "A picture of one tile stays as it is.",
    )
