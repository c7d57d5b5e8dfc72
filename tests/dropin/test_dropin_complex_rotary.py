"""Complex RoPE drop-ins against the three codes of one name that they replace (S2, S3, S4; E29, E30, E31, E36)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from milepost.dropin import apply_rotary_emb, precompute_freqs_cis
from tests.dropin.test_dropin import run_block
from tests.oracles import assert_same, in_complex

S2 = """
def precompute_freqs_cis(d_model: int, end: int, theta: float = 10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, d_model, 2)[: (d_model // 2)].float() / d_model))
    t = torch.arange(end, device=freqs.device)
    freqs = torch.outer(t, freqs).float()
    freqs_cis = torch.polar(torch.ones_like(freqs), freqs)
    return freqs_cis

def reshape_for_broadcast(freqs_cis: torch.Tensor, x: torch.Tensor):
    ndim = x.ndim
    assert 0 <= 1 < ndim
    assert freqs_cis.shape == (x.shape[1], x.shape[-1])
    shape = [d if i == 1 or i == ndim - 1 else 1 for i, d in enumerate(x.shape)]
    return freqs_cis.view(*shape)

def apply_rotary_emb(xq: torch.Tensor, xk: torch.Tensor, freqs_cis: torch.Tensor,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = reshape_for_broadcast(freqs_cis, xq_)
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)
"""
S3 = """
def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(end, device=freqs.device)
    freqs = torch.outer(t, freqs).float()
    freqs_cis = torch.polar(torch.ones_like(freqs), freqs)
    return torch.view_as_real(freqs_cis)

def apply_rotary_emb(
    xq: torch.Tensor,
    xk: torch.Tensor,
    freqs_cis: torch.Tensor,
):
    xq_ = xq.float().reshape(*xq.shape[:-1], -1, 2)
    xk_ = xk.float().reshape(*xk.shape[:-1], -1, 2)
    xq_complex = torch.view_as_complex(xq_)
    xk_complex = torch.view_as_complex(xk_)
    freqs_cis = freqs_cis[None, :, None, :]
    freqs_cis = freqs_cis.expand_as(xq_complex)
    xq_out = torch.view_as_real(xq_complex * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_complex * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)
"""
S4 = """
def precompute_freqs_cis(dim: int, seq_len: int, theta: float = 10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(seq_len, device=freqs.device)
    freqs = torch.outer(t, freqs).float()
    freqs_cis = torch.polar(torch.ones_like(freqs), freqs)
    return freqs_cis

def apply_rotary_emb(
    xq: torch.Tensor,
    xk: torch.Tensor,
    freqs_cis: torch.Tensor,
) -> Tuple[torch.Tensor, torch.Tensor]:
    xq_ = xq.float().reshape(*xq.shape[:-1], -1, 2)
    xk_ = xk.float().reshape(*xk.shape[:-1], -1, 2)
    xq_ = torch.view_as_complex(xq_)
    xk_ = torch.view_as_complex(xk_)
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(2)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(2)
    return xq_out.type_as(xq), xk_out.type_as(xk)
"""
IMPORTS = "import torch\nfrom typing import Tuple"
s2, s3, s4 = (run_block(block, IMPORTS) for block in (S2, S3, S4))
WITH_HEADS = [(1, 1, 1, 2), (2, 5, 3, 8), (2, 5, 5, 8), (3, 16, 2, 64), (1, 7, 4, 128)]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers between −1 and 1."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 2 - 1


def exact(x: Tensor, positions: Tensor, theta: float = 10000.0) -> Tensor:
    """The formula in float64; positions broadcast against x [… d] less its channels."""
    d = x.shape[-1]
    angle = positions.double()[..., None] * theta ** (-torch.arange(0, d, 2).double() / d)
    return torch.view_as_real(in_complex(x.double(), "neighbours") * torch.exp(1j * angle)).flatten(-2)


@pytest.mark.parametrize(("dim", "end", "theta"), [(2, 1, 10000.0), (8, 16, 10000.0), (64, 16, 500000.0), (10, 3, 100)])
def test_the_table_is_the_one_it_replaces(dim: int, end: int, theta: float):
    ours = precompute_freqs_cis(dim, end, theta)
    assert ours.dtype == torch.complex64
    for one in (s2, s4):
        assert_same(torch.view_as_real(ours), torch.view_as_real(one.precompute_freqs_cis(dim, end, theta)), 1e-6)
    assert_same(torch.view_as_real(ours), s3.precompute_freqs_cis(dim, end, theta), within=1e-6)


def test_each_note_calls_the_arguments_of_the_table_by_its_own_names():
    ours = precompute_freqs_cis(8, 5)
    assert torch.equal(precompute_freqs_cis(dim=8, end=5, theta=10000.0), ours)
    assert torch.equal(precompute_freqs_cis(d_model=8, end=5), ours)
    assert torch.equal(precompute_freqs_cis(8, seq_len=5), ours)


@pytest.mark.parametrize("shape", WITH_HEADS)
def test_with_heads_it_is_the_one_it_replaces(shape: tuple[int, int, int, int]):
    q, k = random(*shape), random(*shape, seed=1)
    table = s2.precompute_freqs_cis(shape[-1], shape[1])
    for ours, theirs in zip(apply_rotary_emb(q, k, table), s2.apply_rotary_emb(q, k, table), strict=True):
        assert_same(ours, theirs, within=1e-6)
    mine = precompute_freqs_cis(shape[-1], shape[1])
    for one in (s2, s3):
        for ours, theirs in zip(apply_rotary_emb(q, k, mine), one.apply_rotary_emb(q, k, mine), strict=True):
            assert_same(ours, theirs, within=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, 2), (2, 5, 8), (3, 16, 64)])
def test_without_heads_it_is_the_one_it_replaces(shape: tuple[int, int, int]):
    q, k = random(*shape), random(*shape, seed=1)
    table = s4.precompute_freqs_cis(shape[-1], shape[1])
    for ours, theirs in zip(apply_rotary_emb(q, k, table), s4.apply_rotary_emb(q, k, table), strict=True):
        assert_same(ours, theirs, within=1e-6)


def test_far_rows_are_exact_where_float32_angles_drift():
    q = random(1, 2048, 1, 64)
    whole = exact(q, torch.arange(2048)[:, None])
    # Half a step of a product below 2, twice, and the rounding of the table.
    assert_same(apply_rotary_emb(q, q, precompute_freqs_cis(64, 2048))[0], whole, within=3 * 2.0**-24)
    assert (s2.apply_rotary_emb(q, q, s2.precompute_freqs_cis(64, 2048))[0] - whole).abs().max() > 1e-5


def test_e29_a_real_view_of_the_table_turns_like_the_complex_one():
    q, k = random(2, 5, 3, 8), random(2, 5, 3, 8, seed=1)
    real = s3.precompute_freqs_cis(8, 5)
    with pytest.raises(RuntimeError, match="expand"):
        s3.apply_rotary_emb(q, k, real)
    for ours, x in zip(apply_rotary_emb(q, k, real), (q, k), strict=True):
        assert_same(ours, exact(x, torch.arange(5)[:, None]), within=1e-6)


def test_e30_a_table_longer_than_the_text_is_cut():
    q, k = random(2, 5, 3, 8), random(2, 5, 3, 8, seed=1)
    with pytest.raises(AssertionError):
        s2.apply_rotary_emb(q, k, s2.precompute_freqs_cis(8, 9))
    with pytest.raises(RuntimeError, match="expand"):
        s3.apply_rotary_emb(q, k, precompute_freqs_cis(8, 9))
    fitting = apply_rotary_emb(q, k, precompute_freqs_cis(8, 5))
    for long in (precompute_freqs_cis(8, 9), s3.precompute_freqs_cis(8, 9)):
        for ours, theirs in zip(apply_rotary_emb(q, k, long), fitting, strict=True):
            assert_same(ours, theirs, within=1e-6)


def test_e30_heads_before_tokens():
    q, k = random(2, 3, 5, 8), random(2, 3, 5, 8, seed=1)
    table = precompute_freqs_cis(8, 5)
    with pytest.raises(AssertionError):
        s2.apply_rotary_emb(q, k, table)
    for rows in (table, precompute_freqs_cis(8, 9), table.expand(2, 5, 4)):
        for ours, x in zip(apply_rotary_emb(q, k, rows, axis=2), (q, k), strict=True):
            assert_same(ours, exact(x, torch.arange(5)), within=1e-6)


def test_e30_three_axes_keep_their_shape():
    q = random(2, 5, 8)
    assert s2.apply_rotary_emb(q, q, precompute_freqs_cis(8, 5))[0].shape == (2, 5, 4, 2)
    assert_same(apply_rotary_emb(q, q, precompute_freqs_cis(8, 5))[0], exact(q, torch.arange(5)), within=1e-6)


def test_e31_a_table_of_twice_the_longest_text_and_heads():
    table = precompute_freqs_cis(8, 16 * 2)
    with pytest.raises(RuntimeError, match="must match"):
        s4.apply_rotary_emb(random(2, 5, 8), random(2, 5, 8), table)
    with pytest.raises(RuntimeError, match="must match"):
        s4.apply_rotary_emb(random(2, 5, 3, 8), random(2, 5, 3, 8), table[:5])
    # One token is worse: it becomes as many as the table has rows.
    assert s4.apply_rotary_emb(random(2, 1, 8), random(2, 1, 8), table)[0].shape == (2, 32, 8)
    for x, positions in ((random(2, 5, 8), torch.arange(5)), (random(2, 5, 3, 8), torch.arange(5)[:, None])):
        assert_same(apply_rotary_emb(x, x, table)[1], exact(x, positions), within=1e-6)
    assert apply_rotary_emb(random(2, 1, 8), random(2, 1, 8), table)[0].shape == (2, 1, 8)


@pytest.mark.parametrize("shape", [(2, 11, 3, 8), (2, 11, 8)])
def test_decoding_one_token_at_a_time_equals_one_pass(shape: tuple[int, ...]):
    q, k, table = random(*shape), random(*shape, seed=1), precompute_freqs_cis(8, 64)
    whole = apply_rotary_emb(q, k, table)
    steps = [apply_rotary_emb(q[:, n : n + 1], k[:, n : n + 1], table, start=n) for n in range(11)]
    cut = [apply_rotary_emb(q[:, n : n + 1], k[:, n : n + 1], table[n : n + 1]) for n in range(11)]
    for side in (0, 1):
        # Other shapes may take other vector instructions, whose products differ in the last bit.
        assert_same(torch.cat([step[side] for step in steps], 1), whole[side], within=1e-6)
        assert_same(torch.cat([step[side] for step in cut], 1), whole[side], within=1e-6)


def test_each_row_of_a_batch_may_stand_at_positions_of_its_own():
    ids = torch.tensor([[0, 0, 0, 1, 2], [7, 8, 9, 10, 11]])
    q, k = random(2, 5, 4, 8), random(2, 5, 2, 8, seed=1)
    for table in (precompute_freqs_cis(8, 12), s3.precompute_freqs_cis(8, 12)):
        for ours, x in zip(apply_rotary_emb(q, k, table[ids]), (q, k), strict=True):
            assert_same(ours, exact(x, ids[:, :, None]), within=1e-6)


def test_keys_may_have_fewer_heads():
    q, k = random(2, 5, 6, 8), random(2, 5, 2, 8, seed=1)
    ours = apply_rotary_emb(q, k, precompute_freqs_cis(8, 5))
    assert_same(ours[1], exact(k, torch.arange(5)[:, None]), within=1e-6)
    assert ours[0].shape == q.shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_dtype_stays_and_only_the_result_is_rounded(dtype: torch.dtype):
    q = random(1, 600, 2, 64, dtype=torch.float64).to(dtype)
    turned = apply_rotary_emb(q, q, precompute_freqs_cis(64, 600))[0]
    assert turned.dtype == dtype
    whole = exact(q, torch.arange(600)[:, None])
    step = max(torch.finfo(dtype).eps / 2, 2.0**-23)
    assert ((turned.double() - whole).abs() <= step * whole.abs() + 2.0**-22).all()


def test_gradients_turn_back():
    q = random(2, 5, 3, 8).requires_grad_()
    turned, _ = apply_rotary_emb(q, q.detach(), precompute_freqs_cis(8, 5))
    (grad,) = torch.autograd.grad(turned, q, turned.detach())
    assert_same(grad, q, within=1e-6)


@pytest.mark.parametrize("block", [S2, S3, S4])
def test_e36_the_block_alone_lacks_its_imports(block: str):
    with pytest.raises(NameError, match="'torch'"):
        run_block(block)
