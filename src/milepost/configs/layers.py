"""What each layer sees, and which layers turn: windows, chunks, and layers without positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from milepost.configs.reader import Reader
from milepost.seams.visible import Visible, causal, chunks, window

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"

Rule = Callable[[Reader, int], str]
"""The type of a layer, where the config does not list layer_types."""


def full(reader: Reader, layer: int) -> str:
    """Every layer sees all keys."""
    return FULL


def windowed(reader: Reader, layer: int) -> str:
    """Every layer has the window, where there is one (Mistral, Phi-3)."""
    return FULL if reader.get("sliding_window") is None else SLIDING


def windowed_late(reader: Reader, layer: int) -> str:
    """Layers from max_window_layers on have the window, if use_sliding_window says so (Qwen 2)."""
    if not reader.get("use_sliding_window") or reader.get("sliding_window") is None:
        return FULL
    return SLIDING if layer >= reader.need("the first layer with a window", "max_window_layers") else FULL


def windowed_if_enabled(reader: Reader, layer: int) -> str:
    """Every layer has the window, if use_sliding_window says so (Qwen 3 MoE)."""
    return windowed(reader, layer) if reader.get("use_sliding_window") else FULL


def windowed_by_turns(reader: Reader, layer: int) -> str:
    """Every other layer before max_window_layers has the window, if use_sliding_window says so (Qwen 2 MoE)."""
    early = layer % 2 == 0 and layer < (reader.get("max_window_layers") or 0)
    return windowed_if_enabled(reader, layer) if early else FULL


def every(n: int) -> Rule:
    """Every n-th layer sees all keys, the others a window; the config may say another n."""

    def rule(reader: Reader, layer: int) -> str:
        if reader.get("sliding_window") is None:
            return FULL
        pattern = reader.get("sliding_window_pattern", "_sliding_window_pattern") or n
        if isinstance(pattern, str):
            return SLIDING if pattern[layer % len(pattern)] == "L" else FULL
        return SLIDING if (layer + 1) % pattern else FULL

    return rule


def first_of(reader: Reader, layer: int) -> str:
    """The first of every global_attn_every_n_layers sees all keys (ModernBERT)."""
    return SLIDING if layer % reader.get("global_attn_every_n_layers") else FULL


def chunked_where_turned(reader: Reader, layer: int) -> str:
    """Layers that turn see their own chunk (Llama 4)."""
    return CHUNKED if listed_to_turn(reader, layer) else FULL


def windowed_where_not_turned(reader: Reader, layer: int) -> str:
    """Layers without positions may have a window (SmolLM3)."""
    return SLIDING if reader.get("use_sliding_window") and not listed_to_turn(reader, layer) else FULL


def layer_type(reader: Reader, layer: int, rule: Rule) -> str:
    """The type of a layer: what the config lists, or the rule of the family."""
    listed = reader.given("layer_types")
    if not listed:
        return rule(reader, layer)
    if layer >= len(listed):
        raise IndexError(
            f"{reader.called}: layer_types lists {len(listed)} layers, and layer {layer} is not among them"
        )
    known = (FULL, SLIDING, CHUNKED)
    if listed[layer] not in known:
        why = f"which is not attention over tokens; those are {', '.join(known)}"
        raise reader.refuse(f"layer_types[{layer}]", listed[layer], why)
    return listed[layer]


# Which layers turn


def always(reader: Reader, layer: int, kind: str) -> bool:
    """Every layer turns."""
    return True


def listed_to_turn(reader: Reader, layer: int, kind: str = FULL) -> bool:
    """no_rope_layers holds 1 for the layers that do turn; without it every fourth does not."""
    listed: list[Any] = reader.given("no_rope_layers")
    if listed:
        if layer >= len(listed):
            raise IndexError(
                f"{reader.called}: no_rope_layers lists {len(listed)} layers, so layer {layer} is not there"
            )
        return bool(listed[layer])
    return bool((layer + 1) % (reader.get("no_rope_layer_interval") or 4))


def unless_alibi(reader: Reader, layer: int, kind: str) -> bool:
    """Falcon turns, Falcon-RW has ALiBi instead."""
    return not reader.get("alibi")


def where_windowed(reader: Reader, layer: int, kind: str) -> bool:
    """Layers with a window turn, those that see everything do not (Command R7B, EXAONE 4)."""
    return kind == SLIDING or reader.get("sliding_window") is None


# What is seen


def seen(reader: Reader, kind: str, encodes: bool = False, prefixed: bool = False) -> list[Visible]:
    """The visible part of a layer of this type: none at all where every key is seen.

    prefixed: use_bidirectional_attention speaks of a prefix, which a plain text does not have.
    """
    both_ways = (encodes and not reader.decodes) or bool(reader.get("use_bidirectional_attention") and not prefixed)
    if kind == CHUNKED:
        # transformers hides what is ahead in a chunk whatever is_causal says.
        return [causal & chunks(reader.need("the size of a chunk", "attention_chunk_size"))]
    if kind == FULL:
        return [] if both_ways or not reader.causal else [causal]
    n = half_window(reader) if both_ways else reader.need("the window", "sliding_window")
    if not reader.causal and not encodes:
        # There the window counts the keys on each side, the query's own not among them.
        return [window(n + 1, ahead=n)]
    return [window(n, ahead=n - 1) if both_ways else causal & window(n)]


def half_window(reader: Reader) -> int:
    """The keys on one side of a query that looks both ways, itself included."""
    if reader.get("local_attention") is not None:
        return reader.get("local_attention") // 2 + 1
    n = reader.need("the window", "sliding_window")
    # Gemma 3 halves it when it makes a config object; its config.json and to_dict() hold both sides.
    return n // 2 + 1 if reader.model_type == "gemma3_text" and isinstance(reader.source, Mapping) else n
