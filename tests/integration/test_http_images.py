"""POST /v1/images/generations over a real socket, through the official client where it has words for it."""

from __future__ import annotations

import base64
import io

import openai
import pytest
from PIL import Image

from support.http_stage import HttpStage
from support.scripted import PATIENCE_S


@pytest.fixture(scope="module")
def stage():
    with HttpStage() as stage:
        yield stage


def official(stage: HttpStage) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stage.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


def test_official_client_gets_an_image_of_the_size_it_asked_for(stage: HttpStage) -> None:
    with official(stage) as client:
        answer = client.images.generate(
            prompt="a red circle", model="shapes", size="64x32", extra_body={"seed": 7}
        )
    (image,) = answer.data
    assert image.b64_json
    picture = Image.open(io.BytesIO(base64.b64decode(image.b64_json)))
    assert (picture.format, picture.size, picture.getpixel((0, 0))) == ("PNG", (64, 32), (7, 7, 7))
