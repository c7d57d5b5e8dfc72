"""Code that people copy out of notes, run as it stands or nearly, beside the methods it stands for.

S0 to S4 are the notes, E10 and the like their errors in our list. Blocks that have a drop-in are quoted beside its
tests, comments and docstrings left out.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from milepost import Alibi, Rope, Scheme, T5Bias, attend, causal
from tests.dropin.test_dropin import run_block
from tests.dropin.test_dropin_alibi import BAICHUAN, BLOOM, SLOPES
from tests.dropin.test_dropin_complex_rotary import S2 as S2_COMPLEX
from tests.dropin.test_dropin_complex_rotary import S3, S4
from tests.dropin.test_dropin_rotary import S0
from tests.dropin.test_dropin_rotary import S2 as S2_REAL
from tests.oracles import assert_same, hidden_future, inputs
from tests.parity.peers import EXACT, U, assert_within, left_padded, table_error

IMPORTS = "import math, torch\nfrom torch import nn\nfrom typing import Tuple\n"
# S2, "Symmetric", without its `.cuda()` and with the names it lacks; E19: it sees both ways.
SYMMETRIC = """
context_position = torch.arange(maxpos)[:, None]
memory_position = torch.arange(maxpos)[None, :]
relative_position = memory_position - context_position
relative_position = torch.abs(relative_position).unsqueeze(0).expand(attn_heads, -1,-1)
self.slopes = torch.Tensor(get_slopes(attn_heads))*-1
self.alibi = self.slopes.unsqueeze(1).unsqueeze(1) * relative_position
self.alibi = self.alibi.view(1, attn_heads, maxpos, maxpos)
"""
# S4 on T5's buckets: four lines of code and two of prose, which say to cap at num_buckets − 1 and to add up.
T5 = [
    "max_exact = num_buckets // 2",
    "relative_buckets = (relative_position > 0).to(torch.int32) * num_buckets",
    "is_small = relative_position < max_exact",
    "relative_postion_if_large=max_exact + (torch.log(relative_position.float() / max_exact)/ "
    "math.log(max_distance / max_exact) * (num_buckets - max_exact)",
]
PROSE = [
    "relative_postion_if_large = relative_postion_if_large.clamp(max=num_buckets - 1)",
    "bucket = relative_buckets + torch.where(is_small, relative_position, relative_postion_if_large)",
]


def assert_turned(theirs: Tensor, x: Tensor, position: Tensor, pairs: str, steps: float) -> None:
    """Whether x [b h t d] was turned as Rope turns it, but for float32 tables, and so many U for what is done to x."""
    d, size = x.shape[-1], x.abs()
    a, b = size.chunk(2, -1) if pairs == "halves" else (size[..., ::2], size[..., 1::2])
    # S2 forms frequencies as e^(−2n · ln θ/d), whose exponent is rounded twice.
    allowed = (2 * table_error(position, d, 10000.0) + steps * U) * (a + b) + EXACT
    allowed = torch.cat((allowed, allowed), -1) if pairs == "halves" else allowed.repeat_interleave(2, -1)
    assert_within(Rope(d, pairs=pairs).turn(x, position), theirs, allowed)


def test_s0_turns_halves_as_llama_does():
    notes = run_block(S0, IMPORTS)
    q, k, _ = inputs(t=40, d=16)
    position = torch.arange(40)[None]
    cos, sin = notes.LlamaRotaryEmbedding(16)(q, seq_len=40)
    for theirs, x in zip(notes.apply_rotary_pos_emb(q, k, cos, sin, position), (q, k), strict=True):
        assert_turned(theirs, x, position[0], "halves", 0)


def test_s2_turns_neighbours_in_one_call():
    q, k, _ = inputs(t=40, d=16, g=4)
    for theirs, x in zip(run_block(S2_REAL).rotary_position_embedding(q, k), (q, k), strict=True):
        assert_turned(theirs, x, torch.arange(40), "neighbours", 0)


def test_s2_turns_neighbours_as_complex_numbers():
    notes = run_block(S2_COMPLEX, IMPORTS)
    q, k, _ = inputs(t=40, d=16)
    found = notes.apply_rotary_emb(q.transpose(1, 2), k.transpose(1, 2), notes.precompute_freqs_cis(16, 40))
    for theirs, x in zip(found, (q, k), strict=True):
        assert_turned(theirs.transpose(1, 2), x, torch.arange(40), "neighbours", 4)


def test_s4_turns_neighbours_of_one_head():
    notes = run_block(S4, IMPORTS)
    q, k, _ = inputs(t=40, d=16, h=1, g=1)
    found = notes.apply_rotary_emb(q[:, 0], k[:, 0], notes.precompute_freqs_cis(16, 40))
    for theirs, x in zip(found, (q, k), strict=True):
        assert_turned(theirs[:, None], x, torch.arange(40), "neighbours", 4)


def test_the_table_of_s3_holds_our_cosines_and_sines():
    # What S3 does with it does not run (E29).
    theirs = run_block(S3, IMPORTS).precompute_freqs_cis(16, 40)
    ours = torch.stack(Rope(16).cos_sin(torch.arange(40), dtype=torch.float64), -1)
    assert_within(ours, theirs, table_error(torch.arange(40), 16, 10000.0)[..., None])


def test_the_slopes_of_s2_are_ours_for_any_number_of_heads():
    notes = run_block(SLOPES, IMPORTS)
    for heads in range(1, 130):
        ours = Alibi(heads).slopes().behind
        theirs = torch.tensor(notes.get_slopes(heads), dtype=torch.float64)
        # A rounded base is raised to a power of at most 128 there.
        assert ((ours / theirs - 1).abs() < 132 * 2.0**-53).all()


def softmax_of(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + bias, -1) @ v


@pytest.mark.parametrize("side", ["left", "right"])
def test_s0_with_blooms_rows_attends_as_alibi_does(side: str):
    # Of 4 heads the slopes are powers of two, which float32 holds.
    q, k, v = inputs(b=3, t=12)
    real = left_padded(3, 12, (0, 3, 7))
    real = real if side == "left" else real.flip(-1)
    rows = run_block(BLOOM, IMPORTS).build_alibi_tensor(real, 4, torch.float64).view(3, 4, 1, 12)
    hidden = torch.where(real.bool()[:, None, None], 0.0, -torch.inf) + hidden_future(12)
    ours = attend(q, k, v, Scheme(Alibi(4), causal), documents=real - 1)
    seen = real.bool()[:, None].expand(3, 4, 12)
    assert_same(ours[seen], softmax_of(q, k, v, rows + hidden)[seen], within=EXACT)


def test_s0_with_baichuans_mask_attends_as_alibi_does():
    q, k, v = inputs(t=12)
    mask = run_block(BAICHUAN, IMPORTS)._gen_alibi_mask(4, 12).double()
    assert_same(attend(q, k, v, Scheme(Alibi(4), causal)), softmax_of(q, k, v, mask), within=EXACT)


def test_s2_symmetric_is_alibi_without_a_mask():
    self = SimpleNamespace()
    run_block(SYMMETRIC, IMPORTS + SLOPES, maxpos=12, attn_heads=4, self=self)
    q, k, v = inputs(t=12)
    index = torch.arange(12)
    assert_same(Scheme(Alibi(4)).bias(index, index, dtype=torch.float64), self.alibi, within=0)
    assert_same(attend(q, k, v, Scheme(Alibi(4))), softmax_of(q, k, v, self.alibi.double()), within=EXACT)


def buckets(lines: list[str], relative_position: Tensor) -> Tensor:
    told = {"relative_position": relative_position, "num_buckets": 32, "max_distance": 128}
    return run_block("\n".join(lines), IMPORTS, **told).bucket


def test_s4_on_buckets_does_not_run():
    with pytest.raises(SyntaxError, match="was never closed"):
        run_block("\n".join(T5), IMPORTS)


def test_e10_closed_and_made_whole_numbers_the_buckets_of_s4_leave_the_table():
    closed = [*T5[:3], T5[3] + ").to(torch.int32)", *PROSE]
    found = buckets(closed, torch.arange(-200, 201))
    assert (int(found.min()), int(found.max())) == (-200, 32 + 31)


def test_e10_mended_the_buckets_of_s4_are_ours():
    # The buckets are halved first, the sign is taken before the size, and distance counts from the query to the key.
    halved, sized = "num_buckets //= 2", "relative_position = relative_position.abs()"
    mended = [halved, T5[0], T5[1], sized, T5[2], T5[3] + ").to(torch.int32)", *PROSE]
    distance = torch.arange(-600, 601)
    ours = T5Bias(1, bidirectional=True).bucket(distance)
    assert torch.equal(ours, buckets(mended, -distance).long())
    assert ours.unique().numel() == 31, "one of the 32 is for keys 0 ahead, which are not"
