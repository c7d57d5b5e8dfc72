"""The attention of each layer: its layer type (full, window, chunks), whether it rotates, and which keys it sees."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from milepost.configs.reader import Reader
from milepost.seams.visible import Visible, causal, chunks, window

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
ATTENTION = (FULL, SLIDING, CHUNKED)
LINEAR = "linear_attention"
PASSED_OVER = frozenset({LINEAR, "conv", "mamba", "mamba2", "moe", "mlp", "recurrent", "cross_attention"})
"""Types of layers that are not attention over the text. Any other type is refused until somebody has read it."""

SAME_TYPE = {"attention": FULL, "hybrid": FULL, "hybrid_sliding": SLIDING} | dict.fromkeys(
    ("indexed_attention", "deepseek_sparse_attention", "minimax_m3_sparse"), FULL
)
"""Layer types under other names: old ones, attention next to a Mamba mixer or a convolution (Falcon-H1, ZAYA), and
attention that an indexer makes sparse past so many keys (DeepSeek-V3.2, MiniMax-M3)."""

PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")

Rule = Callable[[Reader, int], str]
"""The type of a layer, where the config does not list layer_types."""


def full(reader: Reader, layer: int) -> str:
    """Every layer sees all keys."""
    return FULL


def full_unless_listed(reader: Reader, layer: int) -> str:
    """Every layer sees all keys, unless layer_types says otherwise (Laguna)."""
    return FULL


def windowed(reader: Reader, layer: int) -> str:
    """Every layer has the window, where there is one (Mistral, Phi-3)."""
    return FULL if reader.get("sliding_window") is None else SLIDING


def windowed_unless_listed(reader: Reader, layer: int) -> str:
    """As `windowed`, but transformers reads layer_types (Ministral)."""
    return windowed(reader, layer)


def windowed_from(reader: Reader, layer: int) -> str:
    """Layers from max_window_layers on have the window, where there is one (dots.llm1)."""
    return SLIDING if windowed(reader, layer) == SLIDING and layer >= _max_window_layers(reader) else FULL


def windowed_by_turns(reader: Reader, layer: int) -> str:
    """Every other layer before max_window_layers has the window, where there is one (Qwen 2 MoE)."""
    if windowed(reader, layer) == FULL or layer % 2:
        return FULL
    return SLIDING if layer < _max_window_layers(reader) else FULL


def _max_window_layers(reader: Reader) -> int:
    return reader.need("the number of layers before or from which there is a window", "max_window_layers")


def if_enabled(rule: Rule) -> Rule:
    """Layers have a window by the rule if use_sliding_window is set (Qwen 2 and 3)."""
    return lambda reader, layer: rule(reader, layer) if reader.get("use_sliding_window") else FULL


def every(n: int, last: bool = False) -> Rule:
    """Every n-th layer sees all keys, the others a window; the config may set another n. last: so does the last."""

    def rule(reader: Reader, layer: int) -> str:
        if reader.get("sliding_window") is None or (last and layer == reader.layers - 1):
            return FULL
        pattern = reader.get(*PATTERNS) or n
        if isinstance(pattern, str):
            return SLIDING if pattern[layer % len(pattern)] == "L" else FULL
        return SLIDING if (layer + 1) % pattern else FULL

    return rule


def first_of(reader: Reader, layer: int) -> str:
    """The first of every global_attn_every_n_layers sees all keys (ModernBERT)."""
    return SLIDING if layer % reader.get("global_attn_every_n_layers") else FULL


def first_and_every(n: int) -> Rule:
    """The first and every n-th layer see all keys; hybrid_layer_pattern has 1 for a window (MiMo-V2)."""

    def rule(reader: Reader, layer: int) -> str:
        listed = reader.given("hybrid_layer_pattern")
        near = bool(layer and (layer + 1) % n) if listed is None else bool(listed[layer])
        return SLIDING if near else FULL

    return rule


def counted_from_the_last(n: int) -> Rule:
    """The last of the layers and every n-th before it see all keys (Muse Spark)."""
    return lambda reader, layer: SLIDING if (reader.layers - 1 - layer) % n else FULL


def flint(reader: Reader, layer: int) -> str:
    """The first two, the last, and the second of every four layers see all keys (Flint)."""
    return FULL if layer < 2 or layer % 4 == 1 or layer == reader.layers - 1 else SLIDING


def after_the_first(rule: Rule) -> Rule:
    """The first layers, which are dense, have a pattern of their own; the others go by the rule (Command A MoE)."""

    def prefixed(reader: Reader, layer: int) -> str:
        first, n = reader.get("first_k_dense_replace") or 0, reader.get("prefix_dense_sliding_window_pattern") or 1
        if layer < first:
            return SLIDING if (layer + 1) % n else FULL
        return rule(reader, layer - first)

    return prefixed


def chunked_where_rotated(reader: Reader, layer: int) -> str:
    """Layers that rotate see their own chunk (Llama 4)."""
    return CHUNKED if unless_in_no_rope_layers(reader, layer) else FULL


def windowed_where_not_rotated(reader: Reader, layer: int) -> str:
    """Layers without positions may have a window (SmolLM3)."""
    return SLIDING if reader.get("use_sliding_window") and not unless_in_no_rope_layers(reader, layer) else FULL


# Hybrid models, which have attention in some layers only


def last_of(reader: Reader, layer: int) -> str:
    """The last of every full_attention_interval is attention, the others are linear (Qwen3-Next, Ling)."""
    return LINEAR if (layer + 1) % (reader.get("full_attention_interval", "layer_group_size") or 4) else FULL


def by_turns(reader: Reader, layer: int) -> str:
    """Every other layer is attention, from the first on (MiniMax-Text)."""
    return LINEAR if layer % 2 else FULL


def listed_from_one(reader: Reader, layer: int) -> str:
    """linear_attn_config lists layers of each type, counted from 1; without it every fourth attends (Kimi Linear)."""
    listed: Mapping[str, list[int]] = reader.get("linear_attn_config") or {}
    if "full_attn_layers" in listed and "kda_layers" in listed:
        return FULL if layer + 1 in listed["full_attn_layers"] else LINEAR
    return FULL if layer and layer % 4 == 0 else LINEAR


def listed_by(key: str, inside: str = FULL, outside: str = LINEAR, without: str | None = None) -> Rule:
    """A key lists the layers of one type, the others are of another; without the key all are of a third."""

    def rule(reader: Reader, layer: int) -> str:
        listed = reader.get(key)
        if listed is None:
            return outside if without is None else without
        return inside if layer in listed else outside

    return rule


def one_a_period(reader: Reader, layer: int) -> str:
    """One layer in every attn_layer_period attends, that at attn_layer_offset (Jamba)."""
    period, offset = reader.get("attn_layer_period"), reader.get("attn_layer_offset")
    return FULL if layer % (8 if period is None else period) == (4 if offset is None else offset) else LINEAR


def blocks(reader: Reader, layer: int) -> str:
    """block_types are repeated over the layers; attention is every third without them (RecurrentGemma)."""
    kinds: Sequence[str] = reader.get("block_types") or ("recurrent", "recurrent", "attention")
    return SAME_TYPE.get(kinds[layer % len(kinds)], kinds[layer % len(kinds)])


def all_linear(reader: Reader, layer: int) -> str:
    """No layer attends unless layer_types lists it (Granite 4)."""
    return LINEAR


LETTERS = {"M": LINEAR, "E": "moe", "*": FULL, "-": "mlp"}


def spelled(reader: Reader, layer: int) -> str:
    """hybrid_override_pattern has a letter for each layer, * for attention (Nemotron-H)."""
    return LETTERS[reader.need("which layers attend", "hybrid_override_pattern", "layers_block_type")[layer]]


# The type of a layer


def layer_type(reader: Reader, layer: int, rule: Rule) -> str:
    """Return the type of a layer: what the config lists, or the rule of the family; raise unless it is attention."""
    kind = any_type(reader, layer, rule)
    if kind in ATTENTION:
        return kind
    attending = attention_layers(reader, rule)
    if not attending:
        raise ValueError(f"{reader.called}: layer {layer} is {kind!r}, and no layer is attention over tokens")
    listed = ", ".join(map(str, attending[:4])) + (", …" if len(attending) > 4 else "")
    raise ValueError(
        f"{reader.called}: layer {layer} is {kind!r}, which is not attention over tokens, so no scheme describes it. "
        f"Attention is in layer {listed}: Scheme.of(config, layer={attending[0]})"
    )


def any_type(reader: Reader, layer: int, rule: Rule) -> str:
    """Return the type of a layer, attention or not."""
    given: object = reader.given("layer_types", "layers_block_type")
    if not given:
        return rule(reader, layer)
    if not isinstance(given, (list, tuple)):
        raise reader.refuse("layer_types", given, "and must be a list with the type of each layer")
    listed = cast("Sequence[str]", given)
    if layer >= len(listed):
        raise IndexError(
            f"{reader.called}: layer_types lists {len(listed)} layers, and layer {layer} is not among them"
        )
    if reader.counted and len(listed) > reader.layers:
        raise reader.refuse(
            "layer_types", listed, f"a list of {len(listed)} layers, of which the model has {reader.layers}"
        )
    kind = SAME_TYPE.get(listed[layer], listed[layer])
    if kind in PASSED_OVER and not getattr(reader.family, "hybrid", True):
        own = f"and every layer of transformers' {reader.model_type} attends; remove it"
        raise reader.refuse("layer_types", listed, own)
    # transformers has one mask for all layers of models with these rules, whatever is listed.
    if rule in (full, windowed) and kind in ATTENTION and kind != rule(reader, layer):
        own = f"and every layer of transformers' {reader.model_type} is {rule(reader, layer)}; remove it"
        raise reader.refuse("layer_types", listed, own)
    return kind


def attention_layers(reader: Reader, rule: Rule) -> list[int]:
    """Return the layers that are attention over tokens."""
    listed = reader.given("layer_types", "layers_block_type", "hybrid_override_pattern")
    count = len(listed) if listed and not reader.counted else reader.layers
    kinds = [any_type(reader, layer, rule) for layer in range(count)]
    for layer, kind in enumerate(kinds):
        if kind not in ATTENTION and kind not in PASSED_OVER:
            raise ValueError(
                f"{reader.called}: layer {layer} is {kind!r}, and it is not known whether and how such a layer "
                f"attends. Layers that attend: {', '.join((*ATTENTION, *SAME_TYPE))}; layers that do not: "
                f"{', '.join(sorted(PASSED_OVER))}"
            )
    found = [layer for layer, kind in enumerate(kinds) if kind in ATTENTION]
    if not found:
        raise ValueError(f"{reader.called}: layer 0 is {kinds[0]!r}, and no layer is attention over tokens")
    return found


# Which layers rotate


def always(reader: Reader, layer: int, kind: str) -> bool:
    """Every layer rotates."""
    return True


def never(reader: Reader, layer: int, kind: str) -> bool:
    """No layer rotates: order comes from the layers between (Kimi Linear, Nemotron-H)."""
    return False


def if_embedding_is(kind: str) -> Callable[[Reader, int, str], bool]:
    """Layers rotate if position_embedding_type is "rope" (Granite 4) or "rotary" (ESM)."""
    return lambda reader, layer, _: reader.get("position_embedding_type") == kind


def unless_in_no_rope_layers(reader: Reader, layer: int, kind: str = FULL) -> bool:
    """no_rope_layers has 1 for the layers that do rotate; without it every fourth does not (Llama 4, SmolLM3)."""
    listed: list[Any] = reader.given("no_rope_layers")
    if listed:
        if layer >= len(listed):
            raise IndexError(
                f"{reader.called}: no_rope_layers lists {len(listed)} layers, so layer {layer} is not there"
            )
        return bool(listed[layer])
    return bool((layer + 1) % (reader.get("no_rope_layer_interval") or 4))


def if_width_is(width: int) -> Callable[[Reader, int, str], bool]:
    """Layers rotate if the model is so wide (Baichuan)."""
    return lambda reader, layer, kind: reader.width == width


def unless_alibi(reader: Reader, layer: int, kind: str) -> bool:
    """Falcon rotates, Falcon-RW has ALiBi instead."""
    return not reader.get("alibi")


def where_windowed(reader: Reader, layer: int, kind: str) -> bool:
    """Layers with a window rotate, those that see everything do not (Command R7B, EXAONE 4)."""
    return kind == SLIDING or reader.get("sliding_window") is None


def only_where_windowed(reader: Reader, layer: int, kind: str) -> bool:
    """Layers with a window rotate (Flint)."""
    return kind == SLIDING


def windowed_or_dense(reader: Reader, layer: int, kind: str) -> bool:
    """Layers with a window rotate; so do dense ones, unless these have a pattern of their own (Command A MoE)."""
    listed, first = reader.given("mlp_layer_types"), reader.get("first_k_dense_replace") or 0
    dense = layer < first if listed is None else listed[layer] == "dense"
    return kind == SLIDING or (dense and (reader.get("prefix_dense_sliding_window_pattern") or 1) == 1)


def by_layer_rope_theta(reader: Reader, layer: int, kind: str) -> bool:
    """layer_rope_theta has a zero for the layers that do not rotate (Muse Spark, Granite)."""
    listed: list[Any] | None = reader.given("layer_rope_theta")
    return reader.model_type not in LAST_DO_NOT or kind != FULL if listed is None else bool(listed[layer])


LAST_DO_NOT = ("muse_spark_text",)
"""Types whose layers that see everything do not rotate where layer_rope_theta is not listed."""


# Visible keys


def seen(reader: Reader, kind: str, encodes: bool = False, prefixed: bool = False) -> list[Visible]:
    """Return the visible part of a layer of this type: none where every key is seen.

    prefixed: use_bidirectional_attention is about a prefix, which a plain text does not have.
    """
    if not reader.causal and reader.model_type in BY_FUNCTION:
        raise reader.refuse(
            "is_causal", False,
            f"by which transformers' {reader.model_type} looks ahead or not as its attention function and padding go; "
            f"remove it",
        )  # fmt: skip
    both_ways = (encodes and not reader.decodes) or (not prefixed and looks_ahead(reader))
    if kind == CHUNKED:
        # transformers hides what is ahead in a chunk whatever is_causal is.
        return [causal & chunks(reader.need("the size of a chunk", "attention_chunk_size"))]
    if kind == FULL:
        return [] if both_ways or not reader.causal else [causal]
    n = half_window(reader, encodes) if both_ways else one_sided(reader)
    if not reader.causal and not encodes:
        # There the window counts the keys on each side, the query's own not among them.
        return [window(n + 1, ahead=n)]
    return [window(n, ahead=n - 1) if both_ways else causal & window(n)]


BY_FUNCTION = ("nemotron", "stablelm")
"""Types whose masks go by is_causal, and whose attention by sdpa hides what is ahead wherever it is given no mask."""


def looks_ahead(reader: Reader) -> bool:
    """Return True if a config says that every query sees what is ahead; refuse types that do not do what it says."""
    asked = reader.get("use_bidirectional_attention")
    # Gemma 4's "vision" is about the tokens of an image, which a plain text does not have.
    if not asked or asked == "vision":
        return False
    if asked == BOTH_WAYS.get(reader.model_type):
        return True
    if reader.model_type not in PALIGEMMA_TEXTS:
        raise reader.unread("use_bidirectional_attention", asked)
    raise reader.refuse(
        "use_bidirectional_attention", asked,
        f"by which transformers' {reader.model_type} looks ahead or not as its attention function, padding and cache "
        f"go; remove it, or write is_causal: false for a model that looks ahead",
    )  # fmt: skip


BOTH_WAYS: dict[str, object] = {"gemma3_text": True, "gemma4_text": "all", "gemma4_unified_text": "all"}
"""What use_bidirectional_attention is where transformers' masks show every query what is ahead."""
PALIGEMMA_TEXTS = ("gemma", "gemma2")
"""Types whose attention reads it, for the image before a PaliGemma's text, and whose masks do not."""


