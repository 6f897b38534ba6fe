"""Which record serves a checkpoint: decided by its JSON files, before any weight is read.

Upholds: DIFF-MODEL-INV-002.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stage_runtime.core.errors import ModelError
from stage_runtime.pipelines.call_signature import read_call_signature
from stage_runtime.pipelines.contract import Checkpoint, PipelineRecord, ResolvedModel, read_json_object
from stage_runtime.pipelines.generic import record_for
from stage_runtime.pipelines.records import RECORD_KEY, RECORDS
from stage_runtime.pipelines.weight_files import need_file

INDEX: Final = "model_index.json"
MODULAR_INDEX: Final = "modular_model_index.json"


def resolve(
    model_dir: Path, *, pipeline_class: str | None = None, records: Sequence[PipelineRecord] = RECORDS
) -> ResolvedModel:
    """The checkpoint in `model_dir` with its record; `pipeline_class` is the class it must be, if the stage says.

    Raises: ModelError when there is no such checkpoint, it isn't in the diffusers format, is of another class, or of
    a class that can't be served.
    """
    checkpoint = Checkpoint(model_dir, _read_index(model_dir))
    found = checkpoint.index.get("_class_name")
    if not isinstance(found, str):
        raise ModelError(
            f"{model_dir / INDEX}: _class_name is {json.dumps(found)}; expected the name of a class of diffusers, "
            "since a checkpoint may not bring its own code"
        )
    if pipeline_class is not None and found != pipeline_class:
        raise ModelError(f"{model_dir}: the stage expects a {pipeline_class}, its {INDEX} says {found}")
    record = _record(found, checkpoint, records)
    return ResolvedModel(
        record=record, model_index=checkpoint.index, path=model_dir, defaults=record.defaults
    )


def _read_index(model_dir: Path) -> dict[str, object]:
    if not model_dir.is_dir():
        whither = f"; it is a link to {model_dir.readlink()}" if model_dir.is_symlink() else ""
        raise ModelError(f"{model_dir}: no such folder{whither}")
    path = model_dir / INDEX
    if path.is_symlink():
        need_file(path, "the model")
    if not path.is_file():
        if (model_dir / MODULAR_INDEX).is_file():
            raise ModelError(f"{model_dir} has a {MODULAR_INDEX}; modular pipelines can't be served yet")
        raise ModelError(f"{model_dir} has no {INDEX}; expected a model in the diffusers format")
    return read_json_object(path)


def _record(class_name: str, checkpoint: Checkpoint, records: Sequence[PipelineRecord]) -> PipelineRecord:
    asked = checkpoint.index.get(RECORD_KEY)
    own = (r for r in records if r.pipeline_class == class_name and r.matches(checkpoint))
    record = next(own, None)
    if asked is not None and (record is None or record.name != asked):
        raise ModelError(f"{class_name} has no record {json.dumps(asked)}, which the checkpoint asks for")
    if record is not None:
        return record
    signature = read_call_signature(class_name)
    if signature is None:
        raise ModelError(
            f"{class_name or json.dumps(class_name)} is not a pipeline of the installed diffusers"
        )
    return record_for(signature, checkpoint)
