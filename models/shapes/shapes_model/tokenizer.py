"""A byte-level BPE in Qwen2 format whose merges cover every word of the grammar and of the pipeline's prompt template.

The pipeline drops the first 34 tokens of every encoded prompt without looking, so the template before the caption must
be exactly 34 tokens. It is, since every word of it is one token; any other text still encodes, byte by byte.
"""

from __future__ import annotations

import json

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from shapes_model.captions import POSITION_PHRASES, RELATION_PHRASES
from shapes_model.palette import BACKGROUNDS
from shapes_model.scenes import RADII, SHAPES

PROMPT_TEMPLATE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, "
    "spatial relationships of the objects and background:<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
"""The template of `QwenImagePipeline`."""
PREFIX_TOKENS = 34
LONGEST_PROMPT = 56
"""34 tokens of template, at most 17 of caption, 5 of tail."""
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LARGEST_VOCABULARY = 1024


def grammar_words() -> list[str]:
    phrases = [
        phrase
        for table in (RELATION_PHRASES, POSITION_PHRASES)
        for group in table.values()
        for phrase in group
    ]
    words = {word for phrase in phrases for word in phrase.split()}
    words.update(BACKGROUNDS, SHAPES, RADII, ["a", "an", "and", "on", "background", "the"])
    return sorted(words)


def training_text() -> list[str]:
    """Every word after a space, alone and capitalised, and the template between its special tokens."""
    lines = []
    for word in grammar_words():
        lines += [f" {word}"] * 8 + [word] * 4 + [word.capitalize()] * 2
    template = PROMPT_TEMPLATE.replace("{}", "")
    for token in SPECIAL_TOKENS:
        template = template.replace(token, "\0")
    return lines + [piece for piece in template.split("\0") if piece] * 20


def build_tokenizer() -> Qwen2Tokenizer:
    """The same tokenizer every time: it depends on the word list alone."""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=LARGEST_VOCABULARY,
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(training_text(), trainer)
    learnt = json.loads(bpe.to_str())["model"]
    merges = [
        tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in learnt["merges"]
    ]
    return Qwen2Tokenizer(
        vocab=learnt["vocab"],
        merges=merges,
        model_max_length=1088,
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
    )
