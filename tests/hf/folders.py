"""A tiny Llama with a tokenizer of letters, in a folder: what commands read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.hf.tiny import tiny

LETTERS = "abcdefghijklmnopqrstuvwxyz .,0123456789\n"
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a letter; texts begin with no mark."""
    known = {each: n for n, each in enumerate([*SPECIAL, *LETTERS])}
    letters = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    letters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=letters, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def write(folder: Path, **more: Any) -> Path:
    """A model with random weights, trained at 64 tokens by its config, and its tokenizer."""
    torch.manual_seed(0)
    tiny("llama", eos_token_id=2, **more).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
