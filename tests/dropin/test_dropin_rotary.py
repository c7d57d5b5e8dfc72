"""Real-valued RoPE drop-ins against the code they replace (S0's Llama, S2's one call; E32, E36)."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from milepost.dropin import LlamaRotaryEmbedding, apply_rotary_pos_emb, rotary_position_embedding, rotate_half
from tests.dropin.test_dropin import run_block
from tests.dropin.test_dropin_complex_rotary import exact, random
from tests.exact import exact_turns
from tests.oracles import assert_same, turned

S0 = """
class LlamaRotaryEmbedding(torch.nn.Module):
    def __init__(self, head_dim, max_position_embeddings=2048, base=10000, device=None):
        super().__init__()
        inv_freq = 1.0 / (
            base ** (torch.arange(0, head_dim, 2).float().to(device) / head_dim)
        )
        self.register_buffer("inv_freq", inv_freq)
        self.max_seq_len_cached = max_position_embeddings
        t = torch.arange(
            self.max_seq_len_cached,
            device=self.inv_freq.device,
            dtype=self.inv_freq.dtype,
        )
        freqs = torch.einsum("i,j->ij", t, self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer(
            "cos_cached", emb.cos()[None, None, :, :], persistent=False
        )
        self.register_buffer(
            "sin_cached", emb.sin()[None, None, :, :], persistent=False
        )

    def forward(self, x, seq_len=None):
        if seq_len > self.max_seq_len_cached:
            self.max_seq_len_cached = seq_len
            t = torch.arange(
                self.max_seq_len_cached, device=x.device, dtype=self.inv_freq.dtype
            )
            freqs = torch.einsum("i,j->ij", t, self.inv_freq)
            emb = torch.cat((freqs, freqs), dim=-1).to(x.device)
            self.register_buffer(
                "cos_cached", emb.cos()[None, None, :, :], persistent=False
            )
            self.register_buffer(
                "sin_cached", emb.sin()[None, None, :, :], persistent=False
            )
        return (
            self.cos_cached[:, :, :seq_len, ...].to(dtype=x.dtype),
            self.sin_cached[:, :, :seq_len, ...].to(dtype=x.dtype),
        )

def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)

def apply_rotary_pos_emb(q, k, cos, sin, position_ids):
    cos = cos.squeeze(1).squeeze(0)
    sin = sin.squeeze(1).squeeze(0)
    cos = cos[position_ids].unsqueeze(1)
    sin = sin[position_ids].unsqueeze(1)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed
"""
S2 = """
import torch
import math
def rotary_position_embedding(q, k):
    batch_size, num_heads, seq_len, dim = q.size()
    position = torch.arange(seq_len, dtype=torch.float).unsqueeze(-1).to(q.device)
    div_term = torch.exp(torch.arange(0, dim, 2, dtype=torch.float) * -(math.log(10000.0) / dim)).to(q.device)
    pos_emb = position * div_term
    pos_emb = torch.stack([torch.sin(pos_emb), torch.cos(pos_emb)], dim=-1).flatten(-2, -1)
    pos_emb = pos_emb.unsqueeze(0).unsqueeze(1)
    pos_emb = pos_emb.expand(batch_size, num_heads, -1, -1)
    cos_emb = pos_emb[..., 1::2].repeat_interleave(2, dim=-1)
    sin_emb = pos_emb[..., ::2].repeat_interleave(2, dim=-1)
    q_alternate = torch.stack([-q[..., 1::2], q[..., ::2]], dim=-1).reshape(q.size())
    k_alternate = torch.stack([-k[..., 1::2], k[..., ::2]], dim=-1).reshape(k.size())
    q_rotated = q * cos_emb + q_alternate * sin_emb
    k_rotated = k * cos_emb + k_alternate * sin_emb
    return q_rotated, k_rotated