def one_sided(reader: Reader) -> int:
    """Return how many keys a causal query sees, itself included; ModernBERT's decoder has half of local_attention."""
    both: int | None = reader.own("local_attention", *MODERN)
    if both is not None:
        return both // 2
    # MiMo's config.json counts the keys behind the query's own.
    behind = reader.own("sliding_window_size", "mimo_v2_flash") if isinstance(reader.source, Mapping) else None
    return reader.need("the window", *WINDOW) if behind is None else behind + 1


def half_window(reader: Reader, encodes: bool) -> int:
    """Return how many keys on one side a bidirectional query sees, itself included."""
    both: int | None = reader.own("local_attention", *MODERN)
    if both is not None:
        return both // 2 + 1
    n = reader.need("the window", "sliding_window")
    if encodes:
        # An encoder's window counts the keys on each side, the query's own not among them.
        return n + 1
    # Gemma 3 halves it when it makes a config object; its config.json and to_dict() hold both sides.
    return n // 2 + 1 if reader.model_type in HALVED and isinstance(reader.source, Mapping) else n


MODERN = ("modernbert", "modernbert-decoder")
"""Types with local_attention."""
HALVED = ("gemma3_text", "gemma4_text", "gemma4_unified_text")
WINDOW = ("sliding_window", "attention_window_size")
"""What the window is called; the second in RecurrentGemma."""
