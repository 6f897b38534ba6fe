"""Which bodies are well-formed, whatever the model."""

from __future__ import annotations

import math
from typing import Any

import pytest
from openai.types.image_edit_params import ImageEditParamsBase
from openai.types.image_generate_params import ImageGenerateParamsBase
from pydantic import ValidationError

from stage_runtime.server.images.schema import MAX_PROMPT_CHARS, ImageRequest


def faults(**fields: Any) -> list[str]:
    """Names of the fields that are refused, in order."""
    with pytest.raises(ValidationError) as caught:
        ImageRequest.model_validate({"prompt": "a red circle", **fields})
    return [
        str(fault["loc"][0] if fault["loc"] else fault["ctx"]["field"]) for fault in caught.value.errors()
    ]


def parsed(**fields: Any) -> ImageRequest:
    return ImageRequest.model_validate({"prompt": "a red circle", **fields})


def test_a_prompt_alone_is_enough() -> None:
    body = parsed()
    assert (body.count, body.dimensions, body.file_format, body.compression) == (1, None, "png", 100)


@pytest.mark.parametrize("field", [name for name in ImageRequest.model_fields if name != "prompt"])
def test_null_means_absent(field: str) -> None:
    assert parsed(**{field: None}) == parsed()


OPENAIS = set(ImageGenerateParamsBase.__annotations__) | set(ImageEditParamsBase.__annotations__) | {"stream"}


@pytest.mark.parametrize("field", sorted(OPENAIS))
def test_every_field_of_openais_is_known_and_one_that_is_not_carried_out_is_told_so(field: str) -> None:
    assert field in ImageRequest.model_fields
    if ImageRequest.model_fields[field].annotation is type(None):
        with pytest.raises(ValidationError, match="not supported: "):
            parsed(**{field: "a value"})


def test_seed_zero_is_a_seed() -> None:
    assert parsed(seed=0).seed == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("seed", bad) for bad in (-1, 2**63, 2**64, "42", 1.5, True)),
        *(("num_inference_steps", bad) for bad in (0, -1, 100_001, 2.5, "8", True, math.nan)),
        *(("guidance_scale", bad) for bad in (-1, 1e6, math.nan, math.inf, -math.inf, "4", True)),
        *(("n", bad) for bad in (0, 11, -1, "2", 1.5, True, [])),
        *(
            ("size", bad)
            for bad in (
                "0x512",
                "1024x",
                "1024X1024",
                "x",
                "",
                "64x64 ",
                "-64x64",
                "1e2x64",
                64,
                "٦٤x٦٤",
                "64x64\n",
            )
        ),
        *(("output_compression", bad) for bad in (-1, 101, "80", True)),
        *(("partial_images", bad) for bad in (-1, 4, "1", True)),
        *(("stream", bad) for bad in ("true", 1, 0)),
        ("output_format", "gif"),
        ("output_format", "PNG"),
        ("response_format", "url"),
        ("model", 7),
        ("user", 7),
        ("negative_prompt", ["a"]),
        ("background", "transparent"),
        ("quality", "hd"),
        ("style", "vivid"),
        ("moderation", "low"),
        ("strength", 0.5),
        ("Prompt", "a"),
    ],
)
def test_a_wrong_value_is_refused_by_its_fields_name(field: str, value: Any) -> None:
    assert faults(**{field: value}) == [field]


@pytest.mark.parametrize("prompt", [None, 7, ["a"], "\ud800", "a" * (MAX_PROMPT_CHARS + 1)])
def test_a_prompt_that_is_no_text_or_too_long_is_refused(prompt: Any) -> None:
    """Case B56."""
    assert faults(prompt=prompt) == ["prompt"]


@pytest.mark.parametrize("prompt", ["", "   ", "\0", "👩‍👩‍👧‍👦" * 500, "\u202eabc", "a" * MAX_PROMPT_CHARS])
def test_an_odd_prompt_is_kept_as_it_is(prompt: str) -> None:
    """Case B56."""
    assert parsed(prompt=prompt).prompt == prompt


@pytest.mark.parametrize(
    "field", [{"background": "auto"}, {"background": "opaque"}, {"quality": "auto"}, {"moderation": "auto"}]
)
def test_a_neutral_value_of_what_cannot_be_chosen_is_accepted(field: dict[str, str]) -> None:
    assert parsed(**field).prompt == "a red circle"


def test_all_faults_are_found_at_once_in_the_order_of_the_schema() -> None:
    assert faults(seed=-1, n=0, size="big", colour="red") == ["n", "size", "seed", "colour"]


def test_previews_without_a_stream_are_refused() -> None:
    assert faults(partial_images=1) == ["partial_images"]
    assert parsed(partial_images=0).count == 1
    assert parsed(partial_images=1, stream=True).partial_images == 1


def test_compressing_png_is_refused_since_it_is_lossless() -> None:
    assert faults(output_compression=80) == ["output_compression"]
    assert parsed(output_compression=100).compression == 100
    assert parsed(output_compression=0, output_format="webp").compression == 0


def test_a_whole_number_written_with_a_point_is_that_number() -> None:
    assert parsed(n=2.0).n == 2
    assert parsed(guidance_scale=3).guidance_scale == 3.0


def test_auto_leaves_the_size_to_the_model() -> None:
    assert parsed(size="auto").dimensions is None
    assert parsed(size="64x32").dimensions == (64, 32)


def test_a_fault_does_not_repeat_what_the_client_sent() -> None:
    with pytest.raises(ValidationError) as caught:
        ImageRequest.model_validate({"prompt": ["my secret"]})
    assert "secret" not in str(caught.value)


def test_the_json_schema_holds_each_bound() -> None:
    fields = ImageRequest.model_json_schema()["properties"]
    numbers = {name: field["anyOf"][0] for name, field in fields.items() if "anyOf" in field}
    assert {
        name: (bounds["minimum"], bounds["maximum"])
        for name, bounds in numbers.items()
        if bounds["type"] in ("integer", "number")
    } == {
        "n": (1, 10),
        "seed": (0, 2**63 - 1),
        "num_inference_steps": (1, 1000),
        "guidance_scale": (0, 100),
        "output_compression": (0, 100),
        "partial_images": (0, 3),
    }
