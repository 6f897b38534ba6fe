"""The tokenizer fits the grammar and the pipeline's template."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from transformers import Qwen2Tokenizer

from shapes_model.captions import free_caption
from shapes_model.scenes import sample_scene
from shapes_model.tokenizer import (
    LONGEST_PROMPT,
    PREFIX_TOKENS,
    PROMPT_TEMPLATE,
    build_tokenizer,
    grammar_words,
)

SHIPPED = Path(__file__).parents[2] / "models" / "shapes" / "checkpoint" / "tokenizer"


@pytest.fixture(scope="module")
def tokenizer() -> Qwen2Tokenizer:
    return build_tokenizer()


def test_the_template_before_the_caption_is_exactly_what_the_pipeline_drops(
    tokenizer: Qwen2Tokenizer,
) -> None:
    prefix = PROMPT_TEMPLATE.split("{}")[0]
    assert len(tokenizer(prefix).input_ids) == PREFIX_TOKENS == 34


def test_the_caption_never_merges_with_the_template(tokenizer: Qwen2Tokenizer) -> None:
    alone = tokenizer(PROMPT_TEMPLATE.split("{}")[0]).input_ids
    for caption in ("", " ", "a red circle", "A red circle."):
        assert tokenizer(PROMPT_TEMPLATE.format(caption)).input_ids[:PREFIX_TOKENS] == alone


def test_every_word_of_the_grammar_is_one_token(tokenizer: Qwen2Tokenizer) -> None:
    assert [word for word in grammar_words() if len(tokenizer(" " + word).input_ids) != 1] == []


def test_every_caption_fits_the_length_that_training_pads_to(tokenizer: Qwen2Tokenizer) -> None:
    chance = random.Random(1)
    captions = [free_caption(sample_scene(chance), chance) for _ in range(2000)]
    encoded = tokenizer([PROMPT_TEMPLATE.format(caption) for caption in captions]).input_ids
    assert max(map(len, encoded)) <= LONGEST_PROMPT


def test_any_text_survives_encoding_and_decoding(tokenizer: Qwen2Tokenizer) -> None:
    text = "a fluffy café 猫 in Paris"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_the_shipped_tokenizer_is_the_built_one(tokenizer: Qwen2Tokenizer) -> None:
    assert Qwen2Tokenizer.from_pretrained(SHIPPED).get_vocab() == tokenizer.get_vocab()
