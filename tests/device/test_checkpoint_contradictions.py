"""A checkpoint whose files are there and contradict each other, or themselves, is told by the file at fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.broken_models import loaded, refusal, sharded, weights_of

pytest_plugins = ("support.tiny_fixtures",)

Header = dict[str, Any]


def with_header(file: Path, change: Callable[[Header], object]) -> None:
    """The file with another header before the same numbers."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def first(header: Header) -> Header:
    """What the header says of one of its tensors."""
    found: Header = header[min(name for name in header if name != "__metadata__")]
    return found


HEADERS: dict[str, tuple[Callable[[Header], object], str]] = {
    "a negative side": (lambda h: first(h).update(shape=[-2, -2]), "of shape [-2, -2]"),
    "a giant side": (lambda h: first(h).update(shape=[10**12]), "of shape [1000000000000]"),
    "another number format": (lambda h: first(h).update(dtype="F64"), "is F64 of shape"),
    "an unknown number format": (lambda h: first(h).update(dtype="F99"), "unknown number format 'F99'"),
    "no number format": (lambda h: first(h).pop("dtype"), "unknown number format None"),
    "an empty place": (lambda h: first(h).update(data_offsets=[0, 0]), "and gives it 0 bytes"),
    "half a place": (lambda h: first(h).update(data_offsets=[0]), "broken header"),
    "a gap": (
        lambda h: [one.update(data_offsets=[p + 8 for p in one["data_offsets"]]) for one in tensors_of(h)],
        "is cut off",
    ),
    "notes that are no text": (lambda h: h.update(__metadata__={"format": 5}), "broken header"),
}


def tensors_of(header: Header) -> list[Header]:
    return [entry for name, entry in header.items() if name != "__metadata__"]


@pytest.mark.parametrize("way", HEADERS)
def test_a_header_that_contradicts_itself_is_told_with_file_and_tensor(
    way: str, copy_of: Callable[[str], Path]
) -> None:
    folder = copy_of("wan")
    change, why = HEADERS[way]
    for file in weights_of(folder):
        kept = file.read_bytes()
        with_header(file, change)
        said = refusal(folder)
        assert str(file) in said
        assert why in said
        file.write_bytes(kept)


INDEXES: dict[str, tuple[Callable[[Header], object], str]] = {
    "no map": (lambda index: index.pop("weight_map"), "has no weight_map"),
    "an empty map": (lambda index: index.update(weight_map={}), "has no weight_map"),
    "a map of lists": (lambda index: index.update(weight_map={"a": ["b"]}), "has no weight_map"),
    "no metadata": (lambda index: index.pop("metadata"), "has no metadata"),
    "a file above": (lambda index: index["weight_map"].update(a="../vae/a"), "names '../vae/a', which is no"),
    "a file elsewhere": (lambda index: index["weight_map"].update(a="/etc/passwd"), "names '/etc/passwd'"),
    "an empty name": (lambda index: index["weight_map"].update(a=""), "names ''"),
}


@pytest.mark.parametrize("part", ["transformer", "text_encoder"])
def test_an_index_of_shards_that_says_nothing_usable_is_told(
    part: str, copy_of: Callable[[str], Path]
) -> None:
    folder = copy_of("qwen-image")
    sharded(folder, part)
    (file,) = (folder / part).glob("*.index.json")
    kept = file.read_text()
    for way, (change, why) in INDEXES.items():
        index = json.loads(kept)
        change(index)
        file.write_text(json.dumps(index))
        said = refusal(folder)
        assert said.startswith(f"{part}: {file}"), way
        assert why in said, way


def test_a_part_that_the_index_tells_of_in_no_such_way_is_named(copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("stable-diffusion-xl")
    index = json.loads((folder / "model_index.json").read_text())
    parts = [name for name, value in index.items() if isinstance(value, list) and all(value)]
    assert len(parts) >= 5
    for part in parts:
        for value in (None, "x", 5, [1, 2], ["diffusers"], ["diffusers", "X", "y"], [None, "X"], {}):
            (folder / "model_index.json").write_text(json.dumps({**index, part: value}))
            assert refusal(folder).startswith(f"{part}: {folder / 'model_index.json'} has "), value


@pytest.mark.parametrize("count", [0, -5, 2 * 10**9, 10**13, 1.5, True, "1000", None])
def test_a_scheduler_with_giant_or_no_tables_is_refused_before_it_makes_them(
    count: object, copy_of: Callable[[str], Path]
) -> None:
    folder = copy_of("stable-diffusion-xl")
    file = folder / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_train_timesteps": count}))
    assert refusal(folder).startswith(f"scheduler: {file} has num_train_timesteps {json.dumps(count)}")


@pytest.mark.parametrize(
    ("part", "other"), [("scheduler", "vae"), ("vae", "scheduler"), ("unet", "scheduler")]
)
def test_a_config_that_is_of_something_else_is_not_taken_for_a_part_with_all_defaults(
    part: str, other: str, copy_of: Callable[[str], Path]
) -> None:
    folder = copy_of("stable-diffusion-xl")
    (file,) = (folder / part).glob("*config.json")
    (wrong,) = (folder / other).glob("*config.json")
    shutil.copy(wrong, file)
    assert refusal(folder).startswith(f"{part}: {file} is of a ")


def test_a_scheduler_saved_as_another_kind_of_scheduler_is_taken_as_diffusers_takes_it(
    copy_of: Callable[[str], Path],
) -> None:
    folder = copy_of("stable-diffusion-xl")
    file = folder / "scheduler" / "scheduler_config.json"
    for name in ("PNDMScheduler", "SchedulerOfTomorrow"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "_class_name": name}))
        loaded(folder)


@pytest.mark.parametrize("text", ["{}", "[]", "", '{"model": {"type": "BPE"}}', "{" * 9])
def test_a_tokenizer_that_can_not_be_read_is_named(text: str, copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("qwen-image")
    (folder / "tokenizer" / "tokenizer.json").write_text(text)
    assert refusal(folder).startswith(f"tokenizer: {folder / 'tokenizer'} can't be loaded: ")


@pytest.mark.parametrize("name", ["", "NoSuchPipeline", "QwenImage", "QwenImagePipeline\n", "(?:", "object"])
def test_a_class_that_diffusers_does_not_have_is_told(name: str, copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("wan")
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "_class_name": name}))
    assert refusal(folder).endswith("is not a pipeline of the installed diffusers")


def test_a_pipeline_of_a_package_that_is_missing_is_told_with_it(copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("wan")
    index = {"_class_name": "OnnxStableDiffusionPipeline"}
    (folder / "model_index.json").write_text(json.dumps(index))
    assert "OnnxStableDiffusionPipeline needs the package onnx" in refusal(folder)
