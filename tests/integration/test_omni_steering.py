"""A model that is steered from Python: the same answers from one process and from ranks of their own."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from stage_api.errors import SpecError
from stage_runtime import Omni
from stage_runtime.core.errors import InvalidRequest
from support.stage_process import PATIENCE_S

pytestmark = pytest.mark.timeout(300)

TESTS = Path(__file__).parents[1]
PROMPT = "a large red circle in the center on a white background"


@pytest.fixture(scope="module", params=["uni", "mp"])
def omni(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Omni]:
    """The shapes model with an extension, in this process and in one of its own."""
    manifest = tmp_path_factory.mktemp("stage") / "stage.yaml"
    manifest.write_text(yaml.safe_dump(_stage(request.param)))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(TESTS))
        with Omni(manifest) as loaded:
            yield loaded


def _stage(executor: str) -> dict[str, Any]:
    engine = {
        "dtype": "float32",
        "executor": executor,
        "extensions": {"worker": "support.own_tools:Tools"},
        "warmup": [{"width": 64, "height": 64}],
    }
    return {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "DiffusionStage",
        "metadata": {"name": "steered"},
        "spec": {"model": {"source": {"embedded": "shapes"}}, "engine": engine},
    }


def drawn(omni: Omni, steps: int = 2) -> np.ndarray:
    return np.asarray(omni.generate(PROMPT, seed=5, num_inference_steps=steps)[0])


def test_what_waits_in_a_pause_is_drawn_after_it(omni: Omni) -> None:
    want = drawn(omni)
    omni.pause()
    assert omni.health()[0].paused
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(drawn, omni)
        assert omni.health()[0].paused
        assert not waiting.done()
        omni.resume()
        assert np.array_equal(waiting.result(PATIENCE_S), want)


def test_a_picture_that_a_sleep_interrupts_is_the_same_picture(omni: Omni) -> None:
    want = drawn(omni, steps=20)
    slept: list[tuple[int, ...]] = []

    def nap(done: int, _total: int) -> None:
        if done >= 2 and not slept:
            slept.append(omni.sleep(2))
            slept.append(omni.wake())

    got = omni.generate(PROMPT, seed=5, num_inference_steps=20, progress=nap)[0]
    assert np.array_equal(np.asarray(got), want)
    assert slept[0] == slept[1] != (0,)


def test_resuming_what_sleeps_is_refused_in_words(omni: Omni) -> None:
    omni.sleep()
    with pytest.raises(InvalidRequest, match="wake"):
        omni.resume()
    omni.wake()
    assert not omni.health()[0].asleep


def test_a_profile_is_written_where_it_was_asked_for(omni: Omni, tmp_path: Path) -> None:
    omni.start_profile(tmp_path / "traces")
    drawn(omni)
    (path,) = omni.stop_profile()
    assert path.parent == tmp_path / "traces"
    assert b"aten::" in gzip.decompress(path.read_bytes())
    with pytest.raises(InvalidRequest, match="no profile"):
        omni.stop_profile()


def test_methods_of_the_extension_take_and_give_tensors(omni: Omni) -> None:
    assert omni.invoke("rank") == (0,)
    (answer,) = omni.invoke("doubled", tensor=torch.tensor([1.5, 2.5], dtype=torch.bfloat16))
    assert torch.equal(answer["twice"], torch.tensor([3.0, 5.0], dtype=torch.bfloat16))
    with pytest.raises(InvalidRequest, match="expected one of doubled, rank"):
        omni.invoke("missing")


@pytest.mark.parametrize("level", [0, 3, True, "deep"])
def test_a_level_that_does_not_exist_is_refused(omni: Omni, level: Any) -> None:
    with pytest.raises(InvalidRequest, match="level"):
        omni.sleep(level)


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_an_extension_that_can_not_be_had_stops_the_start(executor: str, tmp_path: Path) -> None:
    stage = _stage(executor)
    stage["spec"]["engine"]["extensions"] = {"worker": "no.such:Tools", "runner": "collections:Counter"}
    (tmp_path / "stage.yaml").write_text(yaml.safe_dump(stage))
    with pytest.raises(SpecError, match=r"extensions\.worker") as refused:
        Omni(tmp_path / "stage.yaml")
    assert len(refused.value.faults) == 2


def test_an_executor_that_is_none_is_refused() -> None:
    with pytest.raises(SpecError, match="methods of an Executor"):
        Omni("shapes", executor="spam")
