"""What a client asked for, in plain values: bytes, numbers and strings, so that it can cross a process unchanged.

One request is one output. A client's `n` images are `n` requests with the seeds s … s+n−1, made above the scheduler.
"""

from __future__ import annotations

from msgspec import Struct

Value = str | int | float | bool | None
"""What one pipeline argument may hold."""


class BatchKey(Struct, frozen=True):
    """The values that must be equal for two requests to run in one wave: the pipeline's *shared* arguments.

    Step count, seed, prompt and guidance are a request's own and are not in it.
    """

    values: tuple[tuple[str, Value], ...]


class Request(Struct, frozen=True, kw_only=True):
    """One output to make.

    `arguments` are keyword arguments of the pipeline in the pipeline's own names, defaults filled in, every one
    classified by the pipeline's record. The generator is not among them: the runner makes it from `seed`, or from
    `generator_state` (bytes of `torch.Generator.get_state()`) when that is given.
    """

    request_id: str
    arguments: dict[str, Value]
    key: BatchKey
    seed: int
    steps: int
    """Denoise steps asked for; what progress is counted against."""
    pixels: int
    """Pixels, or samples, of the output: with `steps` it says how much work the request is."""
    generator_state: bytes | None = None
    preview_steps: tuple[int, ...] = ()
    """Steps (1-based, below `steps`) after which the client wants a picture of how far it is."""
    chunks: bool = False
    """The client wants finished pieces of the output while the rest is being made, of a model that makes any."""

    @property
    def cost(self) -> int:
        """Work in row-step-pixels when nothing is done yet."""
        return self.steps * self.pixels
