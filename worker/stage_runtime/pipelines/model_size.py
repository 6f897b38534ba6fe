"""Is a part as large as its weights say? Found out without memory, so that a wrong config can't take all there is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn.modules import module as registry

from stage_runtime.core.errors import ModelError
from stage_runtime.core.memory_errors import out_of_memory
from stage_runtime.pipelines.weight_files import Weights

ROOM: Final = 1.25
"""A class may make a little more than is stored: what is tied to something else is not."""
SMALL: Final = 1_000_000
"""Numbers that nobody minds."""
UNSAVED: Final = 256_000_000
"""Numbers in tables that a class computes for itself and doesn't save."""
MODULES_PER_WEIGHT: Final = 50
QUANTIZED: Final = "quantization_config"
CONFIG: Final = "config.json"


class _TooLarge(Exception):
    pass


def check_size(part_class: Any, folder: Path, config: Mapping[str, Any], weights: Weights, what: str) -> None:
    """Build the part without memory, and no further than its weights go.

    Weights that are stored quantised have other shapes than what they become; those are left to their loader.

    Raises: ModelError when the config describes a larger part than the weights are, or none.
    """
    if config.get(QUANTIZED) is not None:
        return

    def build() -> torch.nn.Module:
        with _no_init():
            if hasattr(part_class, "load_config"):
                return part_class.from_config(part_class.load_config(str(folder), local_files_only=True))
            return part_class(part_class.config_class.from_pretrained(str(folder), local_files_only=True))

    check_built_size(build, folder, weights, what)


def check_built_size(build: Callable[[], torch.nn.Module], folder: Path, weights: Weights, what: str) -> None:
    """The same for what `build` makes of the folder's config.json. Raises: ModelError."""
    most = int(weights.numbers * ROOM) + SMALL
    try:
        try:
            with _bounded(weights, most), torch.device("meta"):
                module = build()
        except _TooLarge:
            raise
        except Exception:  # noqa: BLE001 - some classes compute with tensors as they are built
            from accelerate import init_empty_weights  # type: ignore[import-untyped]

            with _bounded(weights, most), init_empty_weights():
                module = build()
    except _TooLarge:
        raise _refusal(folder, weights, what) from None
    except Exception as error:
        if out_of_memory(error):
            raise _refusal(folder, weights, what) from error
        said = f"{type(error).__name__}: {error}"
        raise ModelError(f"{what}: {folder / CONFIG} makes no model: {said}") from error
    # Two names of one weight are two weights until they are tied, which a loader does last.
    if callable(tie := getattr(module, "tie_weights", None)):
        tie()
    unsaved = sum(buffer.numel() for buffer in module.buffers())
    if sum(p.numel() for p in module.parameters()) > most or unsaved > weights.numbers + UNSAVED:
        raise _refusal(folder, weights, what)


def _refusal(folder: Path, weights: Weights, what: str) -> ModelError:
    return ModelError(
        f"{what}: {folder / CONFIG} describes a larger model than its weights are, "
        f"{weights.numbers} numbers in {len(weights.shapes)} tensors"
    )


def _no_init() -> AbstractContextManager[Any]:
    """Weights that nobody sees need no numbers."""
    try:
        from transformers.initialization import no_init_weights
    except ImportError:
        return nullcontext()
    return no_init_weights()


@contextmanager
def _bounded(weights: Weights, most: int) -> Iterator[None]:
    """Inside, a model may be made that isn't much larger than its weights. Raises: _TooLarge."""
    most_numbers, most_modules = 2 * most, MODULES_PER_WEIGHT * len(weights.shapes) + 10_000
    numbers = modules = 0

    def count(_owner: torch.nn.Module, _name: str, parameter: Any) -> None:
        nonlocal numbers
        numbers += 0 if parameter is None else math.prod(parameter.shape)
        if numbers > most_numbers:
            raise _TooLarge

    def count_modules(_owner: torch.nn.Module, _name: str, _module: Any) -> None:
        nonlocal modules
        modules += 1
        if modules > most_modules:
            raise _TooLarge

    watched: list[tuple[Callable[[Any], Any], Any]] = [
        (registry.register_module_parameter_registration_hook, count),
        (registry.register_module_module_registration_hook, count_modules),
    ]
    handles = [watch(hook) for watch, hook in watched]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
