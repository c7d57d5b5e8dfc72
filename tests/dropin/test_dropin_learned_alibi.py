"""Bidirectional ALiBi of S2, whose errors E33 and E34 have no drop-in: the methods themselves take its place."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import milepost as mp
from tests.dropin.test_dropin import run_block
from tests.dropin.test_dropin_alibi import SLOPES
from tests.oracles import assert_same, dots, inputs, plain

SPLIT = """
self._future_mask_right = torch.triu(utils.fill_with_neg_inf(torch.zeros([maxpos, maxpos])), 1).unsqueeze(0).repeat(attn_heads//2, 1, 1)
self._future_mask_left = torch.tril(utils.fill_with_neg_inf(torch.zeros([maxpos, maxpos])), -1).unsqueeze(0).repeat(attn_heads//2, 1, 1)
self.nonsym_mask = torch.cat((self._future_mask_right, self._future_mask_left), dim = 0).unsqueeze(0).cuda()
self.slopes = torch.Tensor(get_slopes(attn_heads//2)).cuda()*-1
context_position = torch.arange(maxpos)[:, None].cuda()
memory_position = torch.arange(maxpos)[None, :].cuda()
relative_position = memory_position - context_position
relative_position = torch.abs(relative_position).unsqueeze(0).expand(attn_heads//2, -1,-1)
self.alibi = self.slopes.unsqueeze(1).unsqueeze(1) * relative_position
self.alibi = self.alibi.view(1, attn_heads//2, maxpos, maxpos)
self.alibi = self.alibi.repeat(1, 2, 1, 1).cuda()
"""  # noqa: E501
LEARNED = """
slopes_left = torch.nn.parameter.Parameter(torch.Tensor(attn_heads))
nn.init.normal_(slopes_left, -2,1)
slopes_right = torch.nn.parameter.Parameter(torch.Tensor(attn_heads))
nn.init.normal_(slopes_right, -2,1)
slopes_left = -torch.sigmoid(slopes_left)
slopes_right = -torch.sigmoid(slopes_right)
context_position = torch.arange(maxpos)[:, None]
memory_position = torch.arange(maxpos)[None, :]
relative_position = memory_position - context_position
relative_position = torch.abs(relative_position).unsqueeze(0).expand(attn_heads, -1,-1)
alibi_left = slopes_left.unsqueeze(1).unsqueeze(1) * relative_position
alibi_right = slopes_right.unsqueeze(1).unsqueeze(1) * relative_position
self.alibi = torch.triu(alibi_right) + torch.tril(alibi_left)
"""
USE = "attn_weights += nonsym_mask[:,:,:tgt_len,:src_len].to(attn_weights)"
IMPORTS = "import math, torch\nfrom torch import nn\n" + SLOPES


def run(block: str, heads: int, maxpos: int) -> SimpleNamespace:
    """What the block leaves behind; `self` is a module."""
    utils = SimpleNamespace(fill_with_neg_inf=lambda x: x.fill_(-math.inf))
    return run_block(block, IMPORTS, self=nn.Module(), utils=utils, attn_heads=heads, maxpos=maxpos)


def on_cpu(block: str) -> str:
    return block.replace(".cuda()", "")


def rows(method: object, t: int, s: int) -> Tensor:
    """The bias of the last t of s tokens, [1 h t s]."""
    return mp.Scheme(method).bias(torch.arange(s - t, s), torch.arange(s))


def learned_like(seed: SimpleNamespace, heads: int) -> mp.LearnedAlibi:
    """The method with the slopes that the block drew."""
    method = mp.LearnedAlibi(heads)
    with torch.no_grad():
        method.left.copy_((-seed.slopes_left).logit())
        method.right.copy_((-seed.slopes_right).logit())
    return method


@pytest.mark.parametrize("heads", [1, 3, 4])
@pytest.mark.parametrize("length", [1, 5, 9])
def test_learned_slopes_bend_as_the_block_does_with_a_batch_axis(length: int, heads: int):
    seed = run(LEARNED, heads, length)
    assert seed.self.alibi.shape == (heads, length, length)
    ours = rows(learned_like(seed, heads), length, length)
    assert_same(ours, seed.self.alibi[None], within=1e-6)


def test_e33_the_block_loses_its_parameters_and_the_method_keeps_them():
    assert list(run(LEARNED, 3, 5).self.parameters()) == []
    scheme = mp.Scheme(mp.LearnedAlibi(3))
    assert sorted(scheme.state_dict()) == ["0.left", "0.right"]
    assert [weight.shape for weight in scheme.parameters()] == [(3,), (3,)]


def test_e33_a_second_backward_works():
    seed = run(LEARNED, 3, 5)
    seed.self.alibi.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        seed.self.alibi.sum().backward()
    q, k, v = inputs(h=3, g=3, t=5)
    method = mp.LearnedAlibi(3).double()
    grads = []
    for _ in range(2):
        method.zero_grad()
        mp.attend(q, k, v, mp.Scheme(method)).square().sum().backward()
        grads.append((method.left.grad, method.right.grad))
    assert all(map(torch.equal, *grads))
    assert all(grad.abs().min() > 0 for grad in grads[0])


def test_e33_a_training_step_changes_the_next_bias():
    method = mp.LearnedAlibi(3)
    before = rows(method, 5, 5).detach()
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    rows(method, 5, 5).sum().backward()
    optimizer.step()
    apart = ~torch.eye(5, dtype=torch.bool)
    assert (rows(method, 5, 5) < before)[:, :, apart].all()


@pytest.mark.parametrize("heads", [2, 6, 8])
@pytest.mark.parametrize("length", [1, 5, 9])
def test_split_heads_get_the_penalty_and_the_mask(length: int, heads: int):
    seed = run(on_cpu(SPLIT), heads, length)
    assert_same_but_for_infinity(rows(mp.SplitAlibi(heads), length, length), seed.self.alibi + seed.self.nonsym_mask)


def assert_same_but_for_infinity(ours: Tensor, theirs: Tensor) -> None:
    assert torch.equal(ours.isinf(), theirs.isinf())
    assert_same(ours.nan_to_num(neginf=1.0), theirs.nan_to_num(neginf=1.0), within=1e-6)


def test_e34_the_blocks_use_leaves_out_the_penalty():
    seed = run(on_cpu(SPLIT), 4, 5)
    used = run_block(USE, attn_weights=torch.zeros(2, 4, 5, 5), nonsym_mask=seed.self.nonsym_mask, tgt_len=5, src_len=5)
    assert used.attn_weights[0, 0, -1].tolist() == [0] * 5
    assert rows(mp.SplitAlibi(4), 5, 5)[0, 0, -1].tolist() == [-4 / 16, -3 / 16, -2 / 16, -1 / 16, 0]


@pytest.mark.parametrize("make", [mp.SplitAlibi, mp.LearnedAlibi])
def test_e34_cached_decoding_takes_the_last_rows(make: type):
    method = make(4)
    whole = rows(method, 7, 7)
    for t in (1, 2, 7):
        assert torch.equal(rows(method, t, 7), whole[:, :, 7 - t :])
    # The block's slice gives a single new token the row of the first one, which sees itself alone.
    seed = run(on_cpu(SPLIT), 4, 7)
    used = run_block(USE, attn_weights=torch.zeros(1, 4, 1, 7), nonsym_mask=seed.self.nonsym_mask, tgt_len=1, src_len=7)
    assert used.attn_weights[0, 0, 0].tolist() == [0] + [-math.inf] * 6
    assert whole[0, 0, -1].isfinite().all()


@pytest.mark.parametrize("make", [mp.SplitAlibi, mp.LearnedAlibi])
def test_e34_a_cache_attends_as_one_pass_does(make: type):
    q, k, v = inputs(b=2, h=4, g=4, t=7)
    scheme = mp.Scheme(make(4)).double()
    whole = mp.attend(q, k, v, scheme)
    assert_same(mp.attend(q[:, :, -2:], k, v, scheme), whole[:, :, -2:])


def test_e34_an_odd_number_of_heads():
    seed = run(on_cpu(SPLIT), 3, 5)
    with pytest.raises(RuntimeError, match="must match"):
        run_block(USE, attn_weights=torch.zeros(1, 3, 5, 5), nonsym_mask=seed.self.nonsym_mask, tgt_len=5, src_len=5)
    with pytest.raises(ValueError, match=r"^SplitAlibi\(heads=3\): heads must be even, because half of the heads look"):
        mp.SplitAlibi(3)
    q, k, v = inputs(b=2, h=3, g=3, t=5)
    method = mp.LearnedAlibi(3).double()
    left, right = method.left.sigmoid(), method.right.sigmoid()
    scaled = dots(q, k)
    theirs = plain(q, k, v, lambda b, h, i, j: scaled(b, h, i, j) - (left if i >= j else right)[h] * abs(i - j))
    assert_same(mp.attend(q, k, v, mp.Scheme(method)), theirs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA there the block runs")
def test_e34_without_cuda_the_block_does_not_run():
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
        run(SPLIT, 4, 5)


def test_e36_the_block_alone_is_a_fragment():
    for block in (SPLIT, LEARNED):
        with pytest.raises(NameError):
            run_block(block, "import math, torch\nfrom torch import nn")
