"""The slopes, buckets and tables of published models that do not turn are transformers' own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as bloom_alibi
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as falcon_alibi
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention
from transformers.models.mpt.modeling_mpt import MptAttention, build_mpt_alibi_tensor
from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings
from transformers.models.t5.modeling_t5 import T5Attention

from milepost import Alibi, AlibiInterpolate, Learned, Rope, Scale, Schedule, Scheme, T5Bias, causal
from tests.configs import theirs
from tests.configs.published_others import OTHERS
from tests.oracles import assert_same

INDEX = torch.arange(300)


def bias(scheme: Scheme, t: int) -> torch.Tensor:
    """What the scheme adds to scores, [h t t] in float64, with the hidden keys left out."""
    return scheme.bias(INDEX[:t], INDEX[:t], dtype=torch.float64)[0].tril()


def from_the_last(rows: torch.Tensor) -> torch.Tensor:
    """A bias m·j [h s] as −m·(i − j) [h s s]: less what each row gives its own key, which the softmax does not see."""
    return (rows[:, None, :] - rows[:, :, None]).tril()


@pytest.mark.parametrize("name", ["bloom-560m", "bloom"])
def test_blooms_slopes(name):
    heads = OTHERS[name]["num_attention_heads"]
    rows = bloom_alibi(torch.ones(1, 90), heads, torch.float64)[:, 0]
    # transformers raises a float32 base to powers up to 32, and each slope weighs up to 90 tokens.
    assert_same(bias(Scheme.of(OTHERS[name]), 90), from_the_last(rows), 90 * 40 * 2.0**-24)


@pytest.mark.parametrize("name", ["mpt-7b", "mpt-30b"])
def test_mpts_slopes_and_scale(name):
    config, scheme = theirs.config_of(OTHERS[name]), Scheme.of(OTHERS[name])
    rows = build_mpt_alibi_tensor(config.n_heads, 90)[:, 0].double()
    assert_same(bias(scheme, 90), from_the_last(rows), 90 * 2.0**-22)
    with torch.device("meta"):
        assert scheme.scale(config.d_model // config.n_heads) == pytest.approx(MptAttention(config).softmax_scale)


@pytest.mark.parametrize("heads", [8, 12])
def test_mpts_slopes_with_another_largest_exponent(heads):
    scheme = Scheme.of({"model_type": "mpt", "n_heads": heads, "attn_config": {"alibi_bias_max": 16}})
    rows = build_mpt_alibi_tensor(heads, 90, alibi_bias_max=16)[:, 0].double()
    assert_same(bias(scheme, 90), from_the_last(rows), 90 * 2.0**-22)


def test_falcons_slopes_are_divided_like_its_scores():
    config, scheme = theirs.config_of(OTHERS["falcon-rw-1b"]), Scheme.of(OTHERS["falcon-rw-1b"])
    rows = falcon_alibi(torch.ones(1, 90), 32, torch.float64)[:, 0].double() / math.sqrt(config.head_dim)
    # Its slopes and products are bfloat16, each a unit of 2⁻⁹ off; a distance is the difference of two products.
    assert_same(bias(scheme, 90), from_the_last(rows), 2 * 2 * 2.0**-9 * 90 * 2**-0.25 / 8)
    assert scheme.parts == (Alibi(32, stretch=AlibiInterpolate(8.0)), causal)


@pytest.mark.parametrize("name", ["t5-small", "t5-11b", "t5-small, its decoder", "mt5-base"])
def test_t5s_buckets(name):
    scheme, config = Scheme.of(OTHERS[name]), theirs.config_of(OTHERS[name])
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    table = next(part for part in scheme.parts if isinstance(part, T5Bias))
    with torch.no_grad():
        table.table.copy_(module.relative_attention_bias.weight)
    ours = Scheme(*(part for part in scheme.parts if part != Scale(1.0))).bias(INDEX, INDEX)
    oracle = module.compute_bias(300, 300)
    assert_same(ours.nan_to_num(neginf=0), oracle.tril() if name.endswith("decoder") else oracle)
    assert Scale(1.0) in scheme.parts


def test_t5s_table_is_one_for_all_layers_and_umt5s_is_not():
    assert len(Schedule.of(OTHERS["t5-small"]).schemes) == 1
    assert len({id(scheme.parts[0]) for scheme in Schedule.of(OTHERS["umt5-small"])}) == 8


@pytest.mark.parametrize(
    ("name", "length", "dim"),
    [("bert-base", 512, 768), ("gpt2", 1024, 768), ("gpt2-xl", 1024, 1600), ("opt-125m", 2048, 768)],
)
def test_learned_tables(name, length, dim):
    part = Scheme.of(OTHERS[name]).parts[0]
    assert isinstance(part, Learned)
    assert part.table.shape == (length, dim)


def test_rows_that_are_never_used_are_left_out():
    roberta = RobertaEmbeddings(theirs.config_of(OTHERS["roberta-base"] | {"vocab_size": 8}))
    first = roberta.create_position_ids_from_input_ids(torch.tensor([[5, 6]]), padding_idx=1)[0, 0]
    assert roberta.position_embeddings.weight.shape[0] - first == Scheme.of(OTHERS["roberta-base"]).parts[0].length
    opt = OPTLearnedPositionalEmbedding(2048, 4)
    assert opt.weight.shape[0] - opt.offset == Scheme.of(OTHERS["opt-125m"]).parts[0].length


def test_a_table_is_one_part_of_schemes_that_differ():
    schedule = Schedule.of(OTHERS["gpt-neo-125m"])
    assert schedule.order == (0, 1) * 6
    assert schedule[0].parts[0] is schedule[1].parts[0]
    again = Schedule.from_dict(schedule.to_dict())
    assert again[0].parts[0] is again[1].parts[0]


def test_gpt_neos_windows_and_scale():
    config = theirs.config_of(OTHERS["gpt-neo-125m"])
    for layer, kind in enumerate(config.attention_layers[:2]):
        scheme = Scheme.of(OTHERS["gpt-neo-125m"], layer=layer)
        zero = torch.zeros(())
        mask = GPTNeoSelfAttention(config, kind).bias[0, 0, :300, :300]
        assert torch.equal(scheme.see(zero, zero, INDEX[:, None], INDEX), mask)
        assert scheme.scale(64) == 1.0


def test_gpt2_may_scale_layer_by_layer():
    settings: dict[str, Any] = OTHERS["gpt2"] | {"scale_attn_by_inverse_layer_idx": True}
    schedule = Schedule.of(settings)
    assert [scheme.scale(64) for scheme in schedule] == pytest.approx([64**-0.5 / (n + 1) for n in range(12)])
    assert len({id(scheme.parts[0]) for scheme in schedule}) == 1
    assert Scheme.of(OTHERS["gpt2"] | {"scale_attn_weights": False}).scale(64) == 1.0


def test_a_model_that_does_not_turn_says_so():
    with pytest.raises(ValueError, match=r"this model does not rotate its queries and keys\. Use Scheme\.of"):
        Rope.of(OTHERS["bloom"])
    with pytest.raises(ValueError, match=r"no layer rotates queries and keys\. Scheme\.of"):
        Rope.of(OTHERS["falcon-rw-1b"])
