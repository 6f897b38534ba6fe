"""POST /v1/images/generations over a real socket, through the official client where it has words for it."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator

import httpx
import openai
import pytest
from openai.types import ImageGenCompletedEvent, ImageGenPartialImageEvent, ImagesResponse
from PIL import Image

from stage_api.pod_facts import PodFacts
from support.http_stage import HttpStage
from support.scripted import PATIENCE_S

URL = "/v1/images/generations"


@pytest.fixture
def official(stage: HttpStage) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{stage.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S
    ) as client:
        yield client


def opened(base64_image: str | None) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(base64_image or "", validate=True)))


def colours(images: list[str | None]) -> list[tuple[int, ...]]:
    """Red of the first pixel of each image: its seed, with the scripted executor."""
    return [opened(image).getpixel((0, 0))[0] for image in images]


# A whole answer


def test_official_client_gets_an_image_of_the_size_it_asked_for(official: openai.OpenAI) -> None:
    answer = official.images.generate(
        prompt="a red circle", model="shapes", size="64x32", extra_body={"seed": 7}
    )
    (image,) = answer.data or []
    picture = opened(image.b64_json)
    assert (picture.format, picture.size, picture.getpixel((0, 0))) == ("PNG", (64, 32), (7, 7, 7))
    assert (answer.size, answer.output_format, answer.background) == ("64x32", "png", "opaque")


def test_n_images_come_in_the_order_of_their_seeds(official: openai.OpenAI) -> None:
    answer = official.images.generate(prompt="a red circle", n=10, extra_body={"seed": 40})
    assert colours([image.b64_json for image in answer.data or []]) == list(range(40, 50))


def test_the_answer_is_what_the_official_types_say(client: httpx.Client) -> None:
    answer = client.post(URL, json={"prompt": "a", "n": 2, "size": "auto"}).json()
    ImagesResponse.model_validate(answer, strict=True)
    assert answer["size"] == "64x64"


def test_the_answer_tells_the_seeds_so_that_the_same_images_can_be_asked_for_again(
    client: httpx.Client,
) -> None:
    drawn = client.post(URL, json={"prompt": "a", "n": 2, "seed": None}).json()
    again = client.post(URL, json={"prompt": "a", "n": 2, "seed": drawn["seeds"][0]}).json()
    assert again["seeds"] == drawn["seeds"] == [drawn["seeds"][0], drawn["seeds"][0] + 1]
    assert again["data"] == drawn["data"]


def test_seed_zero_is_used_as_it_is(client: httpx.Client) -> None:
    """Case B15."""
    answer = client.post(URL, json={"prompt": "a", "seed": 0}).json()
    assert answer["seeds"] == [0]
    assert colours([answer["data"][0]["b64_json"]]) == [0]


@pytest.mark.parametrize("output_format", ["png", "jpeg", "webp"])
def test_bytes_are_of_the_format_that_was_asked_for(client: httpx.Client, output_format: str) -> None:
    """Case B54."""
    answer = client.post(URL, json={"prompt": "a", "output_format": output_format}).json()
    assert answer["output_format"] == output_format
    assert opened(answer["data"][0]["b64_json"]).format == output_format.upper()


# Events


def test_official_client_gets_each_preview_and_then_the_image(official: openai.OpenAI) -> None:
    events = list(
        official.images.generate(
            prompt="a",
            stream=True,
            partial_images=3,
            size="64x32",
            extra_body={"seed": 9, "num_inference_steps": 8},
        )
    )
    assert [type(event) for event in events] == [ImageGenPartialImageEvent] * 3 + [ImageGenCompletedEvent]
    assert [event.partial_image_index for event in events if event.type.endswith("partial_image")] == [
        0,
        1,
        2,
    ]
    # The scripted executor paints a preview in the number of its step.
    assert colours([event.b64_json for event in events]) == [2, 4, 6, 9]
    assert {opened(event.b64_json).size for event in events} == {(64, 32)}


def test_events_are_what_the_official_types_say(official: openai.OpenAI) -> None:
    for event in official.images.generate(prompt="a", stream=True, partial_images=1, output_format="webp"):
        type(event).model_validate(event.model_dump(exclude_unset=True), strict=True)
        assert (event.output_format, event.size, event.background) == ("webp", "64x64", "opaque")


def test_a_stream_without_previews_is_the_image_alone(official: openai.OpenAI) -> None:
    (event,) = official.images.generate(prompt="a", stream=True)
    assert isinstance(event, ImageGenCompletedEvent)


def test_a_stream_of_several_images_says_which_one_each_event_is_about(client: httpx.Client) -> None:
    body = {"prompt": "a", "n": 3, "seed": 5, "stream": True, "partial_images": 1, "num_inference_steps": 4}
    events = events_of(client.post(URL, json=body).text)
    done = [event for event in events if event["type"] == "image_generation.completed"]
    assert {event["image_index"]: event["seed"] for event in done} == {0: 5, 1: 6, 2: 7}
    assert sorted(event["image_index"] for event in events if event not in done) == [0, 1, 2]


def test_a_stream_is_closed_by_an_end_marker(client: httpx.Client) -> None:
    answer = client.post(URL, json={"prompt": "a", "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.text.endswith("\n\ndata: [DONE]\n\n")


def events_of(text: str) -> list[dict[str, object]]:
    """The data of each event, but for the end marker; each event's name is its data's type."""
    events = []
    for block in text.split("\n\n")[:-2]:
        name, data = block.split("\n")
        event = httpx.Response(200, text=data.removeprefix("data: ")).json()
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


# Models


def test_official_client_finds_the_served_model(official: openai.OpenAI) -> None:
    (model,) = official.models.list().data
    assert (model.id, model.object, model.owned_by) == ("shapes", "model", "omnistage")
    assert official.models.retrieve("shapes") == model


def test_the_served_model_says_what_was_found_out_about_it(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert model["pipeline"] == "QwenImagePipeline"
    assert model["defaults"] == {
        "width": 64,
        "height": 64,
        "num_inference_steps": 20,
        "guidance_scale": 3.0,
    }
    assert model["limits"]["max_side"] == 256
    assert model["capability"]["batches"] is True
    told = PodFacts.of(client.get("/v1/models").json())
    assert told is not None, "whoever watches the stage reads it there"
    assert told.capability.components[0].name == model["capability"]["components"][0]["name"]
    assert model["capability"]["components"] == [
        {"name": "transformer.forward", "merges": True, "ragged": False, "reason": ""}
    ]


def test_a_wrong_model_is_not_found(official: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        official.images.generate(prompt="a", model="dall-e-3")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError) as caught:
        official.models.retrieve("org/other")
    assert caught.value.code == "model_not_found"
