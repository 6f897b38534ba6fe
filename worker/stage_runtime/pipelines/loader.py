"""From a checkpoint on disk to a pipeline on a device: all of it, in the number format asked for, or a ModelError.

Model parts are loaded one by one, so that an error names the part, and with the loaders' own account of what they
found, since they fill in what is missing with random values and only log it. The rest is the pipeline's own loader.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from stage_api.devices import Device
from stage_runtime.core.errors import ModelError, OutOfDeviceMemory
from stage_runtime.core.memory_errors import out_of_memory
from stage_runtime.devices.kinds import compute_device
from stage_runtime.pipelines.contract import PipelineRecord, ResolvedModel
from stage_runtime.pipelines.model_size import check_size
from stage_runtime.pipelines.parts import Part, ReadPart, described_parts, need_packages
from stage_runtime.pipelines.step_loader import load_step_model
from stage_runtime.pipelines.weight_files import read_weights

OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY")
OnPart = Callable[[str, int, int], None]
"""(component, how many are loaded, of how many)."""

log = logging.getLogger(__name__)

NAMED_KEYS: Final = 3
"""Weights that a message names before it only counts."""


def load(
    model: ResolvedModel,
    *,
    dtype: torch.dtype,
    device: torch.device,
    reading: Callable[[ReadPart], ReadPart] = lambda read: read,
    on_part: OnPart = lambda name, done, total: None,
) -> Any:
    """The pipeline or step model, in evaluation mode, with its weights in `dtype` on `device`.

    `reading`: what reads each model of a pipeline, from what reads it whole. A step model reads its own. `on_part` is
    told which one is read next, how many are there, and how many there will be.

    Weights on the CPU lie in memory of their own: mapped files are not aligned to 64 bytes, and CPU kernels give other
    last bits for them. Modules that their class keeps in float32 stay so.

    Raises: ModelError when the installed class and the record disagree, or a part is missing, broken, incomplete or
    of another dtype; OutOfDeviceMemory when the weights don't fit.
    """
    if model.record.step_model is not None:
        return load_step_model(model, dtype=dtype, device=device)
    for name in OFFLINE:
        os.environ.setdefault(name, "1")
    import diffusers

    pipeline_class = getattr(diffusers, model.record.pipeline_class, None)
    if pipeline_class is None:
        raise ModelError(f"the installed diffusers has no {model.record.pipeline_class}")
    need_packages("the pipeline", model.record.pipeline_class, getattr(pipeline_class, "_backends", ()))
    check_signature(model.record, pipeline_class)
    with _quiet():
        described = described_parts(model, pipeline_class)
        variants = {part.name: _checked_variant(part) for part in described if part.stem}
        read = reading(lambda part: load_part(part, dtype, variants[part.name]))
        parts: dict[str, Any] = {}
        for part in (one for one in described if one.stem):
            on_part(part.name, len(parts), len(variants))
            parts[part.name] = read(part)
        absent = dict.fromkeys(model.absent_components)
        try:
            pipeline = pipeline_class.from_pretrained(
                str(model.path), dtype=dtype, use_safetensors=True, local_files_only=True, **parts, **absent
            )
        except Exception as error:
            raise _fault(_where(described, error) or f"{model.path}", error) from error
    _check_factor(model.record, pipeline)
    _check_vocabularies(model.path, pipeline)
    pipeline.set_progress_bar_config(disable=True)
    for name, module in modules_of(pipeline):
        _fix_for_serving(module, on_cpu=compute_device(device).kind is Device.CPU)
        _check_dtype(name, module, dtype)
    try:
        return pipeline.to(device)
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise OutOfDeviceMemory(
            f"the weights of {model.path} don't fit on {device}: {_words(error)}"
        ) from error


def check_signature(record: PipelineRecord, pipeline_class: type) -> None:
    """Compare the record with the installed class: every argument must be classified, every named one must exist.

    Raises: ModelError, naming the arguments. Upholds: BATCH-INV-001.
    """
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(pipeline_class.__call__).parameters.values()
    real = {p.name for p in parameters if p.kind not in variadic} - {"self"}
    if unclassified := sorted(real - set(record.classes)):
        raise ModelError(
            f"{record.pipeline_class} takes {', '.join(unclassified)}, which the record {record.name} doesn't classify"
        )
    if unknown := sorted(set(record.classes) - real):
        raise ModelError(
            f"the record {record.name} names {', '.join(unknown)}, which {record.pipeline_class} doesn't take"
        )


def load_part(part: Part, dtype: torch.dtype, variant: str | None = None) -> torch.nn.Module:
    """One model of the pipeline from its folder, whole. Raises: ModelError that names it."""
    try:
        module, found = part.kind.from_pretrained(
            str(part.folder),
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            **({} if variant is None else {"variant": variant}),
        )
    except Exception as error:
        raise _fault(f"{part.name}: {part.folder} can't be loaded", error) from error
    if missing := sorted(found["missing_keys"]):
        named = ", ".join(missing[:NAMED_KEYS]) + (", …" if len(missing) > NAMED_KEYS else "")
        raise ModelError(
            f"{part.name}: {part.folder} lacks {len(missing)} weights of {part.kind.__name__}: {named}"
        )
    return module


def modules_of(pipeline: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """The pipeline's models by name, without tokenizers and schedulers."""
    for name, component in pipeline.components.items():
        if isinstance(component, torch.nn.Module):
            yield name, component


