"""`Omni` in this process: order, names, seeds and generators as in diffusers, and clear refusals of the rest.

Two of them live here at once, one running requests alone and one together.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shapes_model.checker import check_picture
from stage_api.errors import SpecError
from stage_runtime import Omni
from stage_runtime.core.errors import InvalidRequest, ModelError, NotAdmitting
from stage_runtime.engine.phase import Phase
from support.stage_process import CHECKPOINT, EXAMPLE, PATIENCE_S
from support.tiny_models import load_plain

pytestmark = pytest.mark.timeout(300)

PROMPTS = [
    "a large red circle in the center on a white background",
    "a small green triangle below a large yellow heart on a purple background",
    "a large blue square at the top",
]
FEW: dict[str, Any] = {"num_inference_steps": 2}


@pytest.fixture(scope="module")
def alone() -> Iterator[Omni]:
    with Omni("shapes") as omni:
        yield omni


@pytest.fixture(scope="module")
def together() -> Iterator[Omni]:
    with Omni(CHECKPOINT, max_num_seqs=4, mode="request", dtype=torch.float32) as omni:
        yield omni


@pytest.fixture(scope="module")
def plain() -> Any:
    return load_plain(CHECKPOINT)


def test_pictures_come_in_the_order_of_their_prompts(together: Omni) -> None:
    pictures = together.generate(PROMPTS, seed=11)
    right = [check_picture(np.asarray(one), prompt).ok for one, prompt in zip(pictures, PROMPTS, strict=True)]
    assert sum(right) >= 2  # the model errs in a few of a hundred
    assert not check_picture(np.asarray(pictures[0]), PROMPTS[1]).ok


def test_pictures_of_one_prompt_stand_together_and_tell_their_seeds(alone: Omni) -> None:
    pictures = alone.generate(PROMPTS[:2], num_images_per_prompt=2, seed=7, **FEW)
    assert [one.info["seed"] for one in pictures] == [7, 8, 9, 10]
    again = alone.generate(PROMPTS[:2], num_outputs_per_prompt=2, seed=[7, 9], output_type="np", **FEW)
    for one, other in zip(pictures, again, strict=True):
        assert (other.dtype, other.shape) == (np.float32, (64, 64, 3))
        np.testing.assert_array_equal(np.asarray(one), (other * 255).round())


def test_one_prompt_gives_a_list_too_and_none_an_empty_one(alone: Omni) -> None:
    (one,) = alone.generate(PROMPTS[0], width=32, height=64, **FEW)
    assert one.size == (32, 64)
    assert alone.generate([]) == []


def test_a_generator_is_taken_as_its_state_and_draws_what_diffusers_draws(alone: Omni, plain: Any) -> None:
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    torch.rand(5, generator=generators[1])
    before = [one.get_state() for one in generators]
    pictures = alone.generate(PROMPTS[:2], generator=generators, true_cfg_scale=2.0, **FEW)
    assert all(torch.equal(one.get_state(), state) for one, state in zip(generators, before, strict=True))
    assert all("seed" not in one.info for one in pictures)
    for prompt, generator, got in zip(PROMPTS, generators, pictures, strict=False):
        want = plain(
            prompt, negative_prompt="", true_cfg_scale=2.0, height=64, width=64, generator=generator, **FEW
        )
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want.images[0]))


def test_together_is_alone_but_for_what_the_size_of_a_batch_changes(alone: Omni, together: Omni) -> None:
    assert together.capability.batches
    for one, other in zip(
        alone.generate(PROMPTS, seed=0, output_type="np", **FEW),
        together.generate(PROMPTS, seed=0, output_type="np", **FEW),
        strict=True,
    ):
        assert np.abs(one - other).max() <= 1.5 / 255


def test_the_pipelines_own_name_for_guidance_says_the_same(alone: Omni) -> None:
    ours, own, other = (
        np.asarray(alone.generate(PROMPTS[0], seed=0, **FEW, **guidance)[0])
        for guidance in ({"guidance_scale": 5.0}, {"true_cfg_scale": 5.0}, {"guidance_scale": 1.0})
    )
    assert np.array_equal(ours, own)
    assert not np.array_equal(ours, other)


def test_each_prompt_may_have_its_own_negative_prompt(alone: Omni) -> None:
    prompts, negatives = [PROMPTS[0]] * 2, ["", "a large red circle"]
    one, other = alone.generate(prompts, negative_prompt=negatives, seed=[3, 3], **FEW)
    assert not np.array_equal(np.asarray(one), np.asarray(other))


def test_progress_counts_the_steps_of_all_pictures(together: Omni) -> None:
    told: list[tuple[int, int]] = []
    together.generate(PROMPTS, seed=0, num_inference_steps=3, progress=lambda *steps: told.append(steps))
    assert told == sorted(told)
    assert told[-1] == (9, 9)
    assert {total for _, total in told} == {9}


@pytest.mark.parametrize(
    ("arguments", "field", "complaint"),
    [
        ({"callback_on_step_end": print}, "callback_on_step_end", "got a builtin_function_or_method"),
        ({"latents": torch.zeros(1)}, "latents", "got a Tensor"),
        ({"output_type": "latent"}, "output_type", "expected pil or np, for image, got 'latent'"),
        ({"return_dict": False}, "return_dict", "expected"),
        ({"no_such_thing": 1}, "no_such_thing", "expected an argument of QwenImagePipeline"),
        ({"generator": torch.randn}, "generator", "a torch.Generator or a list of them"),
        ({"generator": [7, 8]}, "generator", "a list of torch.Generator, got a int in it"),
        ({"generator": torch.Generator()}, "generator", "one for each of the 2 pictures, got 1"),
        ({"generator": torch.Generator(), "seed": 1}, "seed", "either a seed or a generator, got both"),
        ({"seed": "7"}, "seed", "a whole number 0..9223372036854775807, got a str"),
        ({"seed": [1, 2, 3]}, "seed", "one for each of the 2 prompts, got 3"),
        ({"seed": -1}, "seed", "expected 0.."),
        ({"seed": True}, "seed", "a whole number 0..9223372036854775807, got a bool"),
        ({"num_images_per_prompt": "2", "seed": 1}, "num_images_per_prompt", "a whole number, got a str"),
        ({"num_outputs_per_prompt": 1.5}, "num_outputs_per_prompt", "a whole number, got a float"),
        ({"negative_prompt": ["a"]}, "negative_prompt", "one for each of the 2 prompts, got 1"),
        (
            {"num_images_per_prompt": 1, "num_outputs_per_prompt": 2},
            "num_outputs_per_prompt",
            "the same as num_images_per_prompt",
        ),
        ({"height": 65}, "height", "a multiple of 8"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_what_cannot_be_carried_out_is_refused_by_name(
    arguments: dict[str, Any], field: str, complaint: str, alone: Omni
) -> None:
    with pytest.raises(InvalidRequest, match=field) as refused:
        alone.generate(PROMPTS[:2], **arguments)
    assert refused.value.field == field
    assert complaint in str(refused.value)


def test_a_prompt_that_is_no_text_is_refused(alone: Omni) -> None:
    with pytest.raises(InvalidRequest, match="prompt: expected a text, got a int"):
        alone.generate([PROMPTS[0], 7])  # type: ignore[list-item]


@pytest.mark.parametrize("prompt", [None, 7, 1.5, True, b"a red circle", {"prompt": "a"}, np.int64(3)])
def test_what_is_neither_a_prompt_nor_several_is_refused(prompt: Any, alone: Omni) -> None:
    with pytest.raises(InvalidRequest, match="prompt: expected a text or a list of them, got ") as refused:
        alone.generate(prompt)
    assert refused.value.field == "prompt"


@pytest.mark.parametrize(
    "whole", [np.int64, np.int32, np.uint8, np.uint16], ids=lambda kind: str(kind.__name__)
)
@pytest.mark.parametrize("real", [np.float64, np.float32, np.float16], ids=lambda kind: str(kind.__name__))
def test_numbers_may_be_numpys(whole: Any, real: Any, alone: Omni) -> None:
    (got,) = alone.generate(
        PROMPTS[0],
        height=whole(64),
        width=whole(64),
        num_inference_steps=whole(2),
        true_cfg_scale=real(3),
        num_images_per_prompt=whole(1),
        seed=whole(7),
        output_type="np",
    )
    (want,) = alone.generate(PROMPTS[0], true_cfg_scale=3.0, seed=7, output_type="np", **FEW)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("wrong", [np.float32(64), np.array([64, 64]), np.bool_(True), "64"])
def test_what_is_no_whole_number_is_none_of_numpys_either(wrong: Any, alone: Omni) -> None:
    with pytest.raises(InvalidRequest, match="height: expected a multiple of 8"):
        alone.generate(PROMPTS[0], height=wrong)


def test_the_call_that_others_document_runs_as_it_is_printed() -> None:
    with Omni(model="shapes", vae_use_slicing=False, vae_use_tiling=False) as omni:
        pictures = omni.generate(
            PROMPTS[0],
            height=64,
            width=64,
            generator=torch.Generator().manual_seed(1),
            true_cfg_scale=3.0,
            num_inference_steps=2,
            num_images_per_prompt=1,
            num_outputs_per_prompt=1,
        )
    assert [picture.size for picture in pictures] == [(64, 64)]
    with pytest.raises(NotAdmitting, match="this Omni is closed"):
        omni.generate(PROMPTS[0])


def test_each_picture_is_told_of_as_soon_as_it_is_there(alone: Omni) -> None:
    told: list[tuple[int, Any, int]] = []

    def tell(place: int, picture: Any) -> None:
        left = alone._engine.snapshot()
        told.append((place, picture, left.waiting + left.running))

    pictures = alone.generate(PROMPTS, seed=1, on_picture=tell, **FEW)
    assert [place for place, _, _ in told] == [0, 1, 2]
    assert [picture for _, picture, _ in told] == pictures
    assert told[0][2] > 0


def test_a_function_for_pictures_that_is_none_is_refused_before_anything_is_drawn(alone: Omni) -> None:
    with pytest.raises(InvalidRequest, match="on_picture: expected a function"):
        alone.generate(PROMPTS[:1], on_picture=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [10**400, 10**5000, -(10**5000)], ids=range(3))
def test_a_giant_count_makes_no_giant_message(count: int, alone: Omni) -> None:
    with pytest.raises(InvalidRequest, match="num_images_per_prompt") as refused:
        alone.generate(PROMPTS[:1], num_images_per_prompt=count)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("model", ["a" * 5000, "a\0b", "\ud800", "~no-such-user/model", "/dev/null/model"])
def test_a_model_that_can_not_be_a_path_is_a_model_error(model: str) -> None:
    with pytest.raises(ModelError, match="expected a folder, a manifest, or an embedded model") as refused:
        Omni(model, load=False)
    assert len(str(refused.value)) < 6_000


@pytest.mark.parametrize("wrong", [[2], "data", 2, {"data"}])
def test_degrees_that_have_no_names_are_refused(wrong: Any) -> None:
    with pytest.raises(SpecError, match=r"spec\.parallelism"):
        Omni("shapes", parallelism=wrong, load=False)


def test_a_device_may_be_torchs() -> None:
    Omni("shapes", device=torch.device("cpu"), load=False)


@pytest.mark.parametrize("model", ["", None, 7, b"shapes"])
def test_a_model_that_is_no_name_is_a_model_error_and_not_the_current_folder(model: Any) -> None:
    with pytest.raises(ModelError, match="expected a folder, a manifest, or an embedded model"):
        Omni(model)


def a_short_line(folder: Path, slots: int) -> Path:
    """A manifest of a stage with room for one request that waits."""
    manifest = folder / "stage.yaml"
    engine = f"executor: uni\n    maxNumSeqs: {slots}\n    maxQueueSize: 1"
    manifest.write_text(EXAMPLE.read_text().replace("maxNumSeqs: 8", engine))
    return manifest


def test_more_prompts_than_the_line_holds_are_fed_as_it_moves(tmp_path: Path) -> None:
    with Omni(a_short_line(tmp_path, slots=2)) as omni, ThreadPoolExecutor(3) as threads:
        calls = [
            threads.submit(omni.generate, PROMPTS * 3, seed=base, num_inference_steps=1)
            for base in (0, 50, 90)
        ]
        seeds = [[one.info["seed"] for one in call.result(PATIENCE_S)] for call in calls]
    assert seeds == [list(range(base, base + 9)) for base in (0, 50, 90)]


def test_a_progress_function_that_calls_generate_is_refused_instead_of_waiting_for_itself(
    tmp_path: Path,
) -> None:
    with Omni(a_short_line(tmp_path, slots=1)) as omni:
        with pytest.raises(InvalidRequest, match="progress: expected a function that leaves its own Omni"):
            omni.generate(PROMPTS, **FEW, progress=lambda *_: omni.generate(PROMPTS[0], **FEW) and None)
        assert len(omni.generate(PROMPTS, **FEW, progress=lambda *_: None)) == 3


def test_a_close_in_the_middle_ends_the_call_with_a_typed_error() -> None:
    omni = Omni("shapes")
    running = threading.Event()

    def close() -> None:
        assert running.wait(PATIENCE_S)
        omni.close()

    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(NotAdmitting, match="closed"):
        omni.generate(PROMPTS[0], num_inference_steps=1000, progress=lambda *_: running.set())
    closing.join(PATIENCE_S)
    omni.close()
    with pytest.raises(NotAdmitting):
        omni.generate(PROMPTS[0])


def test_one_that_is_forgotten_closes_itself() -> None:
    omni = Omni("shapes", load=False)
    engine = omni._engine
    del omni
    gc.collect()
    assert engine.phase is Phase.CLOSED


def test_a_wrong_option_names_its_field() -> None:
    with pytest.raises(SpecError) as refused:
        Omni("shapes", mode="fast", max_num_seqs=0)
    assert {fault.path for fault in refused.value.faults} == {"spec.engine.mode", "spec.engine.maxNumSeqs"}


def test_a_model_that_is_nowhere_is_a_model_error() -> None:
    with pytest.raises(
        ModelError, match=r"expected a folder, a manifest, or an embedded model \(shapes, digits\)"
    ):
        Omni("/no/such/folder")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
def test_a_device_that_is_not_there_is_a_model_error() -> None:
    with pytest.raises(ModelError, match=r"engine\.device is cuda, but this machine has none"):
        Omni("shapes", device="cuda")


def test_two_ranks_share_the_guidance_of_a_picture() -> None:
    asked = {"num_inference_steps": 4, "seed": 7}
    with Omni("shapes") as alone, Omni("shapes", parallelism={"cfg": 2}) as together:
        (want,) = alone.generate("a red circle", **asked)
        (got,) = together.generate("a red circle", **asked)
        assert len(together.health()) == 2
    assert abs(np.asarray(got, int) - np.asarray(want, int)).max() <= 1


def test_a_degree_that_can_not_be_executed_is_refused() -> None:
    with pytest.raises(SpecError, match=r"spec\.parallelism\.tensor"):
        Omni("shapes", parallelism={"tensor": 2})
