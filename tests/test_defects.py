"""Defects that are in other libraries' releases today, one test or more for each, by its number in our list of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import milepost as mp
from tests.oracles import assert_same, inputs

TAU = Decimal("6.283185307179586476925286766559005768394338798750211641949889184615632812572417997256069650684234136")


def exact_angle(position: int, n: int, dim: int, theta: int = 10000) -> float:
    """position · θ^(−2n/dim), less whole turns, worked out with sixty digits."""
    with localcontext() as context:
        context.prec = 60
        frequency = (Decimal(theta).ln() * Decimal(-2 * n) / Decimal(dim)).exp()
        return float((Decimal(position) * frequency) % TAU)


def exact_turns(positions: list[int], dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [t dim/2], correctly rounded float64 or as good as."""
    angles = [[exact_angle(position, n, dim) for n in range(dim // 2)] for position in positions]
    cos = torch.tensor([[math.cos(angle) for angle in row] for row in angles], dtype=torch.float64)
    sin = torch.tensor([[math.sin(angle) for angle in row] for row in angles], dtype=torch.float64)
    return cos, sin


def unit_pairs(dim: int, t: int, dtype: torch.dtype) -> Tensor:
    """[1 1 t dim], every pair (1, 0): turned by an angle it becomes (cos, sin), with halves paired."""
    return torch.cat((torch.ones(dim // 2), torch.zeros(dim // 2))).to(dtype).expand(1, 1, t, dim)


def phase_error(turned: Tensor, cos: Tensor, sin: Tensor) -> float:
    """The largest angle between (cos, sin) and what unit pairs were turned to."""
    a, b = turned[0, 0].double().chunk(2, -1)
    return float(torch.atan2(b * cos - a * sin, a * cos + b * sin).abs().max())


# 1. In bfloat16, positions 512 and 513 turned alike, and one bfloat16 call spoiled a cache for later float32 calls.


@pytest.mark.parametrize("make", [mp.Rope, mp.Xpos, lambda dim: mp.AxialRope(dim, (dim // 2,))])
def test_defect_1_bfloat16_queries_at_512_and_513_turn_differently(make: Callable[[int], Any]):
    positions = torch.tensor([512, 513])
    q = inputs(b=1, h=2, t=1, d=64)[0].bfloat16().expand(1, 2, 2, 64)
    turned = make(64).turn(q, positions)
    assert turned.dtype == torch.bfloat16
    one, other = turned.float().unbind(2)
    assert (one - other).abs().max() > 0.1
    # What is left is the rounding of the result: half a step of 8 bits.
    whole = make(64).turn(q.double(), positions)
    assert ((turned.double() - whole).abs() <= 2.0**-8 * whole.abs() + 2.0**-30).all()


def test_defect_1_a_bfloat16_call_leaves_later_float32_calls_as_they_were():
    scheme = mp.Scheme(mp.Rope(64), mp.causal)
    positions = list(range(507, 516))
    at = torch.tensor(positions)
    q, k, v = (each.bfloat16() for each in inputs(t=9, d=64))
    told = {"position": at, "key_position": at}
    # The low precision comes first, so that whatever it leaves behind is there to be found.
    mp.attend(q, k, v, scheme, **told)
    scheme.turn(q, at)
    with torch.autocast("cpu", torch.bfloat16):
        mp.attend(q.float(), k.float(), v.float(), scheme, **told)
        scheme.turn(q.float(), at)
    turned = scheme.turn(unit_pairs(64, 9, torch.float32), at)
    assert turned.dtype == torch.float32
    assert phase_error(turned, *exact_turns(positions, 64)) < 2e-7


# 2. The same aliasing after model.bfloat16().


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeds = mp.Scheme(mp.Sinusoidal(8))
        self.turns = mp.Schedule([mp.Scheme(mp.Rope(8), mp.causal), mp.Scheme(mp.Xpos(8), mp.causal)])
        self.bends = mp.Scheme(mp.Alibi(4), mp.causal)
        self.out = nn.Linear(8, 8)


@pytest.mark.parametrize("cast", [nn.Module.bfloat16, nn.Module.half, lambda model: model.to(torch.float8_e4m3fn)])
def test_defect_2_casting_a_model_does_not_touch_its_positions(cast: Callable[[nn.Module], nn.Module]):
    model = Model()
    cast_model = cast(copy.deepcopy(model))
    assert cast_model.out.weight.dtype != torch.float32
    q, k, v = (each.float() for each in inputs(t=6))
    index = torch.tensor([1, 257, 512, 513, 2049, 4097])
    for ours, theirs in zip([*model.turns, model.bends], [*cast_model.turns, cast_model.bends], strict=True):
        told = {"index": index, "key_index": index}
        assert torch.equal(mp.attend(q, k, v, ours, **told), mp.attend(q, k, v, theirs, **told))
    x = torch.zeros(1, 6, 8)
    assert torch.equal(model.embeds.embed(x, index), cast_model.embeds.embed(x, index))
    assert (cast_model.embeds.embed(x, index)[0, 2] - cast_model.embeds.embed(x, index)[0, 3]).abs().max() > 0.1


# 3. After .bfloat16() phases were wrong by up to 160 rad at position 131,071.


def test_defect_3_phases_at_131071_are_exact_after_a_cast_to_bfloat16():
    scheme = mp.Scheme(mp.Rope(64), mp.causal).bfloat16()
    positions = [131_070, 131_071]
    cos, sin = exact_turns(positions, 64)
    turned = scheme.turn(unit_pairs(64, 2, torch.float32), torch.tensor(positions))
    assert phase_error(turned, cos, sin) < 2e-7
    # In bfloat16 only the result is rounded: half a step of 8 bits.
    turned = scheme.turn(unit_pairs(64, 2, torch.bfloat16), torch.tensor(positions))
    assert phase_error(turned, cos, sin) < 2.0**-8


def test_defect_3_frequencies_kept_in_bfloat16_would_be_seen():
    positions = [131_071]
    cos, sin = exact_turns(positions, 64)
    rounded = (10000.0 ** (-torch.arange(0, 64, 2) / 64)).bfloat16().double() * 131_071
    assert phase_error(torch.cat((rounded.cos(), rounded.sin()))[None, None, None], cos, sin) > 1.0


# 4. With a stretch that follows the length, cached decoding differed from a fresh pass.

TRAINED = 5
FOLLOWING = {
    "dynamic NTK": mp.DynamicNtk(TRAINED),
    "dynamic NTK, factor 4": mp.DynamicNtk(TRAINED, factor=4.0),
    "dynamic YaRN": mp.DynamicYarn(TRAINED, ramp="paper", fast=0.6, slow=0.1),
    "LongRoPE": mp.LongRope((1.0, 1.1, 1.3, 1.6), (1.5, 2.0, 4.0, 8.0), TRAINED, factor=4.0),
}


def frequencies_and_magnitude(name: str, length: int) -> tuple[list[float], float]:
    """The papers' frequencies for a text of a length, 4 pairs of 8 channels, θ = 100."""
    theta = [100.0 ** (-2 * n / 8) for n in range(4)]
    if "NTK" in name:
        factor = 4.0 if "factor 4" in name else 1.0
        base = 100.0 * (factor * length / TRAINED - (factor - 1)) ** (8 / 6) if length > TRAINED else 100.0
        return [base ** (-2 * n / 8) for n in range(4)], 1.0
    if "YaRN" in name:
        s = max(1.0, length / TRAINED)
        kept = [min(1.0, max(0.0, (TRAINED * f / (2 * math.pi) - 0.1) / (0.6 - 0.1))) for f in theta]
        return [(1 - g) * f / s + g * f for f, g in zip(theta, kept, strict=True)], 0.1 * math.log(s) + 1
    factors = (1.5, 2.0, 4.0, 8.0) if length > TRAINED else (1.0, 1.1, 1.3, 1.6)
    return [f / by for f, by in zip(theta, factors, strict=True)], math.sqrt(1 + math.log(4.0) / math.log(TRAINED))


def turned_by(x: Tensor, position: int, frequencies: list[float], size: float) -> Tensor:
    out = x.clone()
    for n, frequency in enumerate(frequencies):
        c, s = math.cos(position * frequency) * size, math.sin(position * frequency) * size
        out[n], out[n + 4] = x[n] * c - x[n + 4] * s, x[n + 4] * c + x[n] * s
    return out


def last_row(name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What the last of the tokens attends to, [b h 1 dv], one pair at a time."""
    length = k.shape[2]
    frequencies, size = frequencies_and_magnitude(name, length)
    out = torch.zeros(*q.shape[:2], 1, v.shape[3], dtype=torch.float64)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            mine = turned_by(q[b, h, -1], length - 1, frequencies, size)
            keys = [turned_by(k[b, h // 2, j], j, frequencies, size) for j in range(length)]
            out[b, h, 0] = torch.softmax(torch.stack([mine @ key for key in keys]) / math.sqrt(8), 0) @ v[b, h // 2]
    return out


@pytest.mark.parametrize("name", FOLLOWING)
def test_defect_4_decoding_past_the_trained_length_equals_a_fresh_pass_at_every_step(name: str):
    scheme = mp.Scheme(mp.Rope(8, theta=100.0, stretch=FOLLOWING[name]), mp.causal)
    q, k, v = inputs(t=14)
    cache = mp.Cache()
    for i in range(14):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        step = mp.attend(q[:, :, i : i + 1], cache.keys, cache.values, scheme, key_index=cache.index)
        seen = slice(0, i + 1)
        assert_same(step, mp.attend(q[:, :, seen], k[:, :, seen], v[:, :, seen], scheme)[:, :, -1:])
        assert_same(step, last_row(name, q[:, :, seen], k[:, :, seen], v[:, :, seen]))


@pytest.mark.parametrize("name", FOLLOWING)
def test_defect_4_keys_cached_after_turning_would_be_seen(name: str):
    scheme = mp.Scheme(mp.Rope(8, theta=100.0, stretch=FOLLOWING[name]), mp.causal)
    q, k, v = inputs(t=14)
    turned = [scheme.turn(k[:, :, j : j + 1], torch.tensor([j]), "key", j + 1) for j in range(14)]
    mine = scheme.turn(q[:, :, 13:], torch.tensor([13]), "query", 14)
    step = mp.attend(mine, torch.cat(turned, 2), v, mp.Scheme(mp.causal))
    assert (step - mp.attend(q, k, v, scheme)[:, :, -1:]).abs().max() > 1e-3


@pytest.mark.parametrize("name", FOLLOWING)
def test_defect_4_a_prompt_and_then_steps_equal_a_fresh_pass(name: str):
    scheme = mp.Scheme(mp.Rope(8, theta=100.0, stretch=FOLLOWING[name]), mp.causal)
    q, k, v = inputs(t=9)
    cache = mp.Cache()
    cache.append(k[:, :, :4], v[:, :, :4])
    for i in range(4, 9):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
    step = mp.attend(q[:, :, 8:], cache.keys, cache.values, scheme, key_index=cache.index)
    assert_same(step, last_row(name, q, k, v))


# 5. float32 phases drifted by 0.03 rad at a million positions and by 0.77 rad at ten million.


@pytest.mark.parametrize("position", [1_000_003, 9_999_991])
def test_defect_5_phases_do_not_drift_at_millions_of_positions(position: int):
    cos, sin = exact_turns([position], 64)
    at = torch.tensor([position])
    for method in (mp.Rope(64), mp.AxialRope(64, (32,)), mp.Partial(mp.Rope(64), of=64)):
        assert phase_error(method.turn(unit_pairs(64, 1, torch.float32), at), cos, sin) < 2e-7
        # Ten million times a frequency good to 16 digits.
        assert phase_error(method.turn(unit_pairs(64, 1, torch.float64), at), cos, sin) < 1e-8
    waves = mp.Sinusoidal(64, "concatenated").embed(torch.zeros(1, 1, 64), at)[0]
    assert_same(waves, torch.cat((sin, cos), -1), within=1e-7)


def test_defect_5_float32_angles_would_be_seen():
    cos, sin = exact_turns([9_999_991], 64)
    angle = 9_999_991.0 * 10000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float32) / 64)
    assert phase_error(torch.cat((angle.cos(), angle.sin()))[None, None, None], cos, sin) > 0.1


def test_defect_5_scores_at_ten_million_are_those_at_zero():
    q, k, v = (each.float() for each in inputs(t=12))
    far = torch.arange(12) + 10_000_000
    scheme = mp.Scheme(mp.Rope(8), mp.causal)
    here = mp.attend(q, k, v, scheme)
    assert_same(mp.attend(q, k, v, scheme, position=far, key_position=far), here, within=2e-6)


# 6. Dynamic NTK broke the compiled graph four times.


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