def _checked_variant(part: Part) -> str | None:
    """Which variant of its weights the part has; all of them are there, and they are as many as its config says."""
    weights = read_weights(part.folder, part.stem, part.name)
    check_size(part.kind, part.folder, part.config, weights, part.name)
    if weights.variant is not None:
        log.info("weights of a variant", extra={"component": part.name, "variant": weights.variant})
    return weights.variant


def _check_vocabularies(model_dir: Path, pipeline: Any) -> None:
    """A tokenizer without its files would come up with an empty vocabulary, and every prompt would read the same."""
    for name, component in pipeline.components.items():
        files = dict(getattr(component, "vocab_files_names", None) or {})
        whole = files.pop("tokenizer_file", "tokenizer.json")
        there = [(model_dir / name / file).is_file() for file in files.values()]
        if files and not (all(there) or (model_dir / name / whole).is_file()):
            raise ModelError(
                f"{name}: {model_dir / name} has neither {whole} nor {', '.join(files.values())}"
            )


def _fix_for_serving(module: torch.nn.Module, *, on_cpu: bool) -> None:
    """Fix the module for serving: no dropout, no gradients, weights in memory of their own."""
    module.eval().requires_grad_(False)
    if on_cpu:
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data = tensor.data.clone()


def _check_dtype(name: str, module: torch.nn.Module, dtype: torch.dtype) -> None:
    kept: set[str] = set()
    for attribute in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"):
        kept.update(getattr(module, attribute, None) or ())
    for key, parameter in module.named_parameters():
        exempt = parameter.dtype is torch.float32 and kept.intersection(key.split("."))
        if parameter.dtype is not dtype and not exempt:
            raise ModelError(f"{name}: {key} is {parameter.dtype}, the stage asks for {dtype}")


def _check_factor(record: PipelineRecord, pipeline: Any) -> None:
    """A size that the record allows must be one that this checkpoint's VAE can make."""
    for name in ("image_processor", "video_processor"):
        processor = getattr(pipeline, name, None)
        # A library beside diffusers has processors of the same name, without a factor.
        factor = getattr(getattr(processor, "config", None), "vae_scale_factor", 1)
        if record.limits.size_multiple % factor:
            raise ModelError(
                f"this checkpoint makes sizes in multiples of {factor}, the record {record.name} allows multiples of "
                f"{record.limits.size_multiple}"
            )


def _fault(where: str, error: Exception) -> ModelError | OutOfDeviceMemory:
    """Whose fault it is: a machine without enough memory may not condemn the model for good."""
    if out_of_memory(error):
        return OutOfDeviceMemory(f"{where}: {_words(error)}")
    if isinstance(error, NameError) and error.name:
        return ModelError(f"{where}: its class needs a package that is not installed: {error.name}")
    return ModelError(f"{where}: {_words(error)}")


def _where(described: Iterable[Part], error: Exception) -> str:
    """Which part without weights fails in the same way when it is asked for alone; "" for none."""
    for part in described:
        if not part.stem and hasattr(part.kind, "from_pretrained"):
            try:
                part.kind.from_pretrained(str(part.folder), local_files_only=True)
            except Exception as again:  # noqa: BLE001 - whatever it is, it is told as the first was
                if type(again) is type(error):
                    return f"{part.name}: {part.folder} can't be loaded"
    return ""


def _words(error: Exception) -> str:
    """An error of the libraries on one line, without their advice."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars, advice and the warnings that the libraries raise about themselves."""
    for library in ("diffusers", "transformers"):
        logging = importlib.import_module(f"{library}.utils.logging")
        logging.set_verbosity_error()
        logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
