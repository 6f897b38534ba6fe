"""Device tests share one set of tiny models a session."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stage_runtime.core.request import Request
from support import tiny_models
from support.hub_stage import ask
from support.tiny_models import TinyModel, load_plain

SHAPES = Path(__file__).parents[2] / "models" / "shapes" / "checkpoint"
FAMILIES = (*tiny_models.NAMES, "shapes")


class Family(NamedTuple):
    """A loaded pipeline and small arguments for it."""

    name: str
    pipeline: Any
    base: dict[str, Any]

    def requests(self) -> tuple[Request, Request, Request]:
        """Unlike in seed, prompt, prompt length and steps."""
        return (
            ask(self.base, "a", "a red circle", steps=3, seed=11),
            ask(self.base, "b", "a large green square on a blue background", steps=5, seed=22),
            ask(self.base, "c", "two dogs beside a bed", steps=4, seed=33),
        )


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Family:
    """Each family in turn: tiny random weights, and the trained shapes model."""
    name = request.param
    if name == "shapes":
        base = {"height": 64, "width": 64, "true_cfg_scale": 3.0, "negative_prompt": ""}
        return Family(name, load_plain(SHAPES), base)
    arguments = tiny_models.reference_arguments(name)
    base = {key: value for key, value in arguments.items() if key != "num_inference_steps"}
    return Family(name, load_plain(tiny_model(name)), base)


@pytest.fixture
def copy_of(tiny_model: TinyModel, tmp_path: Path) -> Callable[[str], Path]:
    """A tiny model that a test may break."""
    return lambda name: Path(shutil.copytree(tiny_model(name), tmp_path / name))
