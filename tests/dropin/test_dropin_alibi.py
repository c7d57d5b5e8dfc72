"""ALiBi drop-ins against the code they replace (S0's BLOOM and Baichuan, S2's slopes; E36, E37) and transformers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.dropin import build_alibi_tensor, gen_alibi_mask, get_slopes
from tests.dropin.test_dropin import run_block
from tests.oracles import assert_same, inputs

BLOOM = """
def build_alibi_tensor(
    attention_mask: torch.Tensor, num_heads: int, dtype: torch.dtype
) -> torch.Tensor:
    batch_size, seq_length = attention_mask.shape
    closest_power_of_2 = 2 ** math.floor(math.log2(num_heads))
    base = torch.tensor(
        2 ** (-(2 ** -(math.log2(closest_power_of_2) - 3))),
        device=attention_mask.device,
        dtype=torch.float32,
    )
    powers = torch.arange(
        1, 1 + closest_power_of_2, device=attention_mask.device, dtype=torch.int32
    )
    slopes = torch.pow(base, powers)
    if closest_power_of_2 != num_heads:
        extra_base = torch.tensor(
            2 ** (-(2 ** -(math.log2(2 * closest_power_of_2) - 3))),
            device=attention_mask.device,
            dtype=torch.float32,
        )
        num_remaining_heads = min(closest_power_of_2, num_heads - closest_power_of_2)
        extra_powers = torch.arange(
            1,
            1 + 2 * num_remaining_heads,
            2,
            device=attention_mask.device,
            dtype=torch.int32,
        )
        slopes = torch.cat([slopes, torch.pow(extra_base, extra_powers)], dim=0)
    arange_tensor = ((attention_mask.cumsum(dim=-1) - 1) * attention_mask)[:, None, :]
    print(arange_tensor)
    alibi = slopes[..., None] * arange_tensor
    print(alibi.shape)
    return alibi.reshape(batch_size * num_heads, 1, seq_length).to(dtype)
"""
BAICHUAN = """
import math

def _get_interleave(n):
    def _get_interleave_power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        ratio = start
        return [start * (ratio ** i) for i in range(n)]

    if math.log2(n).is_integer():
        return _get_interleave_power_of_2(n)
    else:
        closest_power_of_2 = 2 ** math.floor(math.log2(n))
        return (
            _get_interleave_power_of_2(closest_power_of_2)
            + _get_interleave(2 * closest_power_of_2)[0::2][: n - closest_power_of_2]
        )

def _fill_with_neg_inf(t):
    return t.float().fill_(float("-inf")).type_as(t)

def _gen_alibi_mask(n_head, max_pos):
    slopes = torch.Tensor(_get_interleave(n_head))
    alibi = (
            slopes.unsqueeze(1).unsqueeze(1) *
            torch.arange(max_pos).unsqueeze(0).unsqueeze(0).expand(n_head, -1, -1)
    )
    alibi = alibi.view(n_head, 1, max_pos)
    alibi_mask = torch.triu(_fill_with_neg_inf(torch.zeros([max_pos, max_pos])), 1)
    alibi_mask = alibi_mask.unsqueeze(0) + alibi
    return alibi_mask
"""
SLOPES = """
def get_slopes(n):
    def get_slopes_power_of_2(n):
        start = (2**(-2**-(math.log2(n)-3)))
        ratio = start
        return [start*ratio**i for i in range(n)]

    if math.log2(n).is_integer():
        return get_slopes_power_of_2(n)
    else:
        closest_power_of_2 = 2**math.floor(math.log2(n))
        return get_slopes_power_of_2(closest_power_of_2) + get_slopes(2*closest_power_of_2)[0::2][:n-closest_power_of_2]
