"""The tiny models as a fixture: each is made at most once a session.

A test module asks for it with `pytest_plugins = ("support.tiny_fixtures",)`, or conftest.py does so for all.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.tiny_models import TinyModel


def pytest_configure(config: pytest.Config) -> None:
    """Let through what the schedulers of diffusers themselves do under numpy 2."""
    config.addinivalue_line(
        "filterwarnings", "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
    )


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """`tiny_model(name)` gives the folder of a tiny model of `support.tiny_models.NAMES`, to be read only."""
    from support import tiny_models

    built: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in built:
            built[name] = tiny_models.build(name, tmp_path_factory.mktemp("tiny") / name)
        return built[name]

    return folder_of
