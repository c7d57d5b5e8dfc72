"""Encoders and decoders of one model, and tables added to embeddings: their schemes answer what transformers does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from milepost import Learned, Scheme, Sinusoidal, T5Bias, attend
from tests.configs.attended import attended, tiny
from tests.configs.test_attended import CLOSE, FAR, compare, wrong
from tests.oracles import assert_same
from tests.parity.peers import merge, split

STACKS: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "decoder_start_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
TEXT = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(2))
GEMMA = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
GEMMA |= {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5, "query_pre_attn_scalar": 12}
GEMMA |= {"attn_logit_softcapping": 2.0, "pad_token_id": 0}


LIKE_BART = (
    "bart",
    "blenderbot",
    "blenderbot-small",
    "m2m_100",
    "marian",
    "mbart",
    "mvp",
    "nllb-moe",
    "pegasus",
    "plbart",
)


@pytest.mark.parametrize("model_type", LIKE_BART)
def test_each_stack_attends_as_transformers_does(model_type: str):
    model = tiny(model_type, **STACKS)
    for call in attended(model, decoder_input_ids=TEXT):
        if call.module.is_decoder and not call.module.is_causal:
            continue  # Attention from one stack to the other has no positions.
        config = {**model.config.to_dict(), "is_decoder": call.module.is_decoder}
        compare(config, 0, call)


def test_whispers_stacks():
    model = tiny("whisper", **STACKS, num_mel_bins=8, max_source_positions=12, max_target_positions=16)
    sound = torch.randn(2, 8, 24, generator=torch.Generator().manual_seed(3))
    for call in attended(model, input_features=sound, decoder_input_ids=TEXT):
        if call.module.is_decoder and not call.module.is_causal:
            continue
        call.q = call.q * call.q.shape[-1] ** 0.5  # Whisper divides its queries by √d before it hands them on.
        compare({**model.config.to_dict(), "is_decoder": call.module.is_decoder}, 0, call)


def test_t5gemmas_stacks():
    model = tiny("t5gemma", encoder=GEMMA, decoder=GEMMA)
    found = attended(model, decoder_input_ids=TEXT, use_cache=False)
    calls = [each for each in found if "Self" in type(each.module).__name__]
    assert len(calls) == 4
    for call in calls:
        compare(call.module.config, call.module.layer_idx, call)
        whole = {**model.config.to_dict(), "is_decoder": call.module.config.is_decoder}
        assert Scheme.of(whole, layer=call.module.layer_idx).same_as(
            Scheme.of(call.module.config, layer=call.module.layer_idx)
        )


# Tables added to embeddings: where they stand in a model, and the row of its first token.
TABLES: dict[str, tuple[dict[str, Any], str, int]] = {
    "distilbert": ({"dim": 32, "n_heads": 4, "n_layers": 1, "hidden_dim": 8}, "embeddings.position_embeddings", 0),
    "albert": ({"embedding_size": 16}, "embeddings.position_embeddings", 0),
    "mpnet": ({"pad_token_id": 1}, "embeddings.position_embeddings", 2),
    "clip_text_model": ({}, "embeddings.position_embedding", 0),
    "esm": ({"pad_token_id": 1, "mask_token_id": 3}, "embeddings.position_embeddings", 2),
    "bart": (STACKS, "encoder.embed_positions", 2),
    "mbart": (STACKS, "encoder.embed_positions", 2),
    "bert-generation": ({}, "embeddings.position_embeddings", 0),
    "biogpt": ({}, "embed_positions", 2),
    "blenderbot": (STACKS, "encoder.embed_positions", 0),
    "blenderbot-small": (STACKS, "encoder.embed_positions", 0),
    "data2vec-text": ({"pad_token_id": 1}, "embeddings.position_embeddings", 2),
    "ernie": ({}, "embeddings.position_embeddings", 0),
    "marian": (STACKS, "encoder.embed_positions", 0),
    "mvp": (STACKS, "encoder.embed_positions", 2),
    "nllb-moe": (STACKS, "encoder.embed_positions", 0),
    "plbart": (STACKS, "encoder.embed_positions", 2),
    "roberta-prelayernorm": ({"pad_token_id": 1}, "embeddings.position_embeddings", 2),
    "siglip_text_model": ({}, "embeddings.position_embedding", 0),
    "xlm-roberta-xl": ({"pad_token_id": 1}, "embeddings.position_embeddings", 2),
    "pegasus": (STACKS, "encoder.embed_positions", 0),
    "m2m_100": (STACKS, "encoder.embed_positions", 0),
    "xglm": ({"d_model": 32, "num_layers": 1, "attention_heads": 4, "ffn_dim": 8}, "embed_positions", 0),
}


@torch.no_grad()
@pytest.mark.parametrize("model_type", sorted(TABLES))
def test_what_is_added_to_each_embedding(model_type: str):
    settings, path, first = TABLES[model_type]
    model = tiny(model_type, **settings)
    module, found = model.get_submodule(path), []
    module.register_forward_hook(lambda module, given, out: found.append(out))
    model(input_ids=TEXT, **({"decoder_input_ids": TEXT} if settings is STACKS else {}))
    part = Scheme.of(model.config).parts[0]
    if isinstance(part, Learned):
        part.table.data.copy_(module.weight[first:])
    assert isinstance(part, (Learned, Sinusoidal))
    assert_same(part.embed(torch.zeros(1, 9, part.model_dim)), found[0].reshape(-1, 9, part.model_dim)[:1], CLOSE)


@torch.no_grad()
def test_whispers_waves_and_rows():
    model = tiny("whisper", **STACKS, num_mel_bins=8, max_source_positions=12, max_target_positions=16)
    waves, rows = (Scheme.of({**model.config.to_dict(), "is_decoder": each}).parts[0] for each in (False, True))
    assert_same(waves.embed(torch.zeros(1, 12, 32))[0], model.encoder.embed_positions.weight, CLOSE)
    assert rows.table.shape == model.decoder.embed_positions.weight.shape


# Attention that stands in a module of its own


def inside(model: Any, name: str, **given: Any) -> list[tuple[Any, Tensor, Tensor]]:
    """Every module of that class that attends to its own input, in one pass: it, its input and its output."""
    calls: list[tuple[Any, Tensor, Tensor]] = []

    def note(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if kwargs.get("key_value_states") is None and kwargs.get("encoder_hidden_states") is None:
            calls.append((module, args[0] if args else kwargs["hidden_states"], out[0]))

    hooks = [
        each.register_forward_hook(note, with_kwargs=True) for each in model.modules() if type(each).__name__ == name
    ]
    model(**{"input_ids": TEXT} | given)
    for hook in hooks:
        hook.remove()
    return calls


def projected(module: Any, x: Tensor, scheme: Scheme, names: tuple[str, ...], d: int) -> Tensor:
    """The module's answer by its own projections and a scheme."""
    q, k, v = (split(getattr(module, name)(x), d) for name in names[:3])
    return getattr(module, names[3])(merge(attend(q, k, v, scheme)))


