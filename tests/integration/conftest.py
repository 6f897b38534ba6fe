"""A served stage for a whole module, and a client of it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from support.http_stage import HttpStage


@pytest.fixture(scope="module")
def stage() -> Iterator[HttpStage]:
    """A stage on a real socket, whose engine draws tiny pictures."""
    with HttpStage() as stage:
        yield stage


@pytest.fixture
def client(stage: HttpStage) -> Iterator[httpx.Client]:
    """A client of the stage."""
    with stage.client() as client:
        yield client
