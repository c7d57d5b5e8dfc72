"""Defects 6 to 11 that are in other libraries' releases today, one test or more for each, by its number in our list."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import milepost as mp
from tests.exact import TRAINED, exact_turns, last_row, phase_error, unit_pairs
from tests.oracles import assert_same, inputs

# 6. Dynamic NTK broke the compiled graph four times.


@pytest.mark.slow
@pytest.mark.parametrize("decoding", [False, True], ids=["whole texts", "one token at a time"])
def test_defect_6_dynamic_ntk_traces_whole_and_growing_lengths_need_few_graphs(decoding: bool):
    scheme = mp.Scheme(mp.Rope(8, stretch=mp.DynamicNtk(8, factor=2.0)), mp.causal)
    graphs: list[Any] = []

    def counting(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, example)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return mp.attend(q, k, v, scheme)

    torch._dynamo.reset()
    traced = torch.compile(run, fullgraph=True, backend=counting)
    for length in range(4, 20):
        q, k, v = inputs(t=length)
        q = q[:, :, -1:] if decoding else q
        assert_same(traced(q, k, v), run(q, k, v))
    assert 1 <= len(graphs) <= 3, f"{len(graphs)} graphs"
    torch._dynamo.reset()


# 7. ALiBi silently kept a learned table of absolute positions and failed past its end; a bias with a cache was wrong.


def test_defect_7_alibi_takes_no_learned_table_along():
    scheme = mp.Scheme(mp.Alibi(4), mp.causal)
    assert list(scheme.parameters()) == []
    assert list(scheme.buffers()) == []
    assert scheme.answering("embed") == ()
    x = torch.linspace(-1, 1, 160).view(2, 5, 16)
    assert torch.equal(scheme.embed(x), x)


def test_defect_7_alibi_runs_past_any_length():
    scheme = mp.Scheme(mp.Alibi(4), mp.causal)
    k = torch.zeros(1, 1, 3000, 2, dtype=torch.float64)
    v = torch.arange(3000, dtype=torch.float64).flip(0).view(1, 1, 3000, 1)
    out = mp.attend(k[:, :, -1:].expand(1, 4, 1, 2), k, v, scheme)[0, :, 0, 0]
    # Equal dot products, and each value is its distance: the mean distance under weights e^(−slope · distance).
    for head in range(4):
        slope = 2.0 ** (-8 * (head + 1) / 4)
        weights = [math.exp(-slope * distance) for distance in range(3000)]
        mean = math.fsum(w * distance for distance, w in enumerate(weights)) / math.fsum(weights)
        assert_same(out[head], torch.tensor(mean, dtype=torch.float64), within=1e-9 * mean)
    index = torch.arange(6) + 10**9
    q, k, v = inputs(t=6)
    assert_same(mp.attend(q, k, v, scheme, index=index, key_index=index), mp.attend(q, k, v, scheme))


BENDING: dict[str, Callable[[], Any]] = {
    "Alibi": lambda: mp.Alibi(4),
    "LearnedAlibi": lambda: mp.LearnedAlibi(4),
    "Kerple": lambda: mp.Kerple(4),
    "T5Bias": lambda: mp.T5Bias(4, buckets=8, reach=6),
    "Fire": lambda: mp.Fire(4, trained=4),
}


@pytest.mark.parametrize("name", BENDING)
def test_defect_7_a_bias_with_a_cache_equals_the_full_pass(name: str):
    scheme = mp.Scheme(BENDING[name](), mp.causal).double()
    for weight in scheme.parameters():
        nn.init.normal_(weight)
    q, k, v = inputs(t=12)
    whole = mp.attend(q, k, v, scheme)
    cache = mp.Cache()
    for first, last in ((0, 5), (5, 6), (6, 9), (9, 10), (10, 12)):
        cache.append(k[:, :, first:last], v[:, :, first:last])
        step = mp.attend(q[:, :, first:last], cache.keys, cache.values, scheme, key_index=cache.index)
        assert_same(step, whole[:, :, first:last])
    every = torch.arange(12)
    assert_same(scheme.bias(every[10:], every).exp(), scheme.bias(every, every)[:, :, 10:].exp())


# 8. RoPE failed past a length fixed beforehand.


def test_defect_8_rope_has_no_length_to_run_past():
    rope = mp.Rope(8)
    scheme = mp.Scheme(rope, mp.causal)
    short = inputs(t=4)
    before = mp.attend(*short, scheme)
    q, k, v = inputs(b=1, h=1, g=1, t=5000, d=8)
    out = mp.attend(q[:, :, -1:], k, v, scheme)
    angles = torch.arange(5000.0, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(4.0).double() / 4)
    pairs = torch.complex(k[0, 0, :, :4], k[0, 0, :, 4:]) * torch.polar(torch.ones_like(angles), angles)
    mine = torch.complex(q[0, 0, -1, :4], q[0, 0, -1, 4:]) * torch.polar(torch.ones_like(angles[-1]), angles[-1])
    weights = torch.softmax((mine.conj() * pairs).real.sum(-1) / math.sqrt(8), 0)
    assert_same(out[0, 0, 0], weights @ v[0, 0], within=1e-11)
    assert torch.equal(mp.attend(*short, scheme), before)


@pytest.mark.parametrize("position", [2**31 - 1, 2**31 + 1, 10**12])
def test_defect_8_rope_turns_at_any_position(position: int):
    cos, sin = exact_turns([position], 8)
    turned = mp.Rope(8).turn(unit_pairs(8, 1, torch.float64), torch.tensor([position]))
    # Sixteen digits of the frequency, times the position.
    assert phase_error(turned, cos, sin) < 4e-16 * position + 1e-12


@pytest.mark.parametrize("length", [16_000, 32_000])
@pytest.mark.parametrize("queries", [1, 2])
def test_defect_8_xpos_does_not_run_over_in_a_long_text(length: int, queries: int):
    # The last queries and the keys beside them, with every key between them and the first, in float32.
    scheme = mp.Scheme(mp.Xpos(4), mp.causal)
    q, k, v = inputs(b=1, h=1, g=1, t=queries, s=length, d=4)
    out = mp.attend(q.float(), k.float(), v.float(), scheme)
    n = torch.arange(2.0, dtype=torch.float64)
    behind = torch.arange(length - 1, -1, -1, dtype=torch.float64)[:, None]
    fade = ((n + 0.4 * 2) / (1.4 * 2)) ** (behind / 512) * torch.polar(torch.ones(1).double(), behind * 0.01**n)
    pairs = torch.view_as_complex(k[0, 0].unflatten(-1, (2, 2)))
    mine = torch.view_as_complex(q[0, 0, -1].unflatten(-1, (2, 2)))
    weights = torch.softmax((mine * pairs.conj() * fade).real.sum(-1) / 2, 0)
    assert_same(out[0, 0, -1], weights @ v[0, 0], within=1e-5)


def test_defect_8_past_what_its_factors_can_hold_xpos_refuses_by_name():
    scheme = mp.Scheme(mp.Xpos(8), mp.causal)
    q, k, v = inputs(t=6)
    told = {"index": torch.tensor([1, 2, 3, 4, 5, 60_000]), "key_index": torch.tensor([1, 2, 3, 4, 5, 60_000])}
    with pytest.raises(ValueError, match=r"Xpos\(8\) overflows past 3\d{4} in torch.float32; use a wider dtype"):
        mp.attend(q.float(), k.float(), v.float(), scheme, **told)
    assert mp.attend(q, k, v, scheme, **told).isfinite().all()


# 9. LongRoPE, given to each layer, failed on its second long call.


def test_defect_9_longrope_long_twice_then_short_then_long_gives_the_same_answers():
    stretch = mp.LongRope((1.0, 1.1, 1.3, 1.6), (1.5, 2.0, 4.0, 8.0), TRAINED, factor=4.0)
    layers = mp.Schedule([mp.Scheme(mp.Rope(8, theta=100.0, stretch=stretch), mp.causal) for _ in range(3)])
    long, short = inputs(t=11), inputs(t=TRAINED, seed=1)
    want = {11: last_row("LongRoPE", *long), TRAINED: last_row("LongRoPE", *short)}
    first: dict[int, Tensor] = {}
    for texts in (long, long, short, long, short):
        for scheme in layers:
            out = mp.attend(*texts, scheme)
            t = out.shape[2]
            assert_same(out[:, :, -1:], want[t])
            assert torch.equal(out, first.setdefault(t, out))


# 11. A bias m·j in bfloat16 gave the last of 4,096 keys the weight 0.125 where it should have had 0.393.


@pytest.mark.parametrize("backend", ["reference", "chunked", "flex"])
def test_defect_11_alibi_in_bfloat16_gives_the_last_key_its_weight(backend: str):
    scheme = mp.Scheme(mp.Alibi(8), mp.causal)
    k = torch.zeros(1, 1, 4096, 2, dtype=torch.bfloat16)
    v = torch.zeros(1, 1, 4096, 1, dtype=torch.bfloat16)
    v[0, 0, -1, 0] = 1
    with torch.no_grad():
        out = mp.attend(k[:, :, -1:].expand(1, 8, 1, 2).contiguous(), k, v, scheme, backend=backend)
    # Dot products are equal and the first head's slope is 1/2.
    exact = 1 / math.fsum(math.exp(-distance / 2) for distance in range(4096))
    assert abs(exact - 0.393) < 1e-3
    # Half a step of bfloat16 between 1/4 and 1/2.
    assert abs(float(out[0, 0, 0, 0]) - exact) <= 2.0**-10


def test_defect_11_a_growing_bias_in_bfloat16_would_be_seen():
    bias = (0.5 * torch.arange(4096)).bfloat16().double()
    assert abs(float(torch.softmax(bias, 0)[-1]) - 0.125) < 1e-3
