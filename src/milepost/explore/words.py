"""Methods in words, as the pictures name them."""

from __future__ import annotations

from typing import Any

from milepost.explore.pictures.axes import number
from milepost.methods.alibi import Alibi
from milepost.methods.biases import T5Bias
from milepost.methods.embeddings import Sinusoidal
from milepost.methods.regions import DualChunk, Rerope, SelfExtend, Stream
from milepost.methods.relations import Deberta, TransformerXL
from milepost.methods.rope import Rope, Xpos
from milepost.methods.rope_stretches import Interpolate, Llama3, Ntk, NtkMixed
from milepost.methods.yarn import Yarn
from milepost.seams.arguments import spell

STRETCHES: dict[type, str] = {
    Interpolate: "interpolated",
    Llama3: "Llama 3.1's stretch",
    Ntk: "NTK",
    NtkMixed: "NTK-mixed",
    Yarn: "YaRN",
}


def in_words(part: Any) -> str:
    """Return a method and its settings in words; how it is called where there are none for it."""
    match part:
        case Rope():
            name = f"RoPE, {part.head_dim} channels, base {number(part.theta)}"
            return name if part.stretch is None else f"{name}, {stretch_in_words(part.stretch)}"
        case Xpos():
            return f"xPos, {part.head_dim} channels"
        case Sinusoidal():
            return f"sinusoidal positions, {part.model_dim} channels, base {number(part.theta)}"
        case Alibi() if part.stretch is None:
            return f"ALiBi, {part.heads} heads"
        case T5Bias():
            ways = "both ways" if part.bidirectional else "causal"
            return f"T5's bias, {ways}, {part.buckets} buckets up to distance {part.reach}"
        case Deberta():
            return "DeBERTa's distances"
        case TransformerXL():
            return "Transformer-XL's distances"
        case Stream():
            return f"{part.sinks} sinks and a window of {part.window:,}"
        case Rerope() if part.at is None:
            return f"ReRoPE, window {part.window:,}"
        case SelfExtend():
            return f"Self-Extend, groups of {part.group}, {part.neighbours:,} near keys"
        case DualChunk():
            return f"dual chunks of {part.chunk:,}, {part.local:,} of them local"
        case _:
            return spell(part)


def stretch_in_words(stretch: Any) -> str:
    """Return a stretch and its factor in words."""
    name = next((name for kind, name in STRETCHES.items() if type(stretch) is kind), None)
    return spell(stretch) if name is None else f"{name} by {stretch.factor:g}"


def first_large(text: str) -> str:
    """Return a text with its first letter large, as a title begins."""
    return text[:1].upper() + text[1:]


__all__ = ["first_large", "in_words", "stretch_in_words"]
