"""A model outside diffusers over HTTP and from Python: served, batched, refused and previewed like any other."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from digits_model.reader import read_picture
from stage_api.errors import SpecError
from stage_api.manifest import parse_stage
from stage_runtime import Omni
from stage_runtime.core.errors import InvalidRequest
from stage_runtime.executor.uni import UniExecutor
from support.builders import EngineBuilder
from support.chunked_model import LARGE_SIDE
from support.http_stage import IMAGES_URL, SERVED_NAME, HttpStage
from support.stage_process import ROOT
from support.step_models import resolved, step_worker

FEW = {"num_inference_steps": 8}
CLIPS = """
apiVersion: omnistage.io/v1alpha1
kind: DiffusionStage
metadata: {name: clips}
spec:
  model: {source: {embedded: digits}}
  engine:
    {dtype: float32, device: cpu, mode: request, maxNumSeqs: 2, extensions: {runner: "RUNNER"}}
"""


@pytest.fixture(scope="module")
def served() -> Iterator[HttpStage]:
    engine = EngineBuilder().step_mode().slots(8)
    with HttpStage(engine, lambda: UniExecutor(step_worker), model=resolved()) as stage:  # type: ignore[arg-type,return-value]
        yield stage


@pytest.fixture(scope="module")
def omni() -> Iterator[Omni]:
    with Omni("digits", max_num_seqs=4, streaming_output=True) as omni:
        yield omni


def picture_of(b64: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(b64))))


def ask(prompt: str, **more: object) -> dict[str, object]:
    return {"model": SERVED_NAME, "prompt": prompt, "size": "32x32", "seed": 1, **FEW, **more}


def test_pictures_asked_for_at_once_show_each_what_was_asked_for(served: HttpStage) -> None:
    asked = {"a red 7": (7, "red"), "a cyan 2": (2, "cyan"), "the number zero, white": (0, "white")}
    answers = {prompt: served.post(ask(prompt)) for prompt in asked}
    for prompt, (digit, colour) in asked.items():
        answer = answers[prompt].result()
        assert answer.status_code == 200, answer.text
        assert read_picture(picture_of(answer.json()["data"][0]["b64_json"])).shows(digit, colour)
    served.wait_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_it_cant_draw_is_a_400_that_names_the_prompt(served: HttpStage, stream: bool) -> None:
    answer = served.post(ask("a red circle", stream=stream)).result()
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "prompt"
    assert "at most one digit" in error["message"]


@pytest.mark.parametrize(
    ("more", "field"), [({"size": "64x64"}, "size"), ({"negative_prompt": "blue"}, "negative_prompt")]
)
def test_what_its_record_doesnt_allow_is_refused_before_it_runs(
    served: HttpStage, more: dict[str, object], field: str
) -> None:
    answer = served.post(ask("a red 7", **more)).result()
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in (field, "width", "height")


def test_previews_are_streamed_as_the_picture_forms(served: HttpStage) -> None:
    body = ask("a yellow 3", stream=True, partial_images=2)
    with served.client() as client, client.stream("POST", IMAGES_URL, json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    kinds = [event["type"].rsplit(".", 1)[-1] for event in events]
    assert kinds == ["partial_image", "partial_image", "completed"]
    assert read_picture(picture_of(events[-1]["b64_json"])).shows(3, "yellow")


def test_the_models_list_says_what_it_can_do(served: HttpStage) -> None:
    told = json.dumps(httpx.get(f"{served.url}/v1/models").json())
    assert "DigitsModel" in told
    assert "model.denoise_step" in told


def test_omni_draws_it_by_name(omni: Omni) -> None:
    pictures = omni.generate(["a green 4", "a purple 9"], seed=3, output_type="np", **FEW)
    readings = [read_picture((one * 255).round().astype(np.uint8)) for one in pictures]
    assert [(reading.digit, reading.colour) for reading in readings] == [(4, "green"), (9, "purple")]


def test_omni_tells_of_a_prompt_that_it_cant_draw_and_draws_on(omni: Omni) -> None:
    with pytest.raises(InvalidRequest, match="prompt: expected at most one digit"):
        omni.generate(["a green 4", "a dog"], **FEW)
    assert len(omni.generate("7", **FEW)) == 1


def test_a_model_that_makes_no_chunks_gives_its_final_output_only(omni: Omni) -> None:
    told: list[int] = []
    assert len(omni.generate(["7", "a red 8"], on_chunk=lambda place, _: told.append(place), **FEW)) == 2
    assert told == []


@pytest.mark.parametrize(
    "where", [{"executor": "uni"}, {"executor": "mp", "process": "child"}], ids=["here", "over two processes"]
)
def test_chunks_come_before_their_whole_from_wherever_the_model_runs(
    where: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / one) for one in ("crds", "worker", "tests")))
    manifest = tmp_path / "clips.yaml"
    manifest.write_text(CLIPS.replace("RUNNER", "support.chunked_model:ClipRunner"))
    told: list[tuple[int, Any]] = []
    wholes: dict[int, int] = {}
    with Omni(manifest, streaming_output=True, **where) as omni:
        made = omni.generate(
            ["7", "8"],
            seed=1,
            num_inference_steps=5,
            output_type="np",
            on_chunk=lambda place, piece: told.append((place, piece)),
            on_picture=lambda place, _: wholes.update({place: len(told)}),
        )
    for place, whole in enumerate(made):
        pieces = [piece for of, piece in told[: wholes[place]] if of == place]
        assert [piece.shape for piece in pieces] == [(2, LARGE_SIDE, LARGE_SIDE, 3)] * 2
        np.testing.assert_array_equal(np.concatenate(pieces), whole[:4])
        assert len(whole) == 5
    assert len(told) == 4


@pytest.mark.parametrize("asked", [{"mode": "step"}, {"streaming_output": True}], ids=["mode", "streaming"])
def test_steps_asked_of_a_model_that_has_none_end_the_start_at_the_field(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    manifest = tmp_path / "clips.yaml"
    manifest.write_text(CLIPS.replace("RUNNER", "support.light_runner:OneGoRunner"))
    with pytest.raises(
        SpecError, match=r"spec\.engine\.mode: expected request, since light has no"
    ) as refused:
        Omni(manifest, executor="uni", **asked)
    assert [fault.path for fault in refused.value.faults] == ["spec.engine.mode"]
    with Omni(manifest, executor="uni") as whole:
        assert not whole.capability.steps


def test_chunks_are_refused_where_steps_or_the_switch_are_missing() -> None:
    with pytest.raises(
        SpecError, match=r"spec\.engine\.mode: expected step, for streaming_output, got request"
    ):
        Omni("digits", mode="request", streaming_output=True, load=False)
    with pytest.raises(SpecError, match="streaming_output: expected true or false"):
        Omni("digits", streaming_output="yes", load=False)  # type: ignore[arg-type]
    with Omni("digits", load=False) as plain, pytest.raises(InvalidRequest, match="on_chunk") as refused:
        plain.generate("7", on_chunk=lambda *_: None)
    assert refused.value.field == "on_chunk"


def test_halves_of_its_guidance_on_two_ranks_are_refused_before_anything_loads() -> None:
    from stage_api.config import StageConfig
    from stage_runtime.assemble_rank import features_of

    stage = parse_stage(
        {
            "apiVersion": "omnistage.io/v1alpha1",
            "kind": "DiffusionStage",
            "metadata": {"name": "split"},
            "spec": {"model": {"source": {"embedded": "digits"}}, "parallelism": {"cfg": 2}},
        }
    )
    with pytest.raises(SpecError, match=r"spec.parallelism.cfg: expected 1, since DigitsModel"):
        features_of(StageConfig.from_stage(stage), resolved())
