"""What each layer sees, and which layers turn: windows, chunks, and layers without positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from milepost.configs.reader import LAYERS, Reader
from milepost.seams.visible import Visible, causal, chunks, window

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
ATTENTION = (FULL, SLIDING, CHUNKED)
LINEAR = "linear_attention"

SAME_TYPE = {"attention": FULL, "hybrid": FULL, "indexed_attention": FULL, "deepseek_sparse_attention": FULL}
"""Layer types under other names: old ones, attention beside a Mamba mixer (Falcon-H1), and attention that an indexer
makes sparse past index_topk keys (DeepSeek-V3.2)."""

PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")

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


def windowed_from(reader: Reader, layer: int) -> str:
    """Layers from max_window_layers on have the window, where there is one (dots.llm1)."""
    return FULL if layer < (reader.get("max_window_layers") or 0) else windowed(reader, layer)


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
        pattern = reader.get(*PATTERNS) or n
        if isinstance(pattern, str):
            return SLIDING if pattern[layer % len(pattern)] == "L" else FULL
        return SLIDING if (layer + 1) % pattern else FULL

    return rule


def last_sees_all(reader: Reader, layer: int) -> str:
    """Every sixth layer sees all keys, and so does the last (Gemma 4)."""
    return FULL if layer == reader.layers - 1 else every(6)(reader, layer)


def first_of(reader: Reader, layer: int) -> str:
    """The first of every global_attn_every_n_layers sees all keys (ModernBERT)."""
    return SLIDING if layer % reader.get("global_attn_every_n_layers") else FULL


def chunked_where_turned(reader: Reader, layer: int) -> str:
    """Layers that turn see their own chunk (Llama 4)."""
    return CHUNKED if listed_to_turn(reader, layer) else FULL


def windowed_where_not_turned(reader: Reader, layer: int) -> str:
    """Layers without positions may have a window (SmolLM3)."""
    return SLIDING if reader.get("use_sliding_window") and not listed_to_turn(reader, layer) else FULL


# Models that have attention in some layers only


def last_of(reader: Reader, layer: int) -> str:
    """The last of every full_attention_interval is attention, the others are linear (Qwen3-Next)."""
    return LINEAR if (layer + 1) % (reader.get("full_attention_interval") or 4) else FULL


def by_turns(reader: Reader, layer: int) -> str:
    """Every other layer is attention, from the first on (MiniMax-Text)."""
    return LINEAR if layer % 2 else FULL


def listed_from_one(reader: Reader, layer: int) -> str:
    """linear_attn_config lists layers of each type, counted from 1; without it every fourth attends (Kimi Linear)."""
    listed: Mapping[str, list[int]] = reader.get("linear_attn_config") or {}
    if "full_attn_layers" in listed and "kda_layers" in listed:
        return FULL if layer + 1 in listed["full_attn_layers"] else LINEAR
    return FULL if layer and layer % 4 == 0 else LINEAR


def listed_to_attend(reader: Reader, layer: int) -> str:
    """full_attn_idxs lists the layers that attend, the others are convolutions; without it all attend (LFM2)."""
    listed = reader.get("full_attn_idxs")
    return FULL if listed is None or layer in listed else "conv"


def listed_by_index(reader: Reader, layer: int) -> str:
    """attn_layer_indices lists the layers that attend (Bamba)."""
    return FULL if layer in (reader.get("attn_layer_indices") or ()) else LINEAR


def one_a_period(reader: Reader, layer: int) -> str:
    """One layer in every attn_layer_period attends, that at attn_layer_offset (Jamba)."""
    period, offset = reader.get("attn_layer_period"), reader.get("attn_layer_offset")
    return FULL if layer % (8 if period is None else period) == (4 if offset is None else offset) else LINEAR


def listed_to_cross(reader: Reader, layer: int) -> str:
    """cross_attention_layers lists the layers that look at an image and not at the text (Llama 3.2 Vision)."""
    return "cross_attention" if layer in (reader.get("cross_attention_layers") or ()) else FULL


def all_linear(reader: Reader, layer: int) -> str:
    """No layer attends unless layer_types says so (Granite 4)."""
    return LINEAR


LETTERS = {"M": LINEAR, "E": "moe", "*": FULL, "-": "mlp"}


def spelled(reader: Reader, layer: int) -> str:
    """hybrid_override_pattern has a letter for each layer, * for attention (Nemotron-H)."""
    return LETTERS[reader.need("which layers attend", "hybrid_override_pattern", "layers_block_type")[layer]]


# The type of a layer


def layer_type(reader: Reader, layer: int, rule: Rule) -> str:
    """The type of a layer: what the config lists, or the rule of the family; raise where it is not attention."""
    kind = any_type(reader, layer, rule)
    if kind in ATTENTION:
        return kind
    attending = attention_layers(reader, rule)
    if not attending:
        raise ValueError(f"{reader.called}: layer {layer} is {kind!r}, and no layer is attention over tokens")
    listed = ", ".join(map(str, attending[:4])) + (", …" if len(attending) > 4 else "")
    raise ValueError(
        f"{reader.called}: layer {layer} is {kind!r}, which is not attention over tokens, so no scheme says what it "
        f"does. Attention is in layer {listed}: Scheme.of(config, layer={attending[0]})"
    )


def any_type(reader: Reader, layer: int, rule: Rule) -> str:
    """The type of a layer, whether it is attention or not."""
    listed = reader.given("layer_types", "layers_block_type")
    if not listed:
        return rule(reader, layer)
    if layer >= len(listed):
        raise IndexError(
            f"{reader.called}: layer_types lists {len(listed)} layers, and layer {layer} is not among them"
        )
    kind: str = listed[layer]
    return SAME_TYPE.get(kind, kind)


def attention_layers(reader: Reader, rule: Rule) -> list[int]:
    """The layers that are attention over tokens."""
    listed = reader.given("layer_types", "layers_block_type", "hybrid_override_pattern")
    count = len(listed) if listed and not reader.get(*LAYERS) else reader.layers
    return [layer for layer in range(count) if any_type(reader, layer, rule) in ATTENTION]


# Which layers turn


def always(reader: Reader, layer: int, kind: str) -> bool:
    """Every layer turns."""
    return True


def never(reader: Reader, layer: int, kind: str) -> bool:
    """No layer turns: order comes from the layers between (Kimi Linear, Nemotron-H)."""
    return False


def if_rope(reader: Reader, layer: int, kind: str) -> bool:
    """position_embedding_type says "rope"; without it no layer turns (Granite 4)."""
    return reader.get("position_embedding_type") == "rope"


def if_rotary(reader: Reader, layer: int, kind: str) -> bool:
    """position_embedding_type says "rotary"; otherwise there is a table (ESM)."""
    return reader.get("position_embedding_type") == "rotary"


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
    asked = reader.get("use_bidirectional_attention")
    # Gemma 4's "vision" speaks of the tokens of an image, which a plain text does not have.
    both_ways = (encodes and not reader.decodes) or bool(asked and asked != "vision" and not prefixed)
    if kind == CHUNKED:
        # transformers hides what is ahead in a chunk whatever is_causal says.
        return [causal & chunks(reader.need("the size of a chunk", "attention_chunk_size"))]
    if kind == FULL:
        return [] if both_ways or not reader.causal else [causal]
    n = half_window(reader, encodes) if both_ways else one_sided(reader)
    if not reader.causal and not encodes:
        # There the window counts the keys on each side, the query's own not among them.
        return [window(n + 1, ahead=n)]
    return [window(n, ahead=n - 1) if both_ways else causal & window(n)]


def one_sided(reader: Reader) -> int:
    """The keys behind a query that it sees, itself included; ModernBERT's decoder has half of local_attention."""
    both: int | None = reader.get("local_attention")
    return reader.need("the window", "sliding_window") if both is None else both // 2


def half_window(reader: Reader, encodes: bool) -> int:
    """The keys on one side of a query that looks both ways, itself included."""
    if reader.get("local_attention") is not None:
        return reader.get("local_attention") // 2 + 1
    n = reader.need("the window", "sliding_window")
    if encodes:
        # An encoder's window counts the keys on each side, the query's own not among them.
        return n + 1
    # Gemma 3 halves it when it makes a config object; its config.json and to_dict() hold both sides.
    return n // 2 + 1 if reader.model_type in HALVED and isinstance(reader.source, Mapping) else n


HALVED = ("gemma3_text", "gemma4_text")