"""
bloom = run_block(BLOOM, "import math, torch")
baichuan = run_block(BAICHUAN, "import torch")
slopes = run_block(SLOPES, "import math")
PADDING = {
    "none": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]],
    "left": [[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1]],
    "right": [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]],
    "both sides, and a row of nothing": [[0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]],
}


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 7, 8, 12, 16, 40, 64, 71])
def test_the_slopes_are_the_ones_they_replace(n: int):
    ours = get_slopes(n)
    assert isinstance(ours, list)
    assert ours == pytest.approx(slopes.get_slopes(n), rel=1e-14, abs=0)


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8, 12, 16])
@pytest.mark.parametrize("padding", PADDING)
def test_blooms_rows_are_the_ones_they_replace(padding: str, heads: int):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor as of_transformers

    for dtype in (torch.float32, torch.int64, torch.bool):
        mask = torch.tensor(PADDING[padding]).to(dtype)
        ours = build_alibi_tensor(mask, heads, torch.float32)
        assert ours.shape == (2 * heads, 1, 6)
        assert ours.dtype == torch.float32
        assert_same(ours, bloom.build_alibi_tensor(mask, heads, torch.float32), within=1e-6)
        assert_same(ours, of_transformers(mask, heads, torch.float32), within=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_blooms_rows_come_in_the_dtype_asked_for(dtype: torch.dtype):
    # With 8 heads every slope is a power of two, so that nothing is rounded before the last step.
    mask = torch.tensor(PADDING["left"])
    ours = build_alibi_tensor(mask, 8, dtype)
    assert ours.dtype == dtype
    assert torch.equal(ours, bloom.build_alibi_tensor(mask, 8, dtype))


def test_blooms_rows_count_tokens_past_what_the_masks_dtype_can_hold():
    mask = torch.ones(1, 300, dtype=torch.bfloat16)
    row = build_alibi_tensor(mask, 8, torch.float32)[0, 0]
    assert torch.equal(row, torch.arange(300) * 0.5)
    assert bloom.build_alibi_tensor(mask, 8, torch.float32)[0, 0, -1] != 299 * 0.5


def test_blooms_rows_are_made_in_silence(capsys: pytest.CaptureFixture[str]):
    build_alibi_tensor(torch.ones(2, 4), 3, torch.float32)
    assert capsys.readouterr().out == ""
    bloom.build_alibi_tensor(torch.ones(2, 4), 3, torch.float32)
    assert "tensor" in capsys.readouterr().out


@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_blooms_rows_attend_as_the_method_does(padding: str):
    q, k, v = inputs(h=3, g=3, t=6)
    mask = torch.tensor(PADDING[padding])
    bias = build_alibi_tensor(mask, 3, torch.float64).view(2, 3, 1, 6)
    seen = mask[:, None, None].bool() & torch.ones(6, 6, dtype=torch.bool).tril()
    scores = (q @ k.transpose(2, 3) / math.sqrt(8) + bias).masked_fill(~seen, -math.inf)
    theirs = torch.softmax(scores, -1) @ v
    ours = mp.attend(q, k, v, mp.Scheme(mp.Alibi(3), mp.causal), documents=mask - 1)
    tokens = mask.bool()[:, None, :, None].expand_as(ours)
    assert_same(ours[tokens], theirs[tokens])


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8, 12])
@pytest.mark.parametrize("length", [1, 5, 16])
def test_baichuans_mask_is_the_one_it_replaces_but_for_a_constant_a_row(length: int, heads: int):
    ours, theirs = gen_alibi_mask(heads, length), baichuan._gen_alibi_mask(heads, length)
    assert ours.shape == theirs.shape == (heads, length, length)
    assert ours.dtype == theirs.dtype
    assert_same(ours.softmax(-1), theirs.softmax(-1), within=1e-6)
    row = torch.tensor(slopes.get_slopes(heads)).view(-1, 1, 1) * torch.arange(length).view(1, -1, 1)
    seen = torch.ones(length, length, dtype=torch.bool).tril().expand(heads, -1, -1)
    assert_same((ours + row)[seen], theirs[seen], within=1e-6)
    assert (ours[~seen] == -math.inf).all()


def test_baichuans_mask_says_how_far_behind_a_key_is():
    half, quarter = gen_alibi_mask(5, 4)[[4, 0]]
    assert half.tolist() == [
        [0, -math.inf, -math.inf, -math.inf],
        [-0.5, 0, -math.inf, -math.inf],
        [-1, -0.5, 0, -math.inf],
        [-1.5, -1, -0.5, 0],
    ]
    assert torch.equal(quarter, half / 2)


def test_decoding_takes_the_last_rows_of_baichuans_mask():
    whole = gen_alibi_mask(3, 9)
    for length in range(1, 10):
        assert torch.equal(whole[:, :length, :length], gen_alibi_mask(3, length))
        assert torch.equal(gen_alibi_mask(3, length, queries=1), whole[:, length - 1 : length, :length])
    assert torch.equal(gen_alibi_mask(3, 9, queries=4), whole[:, -4:])


def weight_on_the_last_key(mask: Tensor) -> float:
    """What the last key gets from the last query, all dot products alike, the mask cast to bfloat16."""
    return float(mask[-1].bfloat16().double().softmax(-1)[-1])


def test_e37_near_keys_stay_exact_in_bfloat16_at_4096():
    # Of five heads the last has slope ½.
    ours, theirs = gen_alibi_mask(5, 4096, queries=1)[4], baichuan._gen_alibi_mask(5, 4096)[4]
    assert len(set(theirs[-1, -20:].bfloat16().tolist())) == 2
    assert torch.equal(ours[-1, -20:].bfloat16().float(), -torch.arange(19, -1, -1) / 2)
    assert weight_on_the_last_key(theirs) == pytest.approx(0.125, abs=5e-4)
    assert weight_on_the_last_key(ours) == pytest.approx(1 - math.exp(-0.5), abs=1e-9)
    assert weight_on_the_last_key(ours) == pytest.approx(0.393, abs=5e-4)


def test_e36_the_blocks_alone_lack_their_imports():
    with pytest.raises(NameError, match="'torch'"):
        run_block(BLOOM)
    with pytest.raises(NameError, match="'torch'"):
        run_block(BAICHUAN)._gen_alibi_mask(2, 4)
    with pytest.raises(NameError, match="'math'"):
        run_block(SLOPES).get_slopes(2)
