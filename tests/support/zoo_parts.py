"""What several tiny pipelines share: sizes, schedulers and encoders of text."""

from __future__ import annotations

from typing import Any, Final

import diffusers

from support.tiny_pipelines import HEAD_SIZE, HEADS
from support.tiny_text import WIDTH, t5_encoder, t5_tokenizer, umt5_encoder

LANGUAGE_MODEL: Final[dict[str, Any]] = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
OF_HEADS: Final[dict[str, int]] = {"num_attention_heads": HEADS, "attention_head_dim": HEAD_SIZE}


def flow(**settings: Any) -> Any:
    return diffusers.FlowMatchEulerDiscreteScheduler(**settings)


def t5(*, longest: int = 128) -> dict[str, Any]:
    return {"tokenizer": t5_tokenizer(longest), "text_encoder": t5_encoder()}


def umt5() -> dict[str, Any]:
    return {"tokenizer": t5_tokenizer(), "text_encoder": umt5_encoder()}


def language_model(config: Any, model: Any, tokenizer: Any) -> Any:
    return model(config(vocab_size=len(tokenizer), **LANGUAGE_MODEL))
