"""Wishes become requests with every argument filled in and checked, or an error that names the client's field."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_api.errors import SpecError
from stage_runtime.core.errors import InvalidRequest
from stage_runtime.core.request import Request, Value
from stage_runtime.pipelines.arguments import build_requests, lay_defaults, small_arguments
from stage_runtime.pipelines.contract import MAX_SEED, Defaults, PipelineRecord, ResolvedModel, Wishes
from stage_runtime.pipelines.records import (
    FLUX,
    PIXART_SIGMA,
    QWEN_IMAGE,
    RECORDS,
    SHAPES,
    STABLE_AUDIO,
    STABLE_DIFFUSION_3,
    WAN,
)

every_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)


def model_of(record: PipelineRecord) -> ResolvedModel:
    return ResolvedModel(record=record, model_index={}, path=Path("model"), defaults=record.defaults)


def build(record: PipelineRecord = SHAPES, **wishes: object) -> list[Request]:
    return build_requests(model_of(record), Wishes(**{"prompt": "a circle", **wishes}), request_id="r")


def refusal(record: PipelineRecord = SHAPES, **wishes: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        build(record, **wishes)
    return caught.value


@every_record
def test_a_prompt_alone_gets_every_default_of_the_record(record: PipelineRecord) -> None:
    (request,) = build(record)
    wished = {
        wish: request.arguments[argument]
        for argument, wish in record.wished.items()
        if argument in request.arguments
    }
    said = {
        name: value
        for name in Defaults.__dataclass_fields__
        if (value := getattr(record.defaults, name)) is not None
    }
    assert wished | said == wished
    assert wished["prompt"] == "a circle"
    assert request.steps == record.defaults.num_inference_steps


@every_record
def test_every_argument_of_a_request_is_one_of_the_pipelines(record: PipelineRecord) -> None:
    (request,) = build(record)
    allowed = record.open_arguments | set(record.constants)
    assert set(request.arguments) <= allowed


def test_what_a_client_says_wins_over_stage_and_record() -> None:
    model = lay_defaults(model_of(SHAPES), Defaults(width=128, num_inference_steps=10))
    (request,) = build_requests(model, Wishes(prompt="a", num_inference_steps=5), request_id="r")
    assert (request.arguments["width"], request.arguments["height"], request.steps) == (128, 64, 5)


def test_zero_is_something_said() -> None:
    (request,) = build(guidance_scale=0.0, seed=0)
    assert (request.arguments["true_cfg_scale"], request.seed) == (0.0, 0)


def test_guidance_goes_to_the_argument_that_the_record_names() -> None:
    assert build(QWEN_IMAGE, guidance_scale=2)[0].arguments["true_cfg_scale"] == 2.0
    assert build(STABLE_DIFFUSION_3, guidance_scale=2)[0].arguments["guidance_scale"] == 2.0


def test_constants_of_the_record_are_in_every_request() -> None:
    (request,) = build(PIXART_SIGMA)
    assert request.arguments["use_resolution_binning"] is False


@pytest.mark.parametrize("given", [None, "", " ", "ugly"])
def test_a_negative_prompt_is_passed_on_only_if_given(given: str | None) -> None:
    """Case B42."""
    (request,) = build(QWEN_IMAGE, negative_prompt=given)
    assert request.arguments.get("negative_prompt") == given
    assert ("negative_prompt" in request.arguments) == (given is not None)


def test_a_model_trained_with_an_empty_negative_prompt_gets_it_when_none_is_given() -> None:
    """Case B42."""
    assert build(SHAPES)[0].arguments["negative_prompt"] == ""
    assert build(SHAPES, negative_prompt="a ring")[0].arguments["negative_prompt"] == "a ring"


@pytest.mark.parametrize(
    ("record", "wishes", "warns"),
    [
        (SHAPES, {"guidance_scale": 1.0}, True),
        (SHAPES, {"guidance_scale": 1.5}, False),
        (FLUX, {}, True),
        (FLUX, {"extra": {"true_cfg_scale": 4.0}}, False),
    ],
)
def test_a_negative_prompt_that_nothing_reads_is_taken_with_a_warning(
    record: PipelineRecord, wishes: dict[str, object], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Case B42."""
    with caplog.at_level(logging.WARNING):
        build(record, negative_prompt="a ring", **wishes)
    assert [entry.message for entry in caplog.records] == ["negative prompt has no effect"] * warns
    assert "a ring" not in caplog.text


