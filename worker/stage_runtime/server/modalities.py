"""Which endpoints a stage has: those of what its model makes. A new modality is a folder and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from stage_runtime.core.errors import ModelError
from stage_runtime.core.outcome import Modality
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.server.http.endpoints import Endpoints, Served
from stage_runtime.server.images.endpoints import ImageEndpoints

ENDPOINTS: Final[Mapping[Modality, Callable[[Served], Endpoints]]] = {Modality.IMAGE: ImageEndpoints}


def endpoints_of(model: ResolvedModel) -> Callable[[Served], Endpoints]:
    """What makes the endpoints for `model`.

    Raises: ModelError when nothing here could send what it makes, which no request should have to find out.
    """
    record = model.record
    if (endpoints := ENDPOINTS.get(record.modality)) is None:
        raise ModelError(
            f"{record.pipeline_class} makes {record.modality}, and over HTTP this version serves "
            f"{', '.join(ENDPOINTS)} only; from Python, Omni draws with it"
        )
    return endpoints
