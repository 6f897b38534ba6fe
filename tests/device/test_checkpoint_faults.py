"""A checkpoint that isn't whole is told by the file at fault, before anything is built or a weight is read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers

from stage_runtime.core.errors import ModelError
from stage_runtime.pipelines.model_size import check_size
from stage_runtime.pipelines.parts import need_packages
from stage_runtime.pipelines.weight_files import read_weights
from support.broken_models import loaded, refusal, sharded, weights_of

pytest_plugins = ("support.tiny_fixtures",)

MODELS = ("qwen-image", "stable-diffusion-xl", "wan", "stable-audio")
CONFIGS = ("config.json", "scheduler_config.json", "tokenizer_config.json")


def configs_of(folder: Path) -> Iterator[Path]:
    """The file of each part that says what it is."""
    for name in CONFIGS:
        yield from sorted(folder.glob(f"*/{name}"))


def nowhere(file: Path) -> None:
    file.unlink()
    file.symlink_to("../../blobs/0123")


WAYS: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: file.unlink(),
    "a link to nowhere": nowhere,
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "without a word": lambda file: file.write_text(""),
    "an empty object": lambda file: file.write_text("{}"),
    "a list": lambda file: file.write_text("[]"),
    "no text": lambda file: file.write_bytes(b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_part_without_its_config_is_named_whichever_way_it_lacks(
    name: str, copy_of: Callable[[str], Path]
) -> None:
    folder = copy_of(name)
    files = list(configs_of(folder))
    assert len(files) >= 4
    for file in files:
        kept = file.read_bytes()
        # a tokenizer's config may be an empty object: that it is there is what counts
        ways = {w: do for w, do in WAYS.items() if file.name != "tokenizer_config.json" or w == "missing"}
        for way, spoil in ways.items():
            spoil(file)
            said = refusal(folder)
            assert str(file) in said, way
            assert said.startswith(file.parent.name) or way in ("without a word", "a list", "no text")
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
            file.write_bytes(kept)
    loaded(folder)


GIANTS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("qwen-image", "transformer", {"num_layers": 10**9}),
    ("qwen-image", "transformer", {"num_attention_heads": 10**6}),
    ("qwen-image", "transformer", {"joint_attention_dim": 10**13}),
    ("qwen-image", "vae", {"base_dim": 10**5}),
    ("stable-diffusion-xl", "text_encoder", {"vocab_size": 10**12}),
    ("stable-diffusion-xl", "text_encoder", {"num_hidden_layers": 10**9}),
    ("stable-diffusion-xl", "unet", {"block_out_channels": [32000, 64000]}),
    ("wan", "text_encoder", {"d_ff": 10**11}),
    ("stable-audio", "vae", {"decoder_channels": 10**6}),
)


@pytest.mark.parametrize(("name", "part", "change"), GIANTS, ids=lambda value: str(value)[:40])
def test_a_config_that_describes_a_giant_is_refused_before_it_takes_memory(
    name: str, part: str, change: dict[str, object], copy_of: Callable[[str], Path]
) -> None:
    folder = copy_of(name)
    file = folder / part / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    assert "describes a larger model than its weights are" in refusal(folder)


def test_a_weight_of_two_names_counts_once(tmp_path: Path) -> None:
    # as many small language models have it: the table of words is most of them, and their head is the same table
    config = transformers.Qwen3Config(
        vocab_size=100_000,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    weights = read_weights(tmp_path, "model", "text_encoder")
    check_size(transformers.Qwen3ForCausalLM, tmp_path, config.to_dict(), weights, "text_encoder")


@pytest.mark.parametrize("name", MODELS)
def test_a_config_that_says_its_class_alone_does_not_get_that_class_s_sizes(
    name: str, copy_of: Callable[[str], Path]
) -> None:
    folder = copy_of(name)
    for file in sorted(folder.glob("*/config.json")):
        kept = json.loads(file.read_text())
        marks = {key: kept[key] for key in ("_class_name", "model_type") if key in kept}
        file.write_text(json.dumps(marks))
        assert file.parent.name in refusal(folder)
        file.write_text(json.dumps(kept))


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 5)


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda file: file.unlink(), "is missing"),
    "a link to nowhere": (nowhere, "is a link to ../../blobs/0123, which isn't there"),
    "cut off": (cut, "is cut off"),
    "cut off in its header": (lambda file: os.truncate(file, 20), "is cut off in its header"),
    "empty": (lambda file: os.truncate(file, 0), "is no safetensors file"),
    "too long": (lambda file: file.write_bytes(file.read_bytes() + b"x"), "has more than it says"),
    "a pointer": (
        lambda file: file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"),
        "is a pointer of git-lfs",
    ),
    "garbage": (lambda file: file.write_bytes(b"\x10" + bytes(7) + b"no json at all.." * 4), "broken header"),
    "a page of a proxy": (
        lambda file: file.write_text("<!DOCTYPE html><html>denied</html>"),
        "no safetensors",
    ),
}


@pytest.mark.parametrize("way", SPOILT)
def test_weights_that_are_not_whole_are_named_with_the_reason(
    way: str, copy_of: Callable[[str], Path]
) -> None:
    folder = copy_of("wan")
    spoil, why = SPOILT[way]
    for file in weights_of(folder):
        kept = file.read_bytes()
        spoil(file)
        said = refusal(folder)
        assert str(file) in said
        assert why in said
        file.unlink(missing_ok=True)
        file.write_bytes(kept)


@pytest.mark.parametrize("part", ["transformer", "text_encoder"])
def test_each_shard_that_is_missing_or_spoilt_is_named(part: str, copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("qwen-image")
    shards = sharded(folder, part)
    assert len(shards) > 1
    loaded(folder)
    for shard in shards:
        kept = shard.read_bytes()
        for spoil in (Path.unlink, cut, nowhere):
            spoil(shard)
            assert str(shard) in refusal(folder)
            shard.unlink(missing_ok=True)
            shard.write_bytes(kept)


@pytest.mark.parametrize("part", ["transformer", "text_encoder"])
@pytest.mark.parametrize("split", [True, False], ids=["sharded", "whole"])
def test_weights_of_one_variant_alone_are_taken(
    part: str, split: bool, copy_of: Callable[[str], Path]
) -> None:
    folder = copy_of("qwen-image")
    want = getattr(loaded(folder), part).state_dict()
    if split:
        sharded(folder, part, "fp16")
    else:
        (file,) = (folder / part).glob("*.safetensors")
        file.rename(file.with_name(file.name.replace(".safetensors", ".fp16.safetensors")))
    got = getattr(loaded(folder), part).state_dict()
    assert all(torch.equal(got[key], weight) for key, weight in want.items())


def test_several_variants_and_none_of_the_usual_name_are_told(copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("wan")
    file = folder / "vae" / "diffusion_pytorch_model.safetensors"
    for variant in ("bf16", "fp16"):
        shutil.copy(file, file.with_name(f"diffusion_pytorch_model.{variant}.safetensors"))
    loaded(folder)
    file.unlink()
    assert "vae: " in (said := refusal(folder))
    assert "several variants of it (bf16, fp16)" in said


@pytest.mark.parametrize("part", ["transformer", "text_encoder"])
def test_weights_as_pickles_alone_are_told(part: str, copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("wan")
    (file,) = (folder / part).glob("*.safetensors")
    file.rename(file.with_name("pytorch_model.bin"))
    said = refusal(folder)
    assert said.startswith(f"{part}: {folder / part} has its weights as pytorch_model.bin only")


def test_links_to_nowhere_are_told_wherever_they_are(copy_of: Callable[[str], Path]) -> None:
    """As when the snapshot of a cache is mounted without what it points to."""
    folder = copy_of("wan")
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        kept = file.read_bytes()
        nowhere(file)
        assert f"{file} is a link to ../../blobs/0123, which isn't there" in refusal(folder)
        file.unlink()
        file.write_bytes(kept)
    shutil.move(folder / "vae", folder / "elsewhere")
    (folder / "vae").symlink_to("nowhere")
    assert f"{folder / 'vae'} is a link to nowhere" in refusal(folder)


def test_a_part_that_the_installed_class_does_not_take_is_passed_over(copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("wan")
    index = json.loads((folder / "model_index.json").read_text())
    index["watermarker"] = ["diffusers", "WatermarkerOfTomorrow"]
    (folder / "model_index.json").write_text(json.dumps(index))
    loaded(folder)


def test_a_class_that_only_a_newer_library_has_is_told_with_both_versions(
    copy_of: Callable[[str], Path],
) -> None:
    folder = copy_of("wan")
    index = json.loads((folder / "model_index.json").read_text())
    index |= {"_diffusers_version": "0.99.0", "transformer": ["diffusers", "WanTransformer9DModel"]}
    (folder / "model_index.json").write_text(json.dumps(index))
    said = refusal(folder)
    assert said.startswith("transformer: diffusers 0.")
    assert said.endswith("has no WanTransformer9DModel; the checkpoint was saved with diffusers 0.99.0")


def test_packages_that_a_part_needs_are_named_with_what_needs_them() -> None:
    need_packages("tokenizer", "spiece.model", ("torch", "json"))
    with pytest.raises(
        ModelError, match=r"^tokenizer: spiece.model needs the package no_such_one, which is not"
    ):
        need_packages("tokenizer", "spiece.model", ("torch", "no_such_one"))
