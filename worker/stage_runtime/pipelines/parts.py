"""The parts that a checkpoint describes, each with its class and folder, before any is built.

Libraries fill in what a folder doesn't say: a model without its config gets its class's default sizes, a tokenizer
without its files an empty vocabulary. So every part must be described, and by files that are there.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeGuard

from stage_runtime.core.errors import ModelError
from stage_runtime.pipelines.contract import ResolvedModel, read_json_object
from stage_runtime.pipelines.weight_files import need_config, need_file, need_folder

log = logging.getLogger(__name__)

SENTENCEPIECE_FILES: Final = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
PACKAGE_OF: Final = {"protobuf": "google.protobuf", "bs4": "bs4", "opencv": "cv2"}
"""What a package is imported as, where it isn't its name."""
ABSENT: Final = [None, None]
"""What an index says of a part that isn't there."""
MOST_TRAINED: Final = 1_000_000
"""Time steps that a scheduler may have been trained with; its tables have an entry for each."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a pipeline. `stem`: what its weights' files begin with; "" for one without weights."""

    name: str
    folder: Path
    kind: Any
    stem: str
    config: Mapping[str, Any]


ReadPart = Callable[[Part], Any]
"""Builds a part and reads its weights; gives the module. Raises: ModelError that names it."""


def described_parts(model: ResolvedModel, pipeline_class: Any) -> list[Part]:
    """Every part that the index says is there and that the installed class takes; others it passes over, as diffusers.

    Raises: ModelError naming the part, and the file, class or package that is missing.
    """
    return list(_described(model, pipeline_class))


def _described(model: ResolvedModel, pipeline_class: Any) -> Iterator[Part]:
    import diffusers

    expected, optional = pipeline_class._get_signature_keys(pipeline_class)
    may_lack = {*optional, *pipeline_class._optional_components}
    for name, value in model.model_index.items():
        if not _names_a_class(value):
            # a class's own options stand beside its parts
            if name in expected and name not in model.absent_components:
                _check_absent(name, value, model.path / "model_index.json", needed=name not in may_lack)
            continue
        if name not in expected and name not in optional:
            log.info("part passed over", extra={"component": name, "pipeline": pipeline_class.__name__})
            continue
        library_name, class_name = value
        folder = need_folder(model.path / name, name)
        kind = _class_of(library_name, class_name, diffusers)
        if kind is None and library_name in ("diffusers", "transformers"):
            version = model.model_index.get("_diffusers_version", "another version")
            installed = importlib.import_module(library_name).__version__
            raise ModelError(
                f"{name}: {library_name} {installed} has no {class_name}; the checkpoint was saved with diffusers "
                f"{version}"
            )
        if kind is not None:
            need_packages(name, class_name, getattr(kind, "_backends", ()))
            yield _part(name, folder, kind, diffusers)


def _check_absent(name: str, value: object, index: Path, *, needed: bool) -> None:
    """Plain diffusers goes on without a part that the index tells as absent; whether it can draw, the probe finds out.

    Raises: ModelError for any other value.
    """
    if value != ABSENT:
        raise ModelError(
            f"{name}: {index} has {json.dumps(value)[:100]} for it; expected its library and class, as two texts"
        )
    if needed:
        log.warning("part that the pipeline asks for is absent", extra={"component": name})


def _names_a_class(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(word, str) for word in value)


def _class_of(library_name: str, class_name: str, diffusers: Any) -> Any:
    """The class, from diffusers, transformers or a package of pipelines; None where it has to be looked for."""
    libraries = {"diffusers": diffusers, "transformers": importlib.import_module("transformers")}
    library = libraries.get(library_name) or getattr(diffusers.pipelines, library_name, None)
    kind = getattr(library, class_name, None)
    return kind if isinstance(kind, type) else None


def _part(name: str, folder: Path, kind: Any, diffusers: Any) -> Part:
    transformers = importlib.import_module("transformers")
    if issubclass(kind, diffusers.ModelMixin):
        config = need_config(folder, kind.config_name, ("_class_name",), name)
        _check_kind(config, kind, folder / kind.config_name, name, diffusers)
        return Part(name, folder, kind, "diffusion_pytorch_model", config)
    if issubclass(kind, transformers.PreTrainedModel):
        config = need_config(folder, "config.json", ("model_type", "architectures"), name)
        return Part(name, folder, kind, "model", config)
    if issubclass(kind, diffusers.ConfigMixin):
        config = need_config(folder, kind.config_name, ("_class_name",), name)
        _check_kind(config, kind, folder / kind.config_name, name, diffusers)
        if issubclass(kind, diffusers.SchedulerMixin):
            _check_trained(config, folder / kind.config_name, name)
        return Part(name, folder, kind, "", config)
    if issubclass(kind, transformers.PreTrainedTokenizerBase):
        read_json_object(need_file(folder / "tokenizer_config.json", name))
        pieces = [file for file in SENTENCEPIECE_FILES if (folder / file).is_file()]
        if pieces and not (folder / "tokenizer.json").is_file():
            need_packages(name, pieces[0], ("sentencepiece", "protobuf"))
    return Part(name, folder, kind, "", {})


def _check_trained(config: Mapping[str, Any], file: Path, name: str) -> None:
    """A scheduler fills tables with as many numbers as it says. Raises: ModelError."""
    trained = config.get("num_train_timesteps", 1)
    if isinstance(trained, bool) or not isinstance(trained, int) or not 1 <= trained <= MOST_TRAINED:
        raise ModelError(
            f"{name}: {file} has num_train_timesteps {json.dumps(trained)[:100]}; expected 1..{MOST_TRAINED}"
        )


def _check_kind(config: Mapping[str, Any], kind: Any, file: Path, name: str, diffusers: Any) -> None:
    """A config of something else altogether would leave all that the part reads to its class's defaults.

    Raises: ModelError.
    """
    said = getattr(diffusers, str(config["_class_name"]), None)
    for base in (diffusers.ModelMixin, diffusers.SchedulerMixin):
        if isinstance(said, type) and issubclass(kind, base) and not issubclass(said, base):
            raise ModelError(f"{name}: {file} is of a {said.__name__}, and the index says {kind.__name__}")


def need_packages(name: str, what: str, packages: Any) -> None:
    """Raises: ModelError naming the packages that `what` needs and this machine lacks."""
    missing = [one for one in packages if not _installed(PACKAGE_OF.get(one, one))]
    if missing:
        many = len(missing) > 1
        raise ModelError(
            f"{name}: {what} needs the package{'s' * many} {' and '.join(missing)}, which "
            f"{'are' if many else 'is'} not installed"
        )


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
