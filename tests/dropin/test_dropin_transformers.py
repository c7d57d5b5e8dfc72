"""Code written for the transformers of today runs with its import changed, and so does older code."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV2Config, GPTNeoXConfig, Llama4TextConfig, LlamaConfig, LlamaForCausalLM, Phi3Config
from transformers.models.bloom import modeling_bloom
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.falcon import modeling_falcon
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama
from transformers.models.llama4 import modeling_llama4
from transformers.models.phi3 import modeling_phi3

from milepost import Rope, dropin
from milepost.dropin import LlamaRotaryEmbedding, apply_rotary_pos_emb
from tests.configs.ours import bound
from tests.dropin.test_dropin_complex_rotary import random
from tests.oracles import assert_same

SHAPE = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
SHAPE |= {"intermediate_size": 16, "vocab_size": 32, "max_position_embeddings": 64}
IDS = torch.tensor([[0, 0, 0, 1, 2, 3, 4], [5, 6, 7, 8, 40, 41, 42]])
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 16},
}


def llama(kind: str = "default") -> LlamaConfig:
    return LlamaConfig(**SHAPE, rope_parameters={"rope_type": kind, "rope_theta": 1e4, **ROPES[kind]})


def within(config: Any, last: int = 42) -> float:
    """How far a float32 angle of theirs may be off, and its cosine by two units more, times the magnitude."""
    return 2 * (last * bound(Rope.of(config)) + 2.0**-22)


def pair(d: int = 16, t: int = 7, axis: int = 2) -> tuple[Tensor, Tensor]:
    q, k = random(2, 4, t, d), random(2, 2, t, d, seed=1)
    return (q, k) if axis == 2 else (q.transpose(1, 2), k.transpose(1, 2))


def agree(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], off: float) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        assert_same(one, other, off)


# The tables


@pytest.mark.parametrize("kind", ROPES)
def test_tables_of_a_config_are_transformers(kind: str):
    config, x = llama(kind), random(2, 7, 64)
    theirs = modeling_llama.LlamaRotaryEmbedding(config)
    for module in (LlamaRotaryEmbedding(config), LlamaRotaryEmbedding(config=config)):
        agree(module(x, IDS), theirs(x, IDS), within(config))
        agree(module(x, position_ids=IDS[:1]), theirs(x, position_ids=IDS[:1]), within(config))
        # One row of positions for all texts, as 5.22 lets it be.
        agree(module(x, IDS[1]), theirs(x, IDS[1]), within(config))


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_tables_past_the_trained_length_follow_the_longest_text_of_the_batch(kind: str):
    config, x = llama(kind), random(1)
    for last in (15, 16, 63, 64, 200):
        ids = torch.stack((torch.arange(5), torch.arange(last - 4, last + 1)))
        # A module of theirs keeps what it grew to, so each length has a new one.
        theirs = modeling_llama.LlamaRotaryEmbedding(config)(x, ids)
        agree(LlamaRotaryEmbedding(config)(x, ids), theirs, within(config, last))


def test_tables_come_in_the_dtype_of_x_and_save_nothing():
    config = llama("yarn")
    theirs = modeling_llama.LlamaRotaryEmbedding(config)
    module = LlamaRotaryEmbedding(config)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        x = torch.zeros(1, dtype=dtype)
        assert [each.dtype for each in module(x, IDS)] == [each.dtype for each in theirs(x, IDS)] == [dtype] * 2
    assert module.state_dict() == {}
    assert all(map(torch.equal, module.bfloat16()(random(1), IDS), LlamaRotaryEmbedding(config)(random(1), IDS)))


@pytest.mark.parametrize("kind", ROPES)
def test_what_else_is_read_off_the_module(kind: str):
    theirs, ours = modeling_llama.LlamaRotaryEmbedding(llama(kind)), LlamaRotaryEmbedding(llama(kind))
    assert ours.inv_freq.dtype == torch.float32
    assert_same(ours.inv_freq / theirs.inv_freq, torch.ones(8), 2 * bound(Rope.of(llama(kind))))
    assert ours.attention_scaling == pytest.approx(theirs.attention_scaling, rel=1e-14)
    assert ours.max_seq_len_cached == theirs.max_seq_len_cached == 64
    assert ours.config.rope_parameters == theirs.config.rope_parameters


def test_a_device_may_stand_beside_a_config():
    # transformers from 4.45 on, until 5.22 dropped it.
    for module in (LlamaRotaryEmbedding(llama(), "cpu"), LlamaRotaryEmbedding(llama(), device=torch.device("cpu"))):
        assert module(random(1), IDS)[0].shape == (2, 7, 16)


def test_a_config_with_a_number_of_tokens_gives_the_old_tables():
    module, plain = LlamaRotaryEmbedding(llama()), LlamaRotaryEmbedding(16, 64, 10000.0)
    x = random(2, 4, 7, 16)
    assert all(map(torch.equal, module(x), plain(x)))
    assert all(map(torch.equal, module(x, seq_len=100), plain(x, 100)))
    grown = LlamaRotaryEmbedding(llama("dynamic"))(x, 100)
    oracle = modeling_llama.LlamaRotaryEmbedding(llama("dynamic"))(x, torch.arange(100)[None])
    agree(tuple(each[0] for each in grown), oracle, within(llama("dynamic"), 100))


def test_a_width_with_positions_is_the_form_in_between():
    # transformers 4.38 to 4.42: made by a width, called with positions; a width is called dim.
    theirs = modeling_llama.LlamaRotaryEmbedding(llama())(random(1), IDS)
    for module in (LlamaRotaryEmbedding(16), LlamaRotaryEmbedding(dim=16, base=10000.0)):
        agree(module(random(1), IDS), theirs, within(llama()))
        agree(module(random(1), IDS, seq_len=3), theirs, within(llama()))


# Turning by them


@pytest.mark.parametrize("axis", [2, 1], ids=["heads before tokens", "tokens before heads"])
@pytest.mark.parametrize("rows", [2, 1], ids=["a row of positions a text", "one for all"])
def test_turning_is_transformers(axis: int, rows: int):
    q, k = pair(axis=axis)
    cos, sin = modeling_llama.LlamaRotaryEmbedding(llama())(q, IDS[:rows])
    unsqueeze = {2: 1, 1: 2}[axis]
    theirs = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=unsqueeze)
    agree(apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=unsqueeze), theirs, 1e-6)
    agree(apply_rotary_pos_emb(q, k, cos, sin, unsqueeze), theirs, 1e-6)
    agree(apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=unsqueeze - 4), theirs, 1e-6)
    if axis == 2:
        agree(apply_rotary_pos_emb(q, k, cos, sin), theirs, 1e-6)
        agree(apply_rotary_pos_emb(q=q, k=k, cos=cos, sin=sin), theirs, 1e-6)


def test_positions_beside_rows_that_are_chosen_already_say_nothing():
    # transformers 4.38 to 4.47 took them and passed over them.
    q, k = pair()
    cos, sin = LlamaRotaryEmbedding(llama())(q, IDS)
    for more in ((IDS,), (None,), (IDS, 1)):
        assert all(map(torch.equal, apply_rotary_pos_emb(q, k, cos, sin, *more), apply_rotary_pos_emb(q, k, cos, sin)))


@pytest.mark.parametrize("axis", [2, 1], ids=["heads before tokens", "tokens before heads"])
def test_old_tables_with_positions_and_new_rows_turn_alike(axis: int):
    (q, k), unsqueeze = pair(axis=axis), {2: 1, 1: 2}[axis]
    tables = LlamaRotaryEmbedding(16)(q, seq_len=64)
    new = apply_rotary_pos_emb(q, k, *LlamaRotaryEmbedding(llama())(q, IDS), unsqueeze_dim=unsqueeze)
    agree(apply_rotary_pos_emb(q, k, *tables, IDS, unsqueeze_dim=unsqueeze), new, 1e-6)
    first = apply_rotary_pos_emb(q, k, *LlamaRotaryEmbedding(llama())(q, torch.arange(7)), unsqueeze_dim=unsqueeze)
    agree(apply_rotary_pos_emb(q, k, *tables, torch.arange(7), unsqueeze_dim=unsqueeze), first, 1e-6)
    # A table with as many rows as there are tokens needs no positions.
    short = LlamaRotaryEmbedding(16)(q, seq_len=7)
    agree(apply_rotary_pos_emb(q, k, *short, unsqueeze_dim=unsqueeze), first, 1e-6)


@pytest.mark.parametrize(
    ("module", "config"),
    [
        (modeling_gpt_neox, GPTNeoXConfig(**SHAPE, rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.25})),
        (modeling_phi3, Phi3Config(**SHAPE, rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5})),
    ],
    ids=["gpt_neox", "phi3"],
)
def test_narrow_tables_turn_the_first_channels(module: Any, config: Any):
    embedding = next(each for name, each in vars(module).items() if name.endswith("RotaryEmbedding"))
    q, k = pair()
    tables = embedding(config)(q, IDS)
    agree(LlamaRotaryEmbedding(config)(q, IDS), tables, within(config))
    agree(apply_rotary_pos_emb(q, k, *tables), module.apply_rotary_pos_emb(q, k, *tables), 1e-6)


def test_gradients_are_those_of_transformers():
    (q, k), config = pair(), llama("yarn")
    tables = modeling_llama.LlamaRotaryEmbedding(config)(q, IDS)
    wanted = random(2, 4, 7, 16, seed=2)
    found: list[Tensor] = []
    for turn in (apply_rotary_pos_emb, modeling_llama.apply_rotary_pos_emb):
        x = q.clone().requires_grad_()
        (turn(x, k, *tables)[0] * wanted).sum().backward()
        assert x.grad is not None
        found.append(x.grad)
    assert_same(found[0], found[1], 1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", ROPES)
def test_a_whole_llama_with_its_functions_exchanged(kind: str, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama(kind)).eval()
    ids = torch.arange(24)[None] % 32
    theirs = model(ids).logits
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", apply_rotary_pos_emb)
    model.model.rotary_emb = LlamaRotaryEmbedding(model.config)
    assert_same(model(ids).logits, theirs, 1e-5)
    broken = LlamaRotaryEmbedding(16, base=77.0)
    model.model.rotary_emb = broken
    assert (model(ids).logits - theirs).abs().max() > 1e-4


def test_one_traced_graph():
    config, (q, k) = llama("dynamic"), pair()
    module = LlamaRotaryEmbedding(config)

    def turn(q: Tensor, k: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return apply_rotary_pos_emb(q, k, *module(q, ids))

    agree(torch.compile(turn, fullgraph=True, backend="eager")(q, k, IDS), turn(q, k, IDS), 1e-6)


# Complex tables and slopes


def test_complex_tables_of_llama_4():
    config = Llama4TextConfig(**SHAPE | {"head_dim": 16})
    table = modeling_llama4.Llama4TextRotaryEmbedding(config)(random(1), IDS)
    q, k = pair(axis=1)
    agree(dropin.apply_rotary_emb(q, k, table), modeling_llama4.apply_rotary_emb(q, k, table), 1e-6)


def test_complex_tables_of_deepseek_v2_have_their_tokens_on_axis_2():
    config = DeepseekV2Config(**SHAPE, qk_rope_head_dim=16, qk_nope_head_dim=8)
    table = modeling_deepseek_v2.DeepseekV2RotaryEmbedding(config)(random(1), IDS)
    q, k = pair()
    agree(dropin.apply_rotary_emb(q, k, table, axis=2), modeling_deepseek_v2.apply_rotary_emb(q, k, table), 1e-6)
    with pytest.raises(ValueError, match=r"if tokens are on axis 2, as after transpose\(1, 2\), give axis=2"):
        dropin.apply_rotary_emb(q, k, table)


@pytest.mark.parametrize("heads", [1, 3, 8, 12])
def test_slopes_times_positions_of_bloom_and_falcon(heads: int):
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
    for dtype in (torch.float32, torch.bfloat16):
        ours = dropin.build_alibi_tensor(mask, heads, dtype)
        agree((ours,), (modeling_bloom.build_alibi_tensor(mask, heads, dtype),), 1e-6 if dtype.itemsize == 4 else 0.02)
        assert torch.equal(ours, dropin.build_alibi_tensor(attention_mask=mask, num_heads=heads, dtype=dtype))
    # Falcon's slopes and products are bfloat16, each half a unit of 2⁻⁸ off, up to five tokens away.
    theirs = modeling_falcon.build_alibi_tensor(mask, heads, torch.float32)
    agree((dropin.build_alibi_tensor(mask, heads, torch.float32),), (theirs,), 5 * 2.0**-8)
    assert math.isclose(float(theirs.abs().max()), float(ours.abs().max()), rel_tol=0.02)
