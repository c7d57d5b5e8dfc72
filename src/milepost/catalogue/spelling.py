"""Spellings of the names of methods: RoPE, rope or Rope; T5 or T5Bias; SoftMax₁ or softmax-1."""

import unicodedata
from functools import cache

from milepost.catalogue import register

ALSO = {
    **{"t5": "T5Bias", "rotary": "Rope", "pi": "Interpolate", "ntk-aware": "Ntk", "streaming": "Stream"},
    **{"XLNet": "TransformerXL", "BLOOM": "Alibi", "MPT": "Alibi", "Baichuan": "Alibi", "ChatGLM": "TwoPartRope"},
    **{"线性内插": "Interpolate", "层次分解": "Hierarchical", "gpt-oss": "SinkLogit", "attention sink": "SinkLogit"},
}
"""Names in the field that are neither the class nor its paper's own word."""


def plain(name: str) -> str:
    """Return a name without what people write differently: capitals, dashes, blanks, and small figures such as ₁."""
    return "".join(letter for letter in unicodedata.normalize("NFKC", name).lower() if letter.isalnum())


@cache
def spellings() -> dict[str, str]:
    """Return every plain spelling of every method, to the name of its class."""
    entries = register.methods()
    found = {plain(each): name for each, name in ALSO.items()}
    found |= {plain(entry.title): entry.name for entry in entries if entry.title}
    return found | {plain(entry.name): entry.name for entry in entries}


def method_called(name: str) -> str | None:
    """Return the class of the method that people write so, or None."""
    return spellings().get(plain(name))
