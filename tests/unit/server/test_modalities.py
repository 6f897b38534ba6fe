"""Which models can be served over HTTP: those whose output some folder of the server sends."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_api.outcome import ExitCode
from stage_runtime.core.errors import ModelError
from stage_runtime.core.outcome import Modality
from stage_runtime.exit import exit_code_of
from stage_runtime.pipelines.contract import PipelineRecord, ResolvedModel
from stage_runtime.pipelines.records import RECORDS
from stage_runtime.server import modalities
from stage_runtime.server.modalities import ENDPOINTS, endpoints_of


def model_of(record: PipelineRecord) -> ResolvedModel:
    return ResolvedModel(record=record, model_index={}, path=Path("/nowhere"), defaults=record.defaults)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_model_is_served_if_its_output_can_be_sent_and_refused_at_start_if_not(
    record: PipelineRecord,
) -> None:
    if record.modality in ENDPOINTS:
        assert endpoints_of(model_of(record)) is ENDPOINTS[record.modality]
        return
    with pytest.raises(ModelError, match=f"{record.pipeline_class} makes {record.modality}") as refused:
        endpoints_of(model_of(record))
    assert exit_code_of(refused.value) is ExitCode.MODEL


def test_some_record_is_of_each_modality() -> None:
    assert {record.modality for record in RECORDS} == set(Modality)


def test_a_modality_is_a_folder_and_one_line() -> None:
    """Whatever serves it lies in its folder, and only the registration names that."""
    server = Path(modalities.__file__).parent
    folders = {path.name for path in server.iterdir() if (path / "endpoints.py").is_file()} - {"http"}
    assert {kind.__module__.split(".")[-2] for kind in ENDPOINTS.values()} == folders  # type: ignore[attr-defined]
    for folder in folders:
        naming = [
            path.relative_to(server).as_posix()
            for path in server.rglob("*.py")
            if f"stage_runtime.server.{folder}" in path.read_text() and path.parent.name != folder
        ]
        assert naming == ["modalities.py"]
