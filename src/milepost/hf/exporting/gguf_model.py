"""Which models a GGUF file can say, and what it says of them: architecture, sizes, rotation, and how weights change.

llama.cpp has an architecture for each model type. Its Llama turns neighbouring channels, so the rows of queries and
keys are brought into that order. Its Gemma multiplies by the weight of a norm, where transformers multiplies by one
more. Its Qwen 2 reads no factors for single pairs; Qwen 2 is Llama with biases, and is written as that where it needs
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from milepost import Rope, Scale, Schedule
from milepost.hf.exporting.gguf_rope import Written, said_by, written_in_gguf
from milepost.hf.exporting.refused import beyond_rotation
from milepost.hf.exporting.source import Source
from milepost.hf.model.rotary import turn_of
from milepost.seams.arguments import spell
from milepost.seams.visible import Causal

LLAMA, QWEN2, QWEN3, GEMMA3 = "llama", "qwen2", "qwen3", "gemma3"
ARCHITECTURES = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3, "gemma3_text": GEMMA3}
"""The architecture of llama.cpp for each model type."""
ACTIVATIONS = {GEMMA3: "gelu_pytorch_tanh"}
DEEP_GEMMA = 62
"""How many layers Gemma 3 27B has: llama.cpp scales its scores by another number, and knows it by that."""


@dataclass(frozen=True)
class InGguf:
    """A model as a GGUF file has it."""

    architecture: str
    rope: Written
    keys: dict[str, Any]
    """Metadata, without the name of the architecture."""
    change: Callable[[str, Tensor], Tensor]
    """What becomes of a weight, by its name in transformers."""
    notes: list[str] = field(default_factory=list[str])


def refused_model(source: Source) -> str | None:
    """Return why llama.cpp, or this writer, has nothing for a model, whatever it is extended with; or None."""
    config, kind = source.config, source.model_type
    if kind not in ARCHITECTURES:
        return f"GGUF files are written for {', '.join(ARCHITECTURES)}, and this is a {kind} model"
    if getattr(config, "quantization_config", None) is not None:
        return "its weights are quantised, and a GGUF file is written from plain ones; load and save them dequantised"
    activation = ACTIVATIONS.get(ARCHITECTURES[kind], "silu")
    given = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None)
    if given != activation:
        return f"llama.cpp's {kind} computes {activation}, and this config says {given}"
    try:
        _layers(source, source.layers.own)
    except ValueError as error:
        return str(error)
    return None


def in_gguf(source: Source) -> InGguf:
    """Return what a GGUF file says of a model; ValueError where it cannot say its scheme."""
    why = beyond_rotation(source)
    if why is not None:
        raise ValueError(f"llama.cpp reads rope metadata and no code, and {why}")
    architecture, trained = ARCHITECTURES[source.model_type], source.trained or source.config.max_position_embeddings
    keys, near = _layers(source, source.schedule)
    turns = {layer: _rope(turn_of(scheme)) for layer, scheme in source.schedule.items()}
    rope = written_in_gguf(said_by([turn for layer, turn in turns.items() if layer not in near]), trained)
    notes = [rope.note] if rope.note else []
    if near:
        local = said_by([turns[layer] for layer in near])
        if local.stretch is not None:
            raise ValueError("llama.cpp's Gemma 3 has no stretch for layers with a window")
        if rope.magnitude:
            raise ValueError(
                "llama.cpp multiplies cosines and sines of every layer alike, and layers with a window are not "
                "stretched; of YaRN its own magnitude alone is for the others"
            )
        keys["rope.freq_base_swa"] = local.theta
    if rope.tensors and architecture == QWEN2:
        architecture = LLAMA
        notes.append("written as a Llama with biases, for llama.cpp's Qwen 2 reads no factor for each pair")
    if rope.tensors and architecture != LLAMA:
        named = next(spell(turn.stretch) for turn in turns.values() if turn.stretch is not None)
        raise ValueError(f"llama.cpp's {architecture} reads no factor for each pair of channels, which {named} needs")
    sizes = _sizes(source, architecture)
    return InGguf(architecture, rope, sizes | {"rope.freq_base": rope.base} | rope.keys | keys,
                  _changes(source, architecture), notes)  # fmt: skip


def _rope(turn: Any) -> Rope:
    if type(turn) is not Rope:
        raise ValueError(f"llama.cpp rotates all channels of a head here, and this model has {turn!r}")
    return turn


def _layers(source: Source, schedule: Schedule) -> tuple[dict[str, Any], list[int]]:
    """Return the metadata of layers with a window, and which they are."""
    windows: dict[int, int] = {}
    for layer, scheme in schedule.items():
        band = scheme.band()
        if band is None or band.sinks or band.chunk is not None:
            raise ValueError(f"llama.cpp shows a layer every key or a window, and layer {layer} has {scheme!r}")
        if band.behind < math.inf:
            windows[layer] = int(band.behind)
        others = [p for p in scheme.parts if p is not turn_of(scheme) and not isinstance(p, Scale) and not _sees(p)]
        if others:
            raise ValueError(f"llama.cpp has nothing for {others[0]!r}, which layer {layer} has")
    if not windows:
        return {}, []
    if ARCHITECTURES[source.model_type] != GEMMA3:
        raise ValueError(f"llama.cpp's {source.model_type} has no layers with a window, and this model has")
    period = next((layer + 1 for layer in schedule.layers if layer not in windows), len(schedule) + 1)
    if len(set(windows.values())) > 1 or list(windows) != [n for n in schedule.layers if n % period < period - 1]:
        raise ValueError(f"llama.cpp wants one layer without a window at the end of each few, and not {schedule!r}")
    size = next(iter(windows.values()))
    return {"attention.sliding_window": size, "attention.sliding_window_pattern": period}, list(windows)


def _sees(part: object) -> bool:
    return isinstance(part, Causal) or hasattr(part, "band") or "see" in dir(part)


def _sizes(source: Source, architecture: str) -> dict[str, Any]:
    config = source.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    longest = max(source.reaches or 0, config.max_position_embeddings)
    found: dict[str, Any] = {
        "context_length": longest, "embedding_length": config.hidden_size, "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size, "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads, "attention.key_length": width,
        "attention.value_length": width, "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": width, "vocab_size": config.vocab_size,
    }  # fmt: skip
    cap = getattr(config, "final_logit_softcapping", None)
    return found | ({"final_logit_softcapping": float(cap)} if architecture == GEMMA3 and cap else {})


def _changes(source: Source, architecture: str) -> Callable[[str, Tensor], Tensor]:
    config = source.config
    if architecture == LLAMA:
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}

        def neighbours(name: str, weight: Tensor) -> Tensor:
            count = next((n for part, n in heads.items() if f".{part}." in name), None)
            if count is None:
                return weight
            # Channels n and n + d/2 become channels 2n and 2n + 1.
            rows: Tensor = cast("Any", weight).unflatten(0, (count, 2, -1))
            return rows.transpose(1, 2).flatten(0, 2)

        return neighbours
    if architecture == GEMMA3:
        width = config.head_dim
        deep = config.num_hidden_layers == DEEP_GEMMA
        theirs = 1 / math.sqrt(config.hidden_size // config.num_attention_heads if deep else width)
        ratio = {scheme.scale(width) / theirs for scheme in source.schedule}.pop()

        def one_more(name: str, weight: Tensor) -> Tensor:
            if not name.endswith("norm.weight"):
                return weight
            # What llama.cpp scales otherwise is made up for in the norm of the queries.
            more = weight.float() + 1
            return more * ratio if name.endswith("q_norm.weight") else more

        return one_more
    return lambda name, weight: weight


def tensors_in(source: Source, made: InGguf) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights and the factors of pairs, by their names in transformers or, for factors, in the file."""
    tied = bool(source.config.tie_word_embeddings)
    for name, factors in made.rope.tensors.items():
        yield name, torch.tensor(factors, dtype=torch.float32)
    for name, weight in source.weights():
        if (tied and name == "lm_head.weight") or name.endswith("rotary_emb.inv_freq"):
            continue
        yield name, made.change(name, weight)
