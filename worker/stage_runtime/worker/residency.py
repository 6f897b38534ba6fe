"""Where the model's weights are: on the device, in host memory, or nowhere until the checkpoint gives them again.

The only owner of their moves. A move replaces what parameters and buffers hold, never the objects themselves: modules,
tied weights and views of one storage stay what they were, and so do the strides and bits of each.

Traps: buffers may be missing in the checkpoint (tables of positions) or changed since it was read, so they are kept in
host memory by both levels. A storage whose memory was freed in place can't be used here: reading it crashes the
process, where an empty tensor only raises. Tensors that a module holds as plain attributes are not moved, since
nobody can tell what they are; they are small.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import OutOfDeviceMemory, OutOfMemory, RequestFailed
from stage_runtime.core.memory_errors import out_of_memory
from stage_runtime.devices.kinds import compute_device
from stage_runtime.scripts.private_pipeline import components

Modules = Mapping[str, torch.nn.Module]

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(slots=True)
class _View:
    """One parameter or buffer, and what part of its storage it is."""

    name: str
    tensor: torch.Tensor
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    print: tuple[int, ...] = ()
    """Of its numbers, taken before they are dropped."""


@dataclass(slots=True)
class _Block:
    """One storage with all that lies in it. `host` holds its bytes while they are off the device."""

    nbytes: int
    views: list[_View] = field(default_factory=list)
    only_parameters: bool = True
    host: torch.Tensor | None = None
    away: bool = False


class Residency:
    """Moves the weights of `modules`, all of which are on `device`.

    `reload()` gives a pipeline with the same modules, freshly read, on the CPU. Not thread-safe.
    """

    def __init__(
        self,
        modules: Modules,
        device: torch.device,
        reload: Callable[[], Any],
        *,
        shares_host_memory: bool | None = None,
    ) -> None:
        """`shares_host_memory`: the device's memory is the host's own, so that level 1 has nothing to do."""
        self._modules, self._device, self._reload = modules, device, reload
        self._compute = compute_device(device)
        shared = self._compute.shares_host_memory
        self._on_host = shared if shares_host_memory is None else shares_host_memory
        self._blocks: list[_Block] = []
        """All that was taken off the device, or would have been; empty while awake."""
        self._asleep = False

    @property
    def asleep(self) -> bool:
        """True while weights may be missing."""
        return self._asleep

    @property
    def bytes_here(self) -> int:
        """Bytes of parameters and buffers that are on the device."""
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for _, tensor, _ in _tensors(self._modules)
        }
        return sum(storages.values())

    def sleep(self, level: int) -> int:
        """Free the device's memory of weights; returns how many bytes were freed.

        Level 1 keeps them in host memory; on a CPU they are there already, and stay. Level 2 drops parameters. From
        level 1 it goes on to 2; a level that is reached already frees nothing. Raises: OutOfMemory of the host;
        everything is where it was then.
        """
        if not self._asleep:
            self._blocks = _blocks(self._modules)
        dropped = [b for b in self._blocks if level == 2 and b.only_parameters]
        kept = [
            b for b in self._blocks if not (self._on_host or b.away or (level == 2 and b.only_parameters))
        ]
        try:
            with torch.no_grad():
                for block in dropped:
                    if not block.away:
                        _take_prints(block)
                for block in kept:
                    block.host = self._to_host(_bytes_of(block))
        except Exception as error:
            for block in kept:
                block.host = None
            raise self._typed(error, "the weights can't be taken off the device") from error
        self._asleep = True
        freed = sum(block.nbytes for block in (*kept, *dropped) if not block.away)
        for block in dropped:
            if block.away and block.host is not None:
                _take_prints(block)
            block.host = None
        for block in (*kept, *dropped):
            _empty(block)
        self._tidy()
        return freed

    def wake(self) -> int:
        """Have everything back, bit for bit; returns how many bytes came back to the device.

        Raises: OutOfMemory when the device has too little, RequestFailed when the checkpoint is gone or another one.
        It sleeps on then, and may be woken again.
        """
        try:
            with torch.no_grad():
                came = self._restore([block for block in self._blocks if block.away])
        except Exception as error:
            gc.collect()  # of a checkpoint that was read in vain
            self._tidy()
            raise self._typed(error, "the weights can't be had back") from error
        self._blocks, self._asleep = [], False
        self._tidy()
        return came

    def close(self) -> None:
        """Let go of modules and copies."""
        self._blocks, self._modules = [], {}

    def _restore(self, away: list[_Block]) -> int:
        lost = [block for block in away if block.host is None]
        fresh = self._fresh(lost) if lost else {}
        for block in away:
            storage = torch.empty(block.nbytes, dtype=torch.uint8, device=self._device)
            if block.host is not None:
                storage.copy_(block.host)
            for view in block.views:
                there = _view_of(storage, view)
                if block.host is None:
                    read = fresh.pop(view.name)
                    there.copy_(read)
                    read.data = torch.empty(0, dtype=read.dtype)  # its module may live on for a while
                view.tensor.data = there
            block.host, block.away = None, False
        return sum(block.nbytes for block in away)

    def _fresh(self, lost: list[_Block]) -> dict[str, torch.Tensor]:
        """What the checkpoint has for each parameter that is gone. Raises: ValueError when it isn't the same."""
        found = {
            name: tensor for name, tensor, _ in _tensors(modules_in(self._reload())) if not _is_gone(tensor)
        }
        chosen = {}
        for view in (view for block in lost for view in block.views):
            tensor = found.get(view.name)
            if tensor is None:
                raise ValueError(f"the checkpoint no longer has {view.name}")
            if (tensor.shape, tensor.dtype) != (view.shape, view.tensor.dtype) or _print(
                tensor
            ) != view.print:
                raise ValueError(f"the checkpoint has another {view.name} than before")
            chosen[view.name] = tensor
        return chosen

    def _to_host(self, numbers: torch.Tensor) -> torch.Tensor:
        """A copy that the device can read fast."""
        return self._compute.host_buffer(numbers).copy_(numbers)

    def _tidy(self) -> None:
        self._compute.synchronize()
        self._compute.free_cached()

    @staticmethod
    def _typed(error: Exception, what: str) -> Exception:
        if out_of_memory(error) or isinstance(error, OutOfDeviceMemory):
            return OutOfMemory(f"{what}: {words_of(error, kind=False)}")
        return RequestFailed(f"{what}: {words_of(error, kind=False)}")


