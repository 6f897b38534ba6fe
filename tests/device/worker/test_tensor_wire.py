"""Tensors as bytes: whatever dtype and shape goes in comes out, to the last bit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from stage_runtime.ipc.messages import ShmRef, Tensor
from stage_runtime.worker.tensor_wire import from_wire, pack, to_wire, unpack

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
)


def bits(tensor: torch.Tensor) -> bytes:
    """Its numbers as bytes."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 1)])
def test_every_dtype_and_shape_comes_back_to_the_last_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 3).to(dtype)
    back = from_wire(msgspec.msgpack.decode(msgspec.msgpack.encode(to_wire(tensor)), type=Tensor))
    assert (back.dtype, back.shape, bits(back)) == (tensor.dtype, tensor.shape, bits(tensor))


def test_numbers_that_are_no_numbers_keep_their_bits() -> None:
    tensor = torch.tensor([float("nan"), float("inf"), -0.0], dtype=torch.bfloat16)
    assert bits(from_wire(to_wire(tensor))) == bits(tensor)


def test_a_view_with_gaps_is_sent_without_them() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(from_wire(to_wire(whole.t()[1:3])), whole.t()[1:3])
    assert torch.equal(from_wire(to_wire(torch.tensor([1 + 2j]).conj())), torch.tensor([1 - 2j]))


def test_what_comes_back_is_the_receivers_own() -> None:
    wire = to_wire(torch.zeros(2))
    from_wire(wire).add_(1)
    assert from_wire(wire).tolist() == [0, 0]


@pytest.mark.parametrize(
    "wire",
    [
        Tensor(dtype="float33", shape=(1,), data=b"1234"),
        Tensor(dtype="Tensor", shape=(1,), data=b"1234"),
        Tensor(dtype="float32", shape=(2,), data=b"1234"),
        Tensor(dtype="float32", shape=(-1,), data=b""),
        Tensor(dtype="float32", shape=(1,), ref=ShmRef("somewhere", 0, 4)),
    ],
)
def test_bytes_that_are_no_such_tensor_are_refused(wire: Tensor) -> None:
    with pytest.raises(ValueError, match="no"):
        from_wire(wire)


def test_values_and_tensors_travel_together() -> None:
    value = {"a": [1, 2.5, None, True, "text", b"bytes"], "b": {"deep": torch.tensor([7])}}
    crossed = msgspec.msgpack.decode(msgspec.msgpack.encode(pack(value)))
    back = unpack(crossed)
    assert back["a"] == value["a"]
    assert back["b"]["deep"].tolist() == [7]


def test_a_tuple_is_a_list_on_either_side() -> None:
    assert pack((1, (2,))) == [1, [2]]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [object()]}, r"value.a\[0\].*object"),
        ({1: 2}, "expected names"),
        (2**70, "64 bits"),
        (torch.zeros(2).to_sparse(), "sparse"),
    ],
)
def test_what_can_not_travel_is_named_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        pack(value)