def test_n_outputs_are_n_requests_with_seeds_in_a_row() -> None:
    requests = build(n=3, seed=7)
    assert [(r.request_id, r.seed) for r in requests] == [("r-0", 7), ("r-1", 8), ("r-2", 9)]
    assert len({r.key for r in requests}) == 1


def test_a_seed_is_drawn_once_when_none_is_given() -> None:
    drawn = build_requests(model_of(SHAPES), Wishes(prompt="a", n=2), request_id="r", random_seed=lambda: 41)
    assert [request.seed for request in drawn] == [41, 42]


def test_drawn_seeds_differ_and_survive_a_client_that_reads_numbers_as_doubles() -> None:
    seeds = {build()[0].seed for _ in range(20)}
    assert len(seeds) > 1
    assert max(seeds) < 2**53


def test_the_highest_seed_is_the_last_one_of_a_row() -> None:
    assert build(n=2, seed=MAX_SEED - 1)[-1].seed == MAX_SEED
    assert refusal(n=2, seed=MAX_SEED).field == "seed"


def test_a_generators_state_goes_with_the_request() -> None:
    assert build(generator_state=b"state")[0].generator_state == b"state"


@pytest.mark.parametrize(
    ("wishes", "field"),
    [
        ({"generator_state": b"state", "seed": 1}, "seed"),
        ({"generator_state": b"state", "n": 2}, "n"),
        ({"generator_state": b""}, "generator_state"),
        ({"generator_state": bytes(100_000)}, "generator_state"),
    ],
)
def test_a_generators_state_stands_alone_and_is_of_sane_size(wishes: dict[str, object], field: str) -> None:
    assert refusal(**wishes).field == field


@pytest.mark.parametrize(
    ("wishes", "field"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": "42"}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": True}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"num_inference_steps": -1}, "num_inference_steps"),
        ({"num_inference_steps": 100_001}, "num_inference_steps"),
        ({"num_inference_steps": 2.5}, "num_inference_steps"),
        ({"num_inference_steps": "8"}, "num_inference_steps"),
        ({"num_inference_steps": True}, "num_inference_steps"),
        ({"guidance_scale": -1}, "guidance_scale"),
        ({"guidance_scale": 1e6}, "guidance_scale"),
        ({"guidance_scale": float("nan")}, "guidance_scale"),
        ({"guidance_scale": float("inf")}, "guidance_scale"),
        ({"guidance_scale": "3"}, "guidance_scale"),
        ({"guidance_scale": True}, "guidance_scale"),
        ({"width": 0}, "width"),
        ({"width": -8}, "width"),
        ({"height": 65}, "height"),
        ({"height": 264}, "height"),
        ({"height": 64.0}, "height"),
        ({"height": "64"}, "height"),
        ({"prompt": "a\x00b"}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": "x" * 1025}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"negative_prompt": "\udfff"}, "negative_prompt"),
        ({"negative_prompt": "x" * 1025}, "negative_prompt"),
        ({"partial_images": 4}, "partial_images"),
        ({"partial_images": -1}, "partial_images"),
        ({"num_frames": 5}, "num_frames"),
        ({"seconds": 1.0}, "seconds"),
        ({"extra": {"latents": 1}}, "latents"),
        ({"extra": {"generator": None}}, "generator"),
        ({"extra": {"num_images_per_prompt": 2}}, "num_images_per_prompt"),
        ({"extra": {"cleverness": 1}}, "cleverness"),
        ({"extra": {"max_sequence_length": 0}}, "max_sequence_length"),
        ({"extra": {"max_sequence_length": "512"}}, "max_sequence_length"),
        ({"extra": {"max_sequence_length": None}}, "max_sequence_length"),
    ],
    ids=str,
)
def test_what_the_model_cant_do_is_refused_by_field(wishes: dict[str, object], field: str) -> None:
    error = refusal(**wishes)
    assert error.field == field
    assert str(error).startswith(f"{field}: expected ")