def modules_in(model: Any) -> dict[str, torch.nn.Module]:
    """Every module of a pipeline or of another model, by name."""
    return {"model": model} if isinstance(model, torch.nn.Module) else components(model)


def _tensors(modules: Modules) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Every parameter and buffer once, by a name of its own; True for a parameter.

    Without buffers that a forward pass has made: those can't be moved outside of one, and are small.
    """
    seen: set[int] = set()
    for component, module in modules.items():
        both: tuple[tuple[bool, Iterable[tuple[str, torch.Tensor]]], ...] = (
            (True, module.named_parameters()),
            (False, module.named_buffers()),
        )
        for is_parameter, named in both:
            for name, tensor in named:
                if id(tensor) not in seen and not tensor.is_inference():
                    seen.add(id(tensor))
                    yield f"{component}.{name}", tensor, is_parameter


def _blocks(modules: Modules) -> list[_Block]:
    """The storages of all parameters and buffers, each once, with what lies in them."""
    blocks: dict[int, _Block] = {}
    for name, tensor, is_parameter in _tensors(modules):
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            continue
        block = blocks.setdefault(storage.data_ptr(), _Block(storage.nbytes()))
        block.only_parameters = block.only_parameters and is_parameter
        block.views.append(_View(name, tensor, tensor.shape, tensor.stride(), int(tensor.storage_offset())))
    return list(blocks.values())


def _bytes_of(block: _Block) -> torch.Tensor:
    """The whole storage as bytes."""
    tensor = block.views[0].tensor
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _view_of(storage: torch.Tensor, view: _View) -> torch.Tensor:
    empty = torch.empty(0, dtype=view.tensor.dtype, device=storage.device)
    return empty.set_(storage.untyped_storage(), view.offset, view.shape, view.stride)


def _empty(block: _Block) -> None:
    for view in block.views:
        view.tensor.data = torch.empty(0, dtype=view.tensor.dtype, device=view.tensor.device)
    block.away = True


def _is_gone(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() == 0


def _take_prints(block: _Block) -> None:
    """Note what the numbers are, so that others aren't taken for them."""
    for view in block.views:
        view.print = _print(view.tensor if block.host is None else _view_of(block.host, view))


def _print(tensor: torch.Tensor) -> tuple[int, ...]:
    """Two sums of a tensor's bits, one of them weighted by row, so that rows that change places are noticed."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    bits = real.detach().view(_INTEGERS[real.element_size()])
    if bits.dim() == 0:
        return (int(bits),)
    lines = bits.reshape(bits.shape[0], -1).sum(dim=1, dtype=torch.int64)
    weights = torch.arange(1, len(lines) + 1, dtype=torch.int64, device=lines.device)
    return int(lines.sum()), int((lines * weights).sum())
