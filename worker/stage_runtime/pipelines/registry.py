"""Which record serves a checkpoint: decided by its model_index.json alone, before any weight is read.

Upholds: DIFF-MODEL-INV-002.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stage_runtime.core.errors import ModelError
from stage_runtime.pipelines.call_signature import read_call_signature
from stage_runtime.pipelines.contract import PipelineRecord, ResolvedModel
from stage_runtime.pipelines.generic import record_for
from stage_runtime.pipelines.records import RECORD_KEY, RECORDS

INDEX: Final = "model_index.json"
MODULAR_INDEX: Final = "modular_model_index.json"


def resolve(
    model_dir: Path, *, pipeline_class: str | None = None, records: Sequence[PipelineRecord] = RECORDS
) -> ResolvedModel:
    """The checkpoint in `model_dir` with its record; `pipeline_class` is the class it must be, if the stage says.

    Raises: ModelError when there is no such checkpoint, it isn't in the diffusers format, is of another class, or of
    a class that can't be served.
    """
    index = _read_index(model_dir)
    found = index.get("_class_name")
    if not isinstance(found, str):
        raise ModelError(
            f"{model_dir / INDEX}: _class_name is {json.dumps(found)}; expected the name of a class of diffusers, "
            "since a checkpoint may not bring its own code"
        )
    if pipeline_class is not None and found != pipeline_class:
        raise ModelError(f"{model_dir}: the stage expects a {pipeline_class}, its {INDEX} says {found}")
    record = _record(found, index, records)
    return ResolvedModel(record=record, model_index=index, path=model_dir, defaults=record.defaults)


def _read_index(model_dir: Path) -> dict[str, object]:
    if not model_dir.is_dir():
        raise ModelError(f"{model_dir}: no such folder")
    path = model_dir / INDEX
    if not path.is_file():
        if (model_dir / MODULAR_INDEX).is_file():
            raise ModelError(f"{model_dir} has a {MODULAR_INDEX}; modular pipelines can't be served yet")
        raise ModelError(f"{model_dir} has no {INDEX}; expected a model in the diffusers format")
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} can't be read: {error}") from error
    if not isinstance(index, dict):
        raise ModelError(f"{path}: expected an object, got a {type(index).__name__}")
    return index


def _record(class_name: str, index: dict[str, object], records: Sequence[PipelineRecord]) -> PipelineRecord:
    own = [record for record in records if record.pipeline_class == class_name]
    for record in own:
        if record.matches(index):
            if index.get(RECORD_KEY) not in (None, record.name):
                break
            return record
    if RECORD_KEY in index:
        raise ModelError(
            f"{class_name} has no record {json.dumps(index[RECORD_KEY])}, which the checkpoint asks for"
        )
    signature = read_call_signature(class_name)
    if signature is None:
        raise ModelError(f"{class_name} is not a pipeline of the installed diffusers")
    return record_for(signature)