def test_a_refused_prompt_is_not_repeated() -> None:
    assert "secret" not in str(refusal(prompt="secret" * 1000))


@pytest.mark.parametrize("prompt", ["", "   ", "x" * 1024, "👩‍👩‍👧‍👦" * 50, "‮right to left", "\r\n\t"])
def test_an_odd_prompt_arrives_unchanged(prompt: str) -> None:
    """Case B56."""
    assert build(prompt=prompt)[0].arguments["prompt"] == prompt


@pytest.mark.parametrize(
    ("width", "nearest"),
    [(1080, "1072 or 1088"), (8, "16"), (4096, "2048"), (99_999, "2048"), (-5, "16"), (2047, "2032 or 2048")],
)
def test_a_wrong_size_is_told_the_step_and_the_nearest_right_ones(width: int, nearest: str) -> None:
    message = str(refusal(QWEN_IMAGE, width=width))
    assert f"expected a multiple of 16 from 16 to 2048 (nearest: {nearest}), got {width}" in message


def test_a_huge_number_makes_no_huge_message() -> None:
    assert len(str(refusal(seed=10**10_000))) < 200


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000, float("nan"), float("-inf")], ids=range(5))
@pytest.mark.parametrize("field", ["guidance_scale", "num_inference_steps", "width", "seed", "n"])
def test_a_number_that_is_no_other_numbers_is_refused_with_its_field(field: str, value: float) -> None:
    assert len(str(refusal(**{field: value}))) < 200


@pytest.mark.parametrize(("frames", "nearest"), [(80, "77 or 81"), (2, "1 or 5"), (160, "157 or 161")])
def test_a_wrong_number_of_frames_is_told_the_nearest_right_ones(frames: int, nearest: str) -> None:
    assert f"(nearest: {nearest})" in str(refusal(WAN, num_frames=frames))


@pytest.mark.parametrize("seconds", [0, -1, 49, float("nan")])
def test_a_length_of_audio_is_bounded(seconds: float) -> None:
    assert refusal(STABLE_AUDIO, seconds=seconds).field == "seconds"


def test_a_size_for_a_pipeline_that_makes_sound_is_refused() -> None:
    assert "can't be told" in str(refusal(STABLE_AUDIO, width=64))


def test_previews_of_anything_but_pictures_are_refused() -> None:
    assert refusal(WAN, partial_images=1).field == "partial_images"


@pytest.mark.parametrize(
    ("name", "value"),
    [("true_cfg_scale", 5.0), ("num_inference_steps", 7), ("width", 128), ("negative_prompt", "a ring")],
)
def test_a_wish_may_come_under_the_pipelines_own_name(name: str, value: Value) -> None:
    assert build(extra={name: value})[0].arguments[name] == value


def test_a_fault_is_told_under_the_name_that_the_client_used() -> None:
    assert refusal(extra={"true_cfg_scale": 500.0}).field == "true_cfg_scale"
    assert refusal(guidance_scale=500.0).field == "guidance_scale"


def test_an_argument_of_one_pipeline_is_passed_on_by_name() -> None:
    (request,) = build(FLUX, extra={"true_cfg_scale": 4, "prompt_2": "in oil"})
    assert (request.arguments["true_cfg_scale"], request.arguments["prompt_2"]) == (4.0, "in oil")


@pytest.mark.invariant("BATCH-INV-001")
@pytest.mark.parametrize(
    ("wishes", "together"),
    [
        ({"prompt": "another", "seed": 9}, True),
        ({"num_inference_steps": 3}, True),
        ({"guidance_scale": 1.0}, True),
        ({"negative_prompt": "a ring"}, True),
        ({"width": 128}, False),
        ({"height": 128}, False),
        ({"extra": {"max_sequence_length": 64}}, False),
    ],
    ids=str,
)
def test_requests_share_a_wave_exactly_when_their_shared_arguments_are_equal(
    wishes: dict[str, object], together: bool
) -> None:
    assert (build()[0].key == build(**wishes)[0].key) is together


