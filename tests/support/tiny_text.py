"""Tokenizers and text encoders of the tiny pipelines: byte or character alphabets, nothing fetched."""

from __future__ import annotations

import json
import string
from typing import Final

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
    UMT5Config,
    UMT5EncoderModel,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

WIDTH: Final = 32
"""Hidden size of every text encoder here."""

_QWEN_IMAGE_TEMPLATE: Final = (
    "system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, "
    "spatial relationships of the objects and background:",
    "\n",
    "user\n",
    "assistant\n",
)
"""The pipeline's own words, between its special tokens. Learnt as merges, so that a prompt stays short: the
pipeline drops the first 34 tokens without looking."""
_QWEN_SPECIAL: Final = ("<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def clip_tokenizer(longest: int = 77) -> CLIPTokenizer:
    """One token a byte, padded by the pipelines to `longest` as CLIP always is."""
    characters = list(bytes_to_unicode().values())
    alphabet = [*characters, *(f"{c}</w>" for c in characters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={t: i for i, t in enumerate(alphabet)}, merges=[], model_max_length=longest)


def t5_tokenizer(longest: int = 512) -> T5Tokenizer:
    """One token a printable ASCII character."""
    characters = string.ascii_letters + string.digits + string.punctuation
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    vocabulary = [*special, *((c, -3.0) for c in characters)]
    return T5Tokenizer(vocab=vocabulary, extra_ids=0, model_max_length=longest)


def qwen_tokenizer() -> Qwen2Tokenizer:
    """One token a byte, but one a word for the words of Qwen-Image's template."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_QWEN_IMAGE_TEMPLATE, trainer)
    learnt = json.loads(bpe.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learnt["vocab"],
        merges=[tuple(merge) for merge in learnt["merges"]],
        model_max_length=2048,
        additional_special_tokens=list(_QWEN_SPECIAL),
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def clip_encoder(*, projected: bool) -> CLIPTextModel | CLIPTextModelWithProjection:
    """Hidden states of WIDTH; with `projected` also a pooled vector of WIDTH."""
    config = CLIPTextConfig(
        vocab_size=514,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=77,
        projection_dim=WIDTH,
        bos_token_id=512,
        eos_token_id=513,
        pad_token_id=513,
        hidden_act="gelu",
    )
    return CLIPTextModelWithProjection(config) if projected else CLIPTextModel(config)


def t5_encoder() -> T5EncoderModel:
    return T5EncoderModel(T5Config(**_T5_SIZES))


def umt5_encoder() -> UMT5EncoderModel:
    return UMT5EncoderModel(UMT5Config(**_T5_SIZES))


_T5_SIZES: Final = {
    "vocab_size": 128,
    "d_model": WIDTH,
    "d_kv": 16,
    "d_ff": 2 * WIDTH,
    "num_layers": 1,
    "num_heads": 2,
    "feed_forward_proj": "gated-gelu",
}


def qwen_vl_encoder(vocabulary: int) -> Qwen2_5_VLForConditionalGeneration:
    """The language half works; the vision half is as small as its code allows, and never called."""
    text = {
        "vocab_size": vocabulary,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]},
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "patch_size": 14,
        "out_hidden_size": WIDTH,
        "fullatt_block_indexes": [0],
        "window_size": 56,
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=2,
        video_token_id=3,
        vision_start_token_id=4,
        vision_end_token_id=5,
        tie_word_embeddings=True,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def qwen3_encoder(vocabulary: int) -> Qwen3Model:
    """Two layers, since Z-Image reads the hidden states before the last."""
    return Qwen3Model(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=0,
        )
    )
