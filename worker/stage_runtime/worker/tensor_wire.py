"""torch tensors as bytes between processes, in any dtype: numpy, which has no bfloat16, is not asked for one.

In the answers and arguments of control calls a tensor travels as a msgpack extension, whose bytes are an
`ipc.messages.Tensor`.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
import torch

from stage_runtime.ipc.messages import Tensor

EXTENSION: Final = 1
"""Code of the msgpack extension."""

_INTEGER_BITS: Final = 64


def to_wire(tensor: torch.Tensor) -> Tensor:
    """Its numbers in C order, copied. Raises: TypeError for a tensor that isn't simply numbers in memory."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise TypeError(f"a {tensor.layout} tensor on {tensor.device} has no bytes to send")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return Tensor(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape), data=data)


def from_wire(wire: Tensor) -> torch.Tensor:
    """The tensor, on the CPU, in memory of its own. Raises: ValueError when bytes, shape and dtype disagree."""
    dtype = getattr(torch, wire.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{wire.dtype!r} is no dtype of torch")
    expected = math.prod(wire.shape) * dtype.itemsize
    if wire.ref is not None or min(wire.shape, default=0) < 0 or len(wire.data) != expected:
        raise ValueError(f"{len(wire.data)} bytes are no {wire.dtype} of shape {wire.shape}")
    if not wire.data:
        return torch.empty(wire.shape, dtype=dtype)
    return torch.frombuffer(bytearray(wire.data), dtype=torch.uint8).view(dtype).reshape(wire.shape)


def pack(value: Any, where: str = "value") -> Any:
    """`value` as a message can hold it: plain values, lists, dicts by string, and tensors packed.

    Tuples become lists, as they do on their way. Raises: TypeError that says where something else is.
    """
    if isinstance(value, torch.Tensor):
        return msgspec.msgpack.Ext(EXTENSION, msgspec.msgpack.encode(to_wire(value)))
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where}: expected names as keys, got {key!r}")
        return {key: pack(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [pack(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if type(value) is int and not -(2 ** (_INTEGER_BITS - 1)) <= value < 2**_INTEGER_BITS:
        raise TypeError(f"{where}: expected at most {_INTEGER_BITS} bits, got {value.bit_length()}")
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    raise TypeError(f"{where}: expected a plain value or a tensor, got a {type(value).__name__}")


def unpack(value: Any) -> Any:
    """What `pack` was given, tuples as lists. Raises: ValueError for an extension that is no tensor."""
    if isinstance(value, msgspec.msgpack.Ext):
        if value.code != EXTENSION:
            raise ValueError(f"extension {value.code} is no tensor")
        return from_wire(msgspec.msgpack.decode(value.data, type=Tensor))
    if isinstance(value, dict):
        return {key: unpack(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [unpack(item) for item in value]
    return value
