"""What a modality's folder brings to the server, and what it is given for it.

The folders are registered in `server/modalities.py`; the application knows none of them by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fastapi import APIRouter

from stage_runtime.hosting.client import StageClient
from stage_runtime.metrics import Metrics
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.server.http.drain import Drain
from stage_runtime.server.http.finishing import Finishing


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The stage that answers, and who has to know of each answer."""

    stage: StageClient
    model: ResolvedModel
    name: str
    """Of the model, as clients call it."""
    metrics: Metrics
    drain: Drain
    finishing: Finishing


class Endpoints(Protocol):
    """The endpoints of one modality, made of a `Served`. Used on the event loop that serves them."""

    def routes(self) -> APIRouter:
        """Their paths. Each raises StageError for what it refuses, which the application words."""

    def close(self) -> None:
        """Give back threads and whatever else is held. Called once, when the server has ended."""