@torch.no_grad()
def test_mpnets_buckets():
    model = tiny("mpnet")
    calls = inside(model, "MPNetSelfAttention")
    assert len(calls) == 2
    for module, x, out in calls:
        scheme = Scheme.of(model.config)
        bias = next(part for part in scheme.parts if isinstance(part, T5Bias))
        bias.table.data.copy_(model.encoder.relative_attention_bias.weight)
        assert_same(projected(module, x, scheme.attention, ("q", "k", "v", "o"), 8), out, CLOSE)
        for other in wrong(scheme.attention, 8):
            assert (projected(module, x, other, ("q", "k", "v", "o"), 8) - out).abs().max() > FAR


@torch.no_grad()
def test_xglm():
    model = tiny("xglm", d_model=32, num_layers=2, attention_heads=4, ffn_dim=8)
    for module, x, out in inside(model, "XGLMAttention"):
        scheme, names = Scheme.of(model.config).attention, ("q_proj", "k_proj", "v_proj", "out_proj")
        assert_same(projected(module, x, scheme, names, 8), out, CLOSE)
        for other in wrong(scheme, 8):
            assert (projected(module, x, other, names, 8) - out).abs().max() > FAR


@torch.no_grad()
def test_longt5s_blocks_are_a_window():
    settings = {"d_model": 32, "d_kv": 8, "d_ff": 16, "num_heads": 4, "num_layers": 2, "local_radius": 3}
    model = tiny("longt5", **settings)
    calls = inside(model.encoder, "LongT5LocalAttention")
    assert len(calls) == 2
    for module, x, out in calls:
        scheme = Scheme.of(model.config)
        bias = next(part for part in scheme.parts if isinstance(part, T5Bias))
        bias.table.data.copy_(calls[0][0].relative_attention_bias.weight)
        assert_same(projected(module, x, scheme, ("q", "k", "v", "o"), 8), out, CLOSE)
        for other in wrong(scheme, 8):
            assert (projected(module, x, other, ("q", "k", "v", "o"), 8) - out).abs().max() > FAR


@torch.no_grad()
def test_longt5s_decoder():
    settings = {"d_model": 32, "d_kv": 8, "d_ff": 16, "num_heads": 4, "num_layers": 1, "num_decoder_layers": 2}
    model = tiny("longt5", **settings)
    calls = inside(model, "LongT5Attention", decoder_input_ids=TEXT, use_cache=False)
    assert len(calls) == 2
    for module, x, out in calls:
        scheme = Scheme.of({**model.config.to_dict(), "is_decoder": True})
        bias = next(part for part in scheme.parts if isinstance(part, T5Bias))
        bias.table.data.copy_(calls[0][0].relative_attention_bias.weight)
        assert_same(projected(module, x, scheme, ("q", "k", "v", "o"), 8), out, CLOSE)
        for other in wrong(scheme, 8):
            assert (projected(module, x, other, ("q", "k", "v", "o"), 8) - out).abs().max() > FAR


@torch.no_grad()
def test_leds_decoder():
    lengths = {"max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 16, "attention_window": 8}
    model = tiny("led", **STACKS | lengths)
    calls = inside(model.decoder, "LEDDecoderAttention", use_cache=False)
    table, visible = Scheme.of({**model.config.to_dict(), "is_decoder": True}).parts
    assert table.table.shape == model.decoder.embed_positions.weight.shape
    assert len(calls) == 1
    for module, x, out in calls:
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        assert_same(projected(module, x, Scheme(visible), names, 16), out, CLOSE)
        assert (projected(module, x, Scheme(), names, 16) - out).abs().max() > FAR
