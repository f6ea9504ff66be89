"""Text of numbered words, and its tokenizer, for clients that take text."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>"}
WORDS = [f"w{number}" for number in range(60)]
VOCABULARY = len(SPECIAL) + len(WORDS)


def tokenizer() -> PreTrainedTokenizerFast:
    indices = {word: index for index, word in enumerate([*SPECIAL.values(), *WORDS])}
    words = Tokenizer(models.WordLevel(indices, unk_token=SPECIAL["unk_token"]))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, **SPECIAL)


def sentences(count: int, length: int = 6) -> list[str]:
    """Random ones, of up to `length` words."""
    lengths = torch.randint(2, length + 1, (count,)).tolist()
    return [" ".join(WORDS[index] for index in torch.randint(len(WORDS), (n,)).tolist()) for n in lengths]