def test_the_order_in_which_a_client_names_things_makes_no_other_key() -> None:
    first = build(STABLE_DIFFUSION_3, extra={"clip_skip": 1, "max_sequence_length": 64})
    second = build(STABLE_DIFFUSION_3, extra={"max_sequence_length": 64, "clip_skip": 1})
    assert first[0].key == second[0].key


def test_requests_of_one_ask_share_no_arguments_object() -> None:
    first, second = build(n=2)
    assert first.arguments is not second.arguments


@pytest.mark.parametrize(
    ("record", "wishes", "pixels"),
    [
        (SHAPES, {}, 64 * 64),
        (WAN, {"width": 32, "height": 32, "num_frames": 5}, 32 * 32 * 5),
        (STABLE_AUDIO, {"seconds": 2.0}, 88_200),
        (STABLE_AUDIO, {}, 48 * 44_100),
    ],
)
def test_the_work_of_a_request_is_sized_by_its_output(
    record: PipelineRecord, wishes: dict[str, object], pixels: int
) -> None:
    assert build(record, **wishes)[0].pixels == pixels


@pytest.mark.parametrize(
    ("steps", "asked", "at"),
    [
        (20, 0, ()),
        (20, 1, (10,)),
        (20, 3, (5, 10, 15)),
        (4, 3, (1, 2, 3)),
        (3, 3, (1, 2)),
        (2, 3, (1,)),
        (1, 3, ()),
    ],
)
def test_previews_are_spread_evenly_and_never_at_the_end(steps: int, asked: int, at: tuple[int, ...]) -> None:
    assert build(num_inference_steps=steps, partial_images=asked)[0].preview_steps == at


@given(steps=st.integers(1, 1000), asked=st.integers(0, 3))
def test_preview_steps_rise_and_lie_between_the_first_and_the_last_step(steps: int, asked: int) -> None:
    at = build(num_inference_steps=steps, partial_images=asked)[0].preview_steps
    assert sorted(set(at)) == list(at)
    assert all(1 <= step < steps for step in at)
    assert len(at) == min(asked, steps - 1)


@given(wishes=st.fixed_dictionaries({}, optional={
    name: st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
    for name in ("n", "width", "height", "num_inference_steps", "guidance_scale", "seed", "prompt", "negative_prompt")
}))  # fmt: skip
def test_whatever_comes_in_gives_requests_or_an_invalid_request(wishes: Mapping[str, object]) -> None:
    try:
        requests = build(**wishes)
    except InvalidRequest as error:
        blamed, requests = {error.field}, []
    else:
        blamed = set()
    assert blamed <= set(wishes)
    assert all(0 <= request.seed <= MAX_SEED for request in requests)


@every_record
def test_the_smallest_telling_request_is_small_and_guided(record: PipelineRecord) -> None:
    arguments = small_arguments(model_of(record), "a circle", 2)
    assert arguments["num_inference_steps"] == 2
    assert arguments.get(str(record.negative_prompt.argument), "") == ""
    assert all(int(arguments[side] or 0) <= 128 for side in ("width", "height") if side in arguments)


@pytest.mark.parametrize(
    ("defaults", "path"),
    [
        (Defaults(width=100), "spec.model.defaults.width"),
        (Defaults(num_inference_steps=5000), "spec.model.defaults.numInferenceSteps"),
        (Defaults(guidance_scale=-1.0), "spec.model.defaults.guidanceScale"),
        (Defaults(negative_prompt="\x00"), "spec.model.defaults.negativePrompt"),
        (Defaults(num_frames=5), "spec.model.defaults.num_frames"),
    ],
)
def test_defaults_of_a_stage_that_the_model_cant_do_are_a_fault_of_its_spec(
    defaults: Defaults, path: str
) -> None:
    with pytest.raises(SpecError) as caught:
        lay_defaults(model_of(SHAPES), defaults)
    assert [fault.path for fault in caught.value.faults] == [path]
