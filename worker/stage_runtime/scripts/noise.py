"""Where a request's noise comes from: a generator of its own, on the model's device."""

from __future__ import annotations

import torch

from stage_runtime.core.request import Request


def generator_of(request: Request, device: torch.device) -> torch.Generator:
    """A generator at the request's seed, or in the state that it brings."""
    generator = torch.Generator(device)
    if request.generator_state is None:
        return generator.manual_seed(request.seed)
    generator.set_state(torch.frombuffer(bytearray(request.generator_state), dtype=torch.uint8))
    return generator
