"""The attention layer against the code it replaces (S3 and S4; E29, E31), and what that code could not do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import milepost as mp
from milepost.dropin import RotaryAttention
from tests.dropin.test_dropin import run_block
from tests.dropin.test_dropin_complex_rotary import S3 as S3_TURNS
from tests.dropin.test_dropin_complex_rotary import S4 as S4_TURNS
from tests.oracles import assert_same

S3 = """
class RotaryAttention(nn.Module):
    def __init__(self, d_model: int, n_heads: int, max_seq_len: int = 2048):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.head_dim = d_model // n_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.freqs_cis = precompute_freqs_cis(self.head_dim, max_seq_len)

    def forward(self, x):
        B, L, D = x.shape
        q = self.q_proj(x).view(B, L, self.n_heads, self.head_dim)
        k = self.k_proj(x).view(B, L, self.n_heads, self.head_dim)
        v = self.v_proj(x).view(B, L, self.n_heads, self.head_dim)
        freqs_cis = self.freqs_cis[:L].to(x.device)
        q, k = apply_rotary_emb(q, k, freqs_cis)
        q = q.transpose(1, 2)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        attn = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
        attn = F.softmax(attn, dim=-1)
        out = torch.matmul(attn, v)
        out = out.transpose(1, 2).contiguous().view(B, L, D)
        return self.out_proj(out)
"""
S4 = """
class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.wq = Linear(...)
        self.wk = Linear(...)
        self.wv = Linear(...)
        self.freqs_cis = precompute_freqs_cis(dim, max_seq_len * 2)

    def forward(self, x: torch.Tensor):
        bsz, seqlen, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(batch_size, seq_len, dim)
        xk = xk.view(batch_size, seq_len, dim)
        xv = xv.view(batch_size, seq_len, dim)
        xq, xk = apply_rotary_emb(xq, xk, freqs_cis=freqs_cis)
        scores = torch.matmul(xq, xk.transpose(1, 2)) / math.sqrt(dim)
        scores = F.softmax(scores.float(), dim=-1)
        output = torch.matmul(scores, xv)
        return output
"""
"""It ends in dots, for which the last line stands."""
IMPORTS = "import math, torch\nimport torch.nn.functional as F\nfrom torch import nn\nfrom typing import Tuple\n"
# E29 fixed in one place, the table returned as it is meant to be used.
COMPLEX = S3_TURNS.replace("return torch.view_as_real(freqs_cis)", "return freqs_cis")
fixed = run_block(COMPLEX + S3, IMPORTS)


def tokens(b: int = 2, t: int = 9, d: int = 16) -> Tensor:
    return torch.randn(b, t, d, generator=torch.Generator().manual_seed(0))


def alike(module: RotaryAttention, seed: SimpleNamespace = fixed) -> Any:
    """The layer it replaces, with the same weights."""
    theirs = seed.RotaryAttention(module.n_heads * module.head_dim, module.n_heads)
    theirs.load_state_dict(module.state_dict())
    return theirs


def test_e29_as_written_the_layer_does_not_run():
    written = run_block(S3_TURNS + S3, IMPORTS)
    with pytest.raises(RuntimeError, match="expand"):
        written.RotaryAttention(16, 2)(tokens())


@pytest.mark.parametrize(("heads", "d", "t"), [(1, 2, 1), (1, 16, 9), (2, 16, 9), (4, 64, 16)])
def test_seeing_everything_it_is_the_layer_it_replaces(heads: int, d: int, t: int):
    module = RotaryAttention(d, heads, causal=False)
    x = tokens(t=t, d=d)
    assert_same(module(x), alike(module)(x), within=1e-6)


def test_the_same_seed_draws_the_same_weights():
    torch.manual_seed(5)
    ours = RotaryAttention(16, 2).state_dict()
    torch.manual_seed(5)
    theirs = fixed.RotaryAttention(16, 2).state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_e29_no_token_sees_what_comes_after_it():
    module, x = RotaryAttention(16, 2), tokens()
    theirs = alike(module)
    rows = [theirs(x[:, : n + 1])[:, -1] for n in range(9)]
    assert_same(module(x), torch.stack(rows, 1), within=1e-6)
    changed = torch.cat((x[:, :5], x[:, 5:] + 1), 1)
    assert_same(module(changed)[:, :5], module(x)[:, :5], within=1e-6)


def test_decoding_with_a_cache_equals_one_pass():
    module, x, cache = RotaryAttention(16, 2), tokens(), mp.Cache()
    with torch.no_grad():
        steps = [module(x[:, :4], cache)] + [module(x[:, n : n + 1], cache) for n in range(4, 9)]
        assert_same(torch.cat(steps, 1), module(x), within=1e-6)
    assert len(cache) == 9


def test_texts_longer_than_max_seq_len_are_attended_to():
    module, x = RotaryAttention(16, 2, max_seq_len=4), tokens()
    longer = RotaryAttention(16, 2)
    longer.load_state_dict(module.state_dict())
    assert torch.equal(module(x), longer(x))
    with pytest.raises(RuntimeError, match="expand"):
        fixed.RotaryAttention(16, 2, max_seq_len=4)(x)


def test_e29_nothing_needs_to_move_and_nothing_can_be_cast():
    module, x = RotaryAttention(16, 2), tokens()
    assert list(module.buffers()) == []
    theirs = module(x)
    rough = module.to(torch.bfloat16)(x.bfloat16())
    assert rough.dtype == torch.bfloat16
    # Eight bits a number, over four projections, on outputs below 1.
    assert_same(rough.float(), theirs, within=4 * 2.0**-8)


def test_gradients_reach_every_projection():
    module, x = RotaryAttention(16, 2), tokens().requires_grad_()
    module(x).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in module.parameters())
    assert x.grad is not None


def test_e31_as_written_the_layer_without_heads_does_not_run():
    names = {"ModelArgs": object, "Linear": lambda _: nn.Linear(16, 16, bias=False), "dim": 16, "max_seq_len": 32}
    written = run_block(S4_TURNS + S4, IMPORTS, **names)
    with pytest.raises(NameError, match="'batch_size'"):
        written.Attention(None)(tokens())
    named = run_block(S4_TURNS + S4, IMPORTS, **names, batch_size=2, seq_len=9)
    with pytest.raises(NameError, match="'freqs_cis'"):
        named.Attention(None)(tokens())


def test_e31_one_head_is_the_layer_without_heads():
    text = S4.replace("freqs_cis=freqs_cis", "freqs_cis=self.freqs_cis[:seqlen]")
    names = {"ModelArgs": object, "Linear": lambda _: nn.Linear(16, 16, bias=False), "dim": 16, "max_seq_len": 32}
    theirs = run_block(S4_TURNS + text, IMPORTS, **names, batch_size=2, seq_len=9).Attention(None)
    ours, x = RotaryAttention(16, 1, causal=False), tokens()
    with torch.no_grad():
        for mine, own in ((ours.q_proj, theirs.wq), (ours.k_proj, theirs.wk), (ours.v_proj, theirs.wv)):
            mine.weight.copy_(own.weight)
        ours.out_proj.weight.copy_(torch.eye(16))
    assert_same(ours(x), theirs(x), within=1e-6)


@pytest.mark.parametrize(("block", "missing"), [(S3, "'nn'"), (S4, "'nn'")])
def test_e36_the_block_alone_lacks_its_imports(block: str, missing: str):
    with pytest.raises(NameError, match=missing):
        run_block(block, "import torch\nimport torch.nn.functional as F")
    with pytest.raises(NameError, match="'ModelArgs'"):
        run_block(S4, IMPORTS)
