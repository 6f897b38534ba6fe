"""Numbers that are not finite, caught where they are still seen: later a picture is clamped, and black or white."""

from __future__ import annotations

from typing import Any

import torch

from stage_runtime.core.errors import NonFiniteOutput
from stage_runtime.scripts.tensor_tree import tensors


def check_finite(tree: Any, what: str) -> None:
    """Waits for the device once a tensor. Raises: NonFiniteOutput when `tree` holds NaN or infinity."""
    for _, tensor in tensors(tree):
        if (tensor.is_floating_point() or tensor.is_complex()) and not bool(torch.isfinite(tensor).all()):
            raise non_finite(what)


def non_finite(what: str) -> NonFiniteOutput:
    """The error for `what` of a request."""
    return NonFiniteOutput(f"the model's {what} for this request hold numbers that are not finite")