"""
s0, s2 = run_block(S0, "import torch"), run_block(S2)
SHAPES = [(1, 1, 1, 2), (2, 3, 5, 8), (2, 5, 5, 8), (2, 2, 16, 64), (1, 2, 12, 128)]


def exact_halves(x: Tensor, positions: Tensor) -> Tensor:
    """The formula in float64, pairs (n, n + d/2)."""
    pairs = turned(x.double(), positions)
    return torch.cat((pairs.real, pairs.imag), -1)


@pytest.mark.parametrize("shape", SHAPES)
def test_one_call_is_the_one_it_replaces(shape: tuple[int, int, int, int]):
    q, k = random(*shape), random(*shape, seed=1)
    for ours, theirs in zip(rotary_position_embedding(q, k), s2.rotary_position_embedding(q, k), strict=True):
        assert_same(ours, theirs, within=1e-6)


def test_one_call_with_a_cache_of_raw_keys_takes_the_last_positions():
    q, k = random(2, 4, 3, 8), random(2, 2, 11, 8, seed=1)
    turned_q, turned_k = rotary_position_embedding(q, k)
    assert_same(turned_q, exact(q, torch.arange(8, 11)), within=1e-6)
    assert_same(turned_k, exact(k, torch.arange(11)), within=1e-6)
    with pytest.raises(RuntimeError):
        s2.rotary_position_embedding(q, k)


def test_one_call_with_a_cache_of_turned_keys_starts_after_them():
    q, k = random(2, 3, 11, 8), random(2, 3, 11, 8, seed=1)
    whole = rotary_position_embedding(q, k)
    steps = [rotary_position_embedding(q[:, :, n : n + 1], k[:, :, n : n + 1], start=n) for n in range(11)]
    for side in (0, 1):
        # Other shapes may take other vector instructions, whose products differ in the last bit.
        assert_same(torch.cat([step[side] for step in steps], 2), whole[side], within=1e-6)


def test_one_call_keeps_the_dtype():
    q = random(1, 2, 600, 64).bfloat16()
    ours = rotary_position_embedding(q, q)[0]
    whole = exact(q, torch.arange(600))
    assert ours.dtype == torch.bfloat16
    assert ((ours.double() - whole).abs() <= 2.0**-8 * whole.abs() + 2.0**-22).all()


@pytest.mark.parametrize(("dim", "base"), [(2, 10000), (8, 10000), (64, 500000), (128, 10000.0)])
@pytest.mark.parametrize("seq_len", [1, 5, 16])
def test_the_tables_are_the_ones_they_replace(dim: int, base: float, seq_len: int):
    x = torch.zeros(1, 1, seq_len, dim)
    for ours, theirs in zip(
        LlamaRotaryEmbedding(dim, 32, base)(x, seq_len=seq_len),
        s0.LlamaRotaryEmbedding(dim, 32, base)(x, seq_len=seq_len),
        strict=True,
    ):
        assert ours.dtype == theirs.dtype
        assert_same(ours, theirs, within=1e-6)


@pytest.mark.parametrize("shape", [(2,), (3, 4), (2, 3, 5, 8)])
def test_half_a_turn_is_the_one_it_replaces(shape: tuple[int, ...]):
    assert torch.equal(rotate_half(random(*shape)), s0.rotate_half(random(*shape)))


@pytest.mark.parametrize("shape", SHAPES)
def test_turning_by_tables_is_the_one_it_replaces(shape: tuple[int, int, int, int]):
    q, k = random(*shape), random(*shape, seed=1)
    b, t, d = shape[0], shape[2], shape[3]
    generator = torch.Generator().manual_seed(2)
    cos, sin = s0.LlamaRotaryEmbedding(d)(q, seq_len=16)
    mine = LlamaRotaryEmbedding(d)(q, seq_len=16)
    for ids in (torch.arange(t)[None], torch.randint(0, 16, (b, t), generator=generator)):
        theirs = s0.apply_rotary_pos_emb(q, k, cos, sin, ids)
        for tables in ((cos, sin), (cos[0, 0], sin[0, 0]), mine):
            for one, other in zip(apply_rotary_pos_emb(q, k, *tables, ids), theirs, strict=True):
                assert_same(one, other, within=1e-6)


def test_positions_without_a_batch_axis_are_those_of_the_tokens():
    q = random(2, 5, 5, 8)
    cos, sin = LlamaRotaryEmbedding(8)(q)
    # As many heads as tokens: the code it replaces turned each head by its number.
    theirs = s0.apply_rotary_pos_emb(q, q, cos, sin, torch.arange(5))[0]
    assert_same(theirs, exact_halves(q, torch.arange(5)[:, None]), within=1e-6)
    ours = apply_rotary_pos_emb(q, q, cos, sin, torch.arange(5))[0]
    assert_same(ours, exact_halves(q, torch.arange(5)), within=1e-6)


def test_e32_the_length_may_be_left_out():
    x = random(2, 3, 7, 8)
    with pytest.raises(TypeError, match="'NoneType' and 'int'"):
        s0.LlamaRotaryEmbedding(8)(x)
    module = LlamaRotaryEmbedding(8)
    for ours, asked in zip(module(x), module(x, seq_len=7), strict=True):
        assert ours.shape == (1, 1, 7, 8)
        assert torch.equal(ours, asked)
    assert module(x, seq_len=torch.tensor(9))[0].shape == (1, 1, 9, 8)


def test_e32_nothing_is_saved_and_what_was_saved_is_passed_over():
    saved = s0.LlamaRotaryEmbedding(8).state_dict()
    assert list(saved) == ["inv_freq"]
    for module in (LlamaRotaryEmbedding(8), copy.deepcopy(LlamaRotaryEmbedding(8))):
        assert module.state_dict() == {}
        module.load_state_dict(saved)
        inside = torch.nn.ModuleDict({"rotary": module})
        inside.load_state_dict({"rotary.inv_freq": saved["inv_freq"]})
        with pytest.raises(RuntimeError, match="Unexpected key"):
            module.load_state_dict({"other": saved["inv_freq"]})


def test_longer_texts_make_the_tables_grow():
    module, x = LlamaRotaryEmbedding(8, max_position_embeddings=4), random(1, 1, 3, 8)
    assert module.max_seq_len_cached == 4
    cos, sin = module(x, seq_len=100)
    angle = torch.arange(100).double()[:, None] * 10000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    assert_same(cos, angle.cos().repeat(1, 2)[None, None], within=2.0**-24)
    assert_same(sin, angle.sin().repeat(1, 2)[None, None], within=2.0**-24)
    assert module.max_seq_len_cached >= 100
    assert torch.equal(module(x)[0], LlamaRotaryEmbedding(8)(x)[0])
    assert module.state_dict() == {}


def test_decoding_past_the_table_builds_it_seldom():
    module, x = LlamaRotaryEmbedding(8, max_position_embeddings=4), random(1, 1, 1, 8)
    built = {id(module.cos_cached)}
    for length in range(1, 65):
        module(x, seq_len=length)
        built.add(id(module.cos_cached))
    assert module.max_seq_len_cached == 64
    assert len(built) <= 5


def test_with_a_cache_a_token_takes_the_row_of_its_position():
    module = LlamaRotaryEmbedding(8, max_position_embeddings=4)
    q, k = random(2, 4, 11, 8), random(2, 2, 11, 8, seed=1)
    whole = apply_rotary_pos_emb(q, k, *module(k), torch.arange(11)[None])
    for n in range(11):
        one = slice(n, n + 1)
        tables = module(k[:, :, one], seq_len=n + 1)
        step = apply_rotary_pos_emb(q[:, :, one], k[:, :, one], *tables, torch.tensor([[n]]))
        for ours, theirs in zip(step, whole, strict=True):
            assert torch.equal(ours, theirs[:, :, one])


def test_left_padding_is_just_positions():
    q = random(2, 3, 5, 8)
    ids = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])
    ours = apply_rotary_pos_emb(q, q, *LlamaRotaryEmbedding(8)(q), ids)[0]
    assert_same(ours, exact_halves(q, ids[:, None]), within=1e-6)


def test_positions_survive_a_cast_to_bfloat16():
    positions = [1, 257, 512, 513, 4095]
    rough, x = LlamaRotaryEmbedding(64).bfloat16(), torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16)
    for table, exactly in zip(rough(x, seq_len=4096), exact_turns(positions, 64), strict=True):
        assert table.dtype == torch.bfloat16
        assert torch.equal(table[0, 0, positions], exactly.float().bfloat16().repeat(1, 2))
    # The code it replaces counts positions in bfloat16, which holds no odd number past 256.
    theirs = s0.LlamaRotaryEmbedding(64).bfloat16()(x, seq_len=4096)[0]
    assert torch.equal(theirs[0, 0, 512], theirs[0, 0, 513])


def test_tables_that_have_been_bfloat16_are_as_good_as_new():
    module, x = LlamaRotaryEmbedding(64), torch.zeros(1, 1, 2048, 64)
    whole = [table.clone() for table in module(x)]
    assert all(map(torch.equal, module.bfloat16().float()(x), whole))


def test_tables_are_made_where_the_queries_are():
    with torch.device("meta"):
        module = LlamaRotaryEmbedding(8)
    x = torch.zeros(1, 1, 5, 8)
    for _ in range(2):
        assert all(map(torch.equal, module(x), LlamaRotaryEmbedding(8)(x)))
        assert [table.device.type for table in module(x.to("meta"))] == ["meta"] * 2


def test_tables_that_grew_in_inference_mode_can_be_trained_with():
    module = LlamaRotaryEmbedding(8, max_position_embeddings=4)
    q = random(1, 2, 9, 8).requires_grad_()
    with torch.inference_mode():
        module(q)
    cos, sin = module(q)
    (q * cos + rotate_half(q) * sin).sum().backward()
    assert q.grad is not None


@pytest.mark.parametrize("tables", [torch.float32, torch.bfloat16])
def test_the_dtype_of_queries_stays_whatever_that_of_the_tables(tables: torch.dtype):
    q = random(1, 2, 5, 8).bfloat16()
    cos, sin = LlamaRotaryEmbedding(8)(q.to(tables))
    ours = apply_rotary_pos_emb(q, q, cos, sin, torch.arange(5)[None])
    assert [each.dtype for each in ours] == [torch.bfloat16] * 2


def test_e36_the_block_alone_lacks_its_imports():
    with pytest.raises(NameError, match="'torch'"):
        run_block(S0.replace("(torch.nn.Module)", "(object)")).rotate_half(random(2))
