"""Every stretch of RoPE against its paper, against transformers, and against the other stretches."""

from __future__ import annotations

import cmath
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_rotary

from milepost import (
    DynamicNtk,
    DynamicYarn,
    Interpolate,
    Llama3,
    LongRope,
    Ntk,
    Rope,
    Scheme,
    Yarn,
    attend,
    causal,
)
from tests.oracles import Score, assert_same, inputs, plain


def stretched(stretch: Any, dim: int = 128, theta: float = 10000.0, length: int = 1) -> tuple[Tensor, float]:
    """The frequencies [d/2] and the magnitude of a stretched Rope, read from its cosines and sines at position 1."""
    one = torch.ones(1, dtype=torch.float64)
    cos, sin = (table[0] for table in Rope(dim, theta, stretch=stretch).cos_sin(one, length, torch.float64))
    sizes = torch.hypot(cos, sin)
    assert_same(sizes, sizes[:1].expand_as(sizes))
    return torch.atan2(sin, cos), float(sizes[0])


def assert_ratio(ours: Tensor, oracle: Sequence[float] | Tensor, within: float = 1e-12) -> None:
    """Equal as ratios: the slow frequencies count as much as the fast ones."""
    ratio = ours / torch.as_tensor(oracle, dtype=torch.float64)
    assert_same(ratio, torch.ones_like(ratio), within)


# The papers' formulas. Each maps (dim, theta, length) to the frequencies and the factor on cos and sin.

Oracle = Callable[[int, float, int], "tuple[list[float], float]"]


def unstretched(d: int, theta: float) -> list[float]:
    return [theta ** (-2 * n / d) for n in range(d // 2)]


def interpolated(factor: float) -> Oracle:
    return lambda d, theta, length: ([f / factor for f in unstretched(d, theta)], 1.0)


def ntk(factor: float) -> Oracle:
    return lambda d, theta, length: (unstretched(d, theta * factor ** (d / (d - 2))), 1.0)


def dynamic_ntk(trained: int, factor: float) -> Oracle:
    def answer(d: int, theta: float, length: int) -> tuple[list[float], float]:
        alpha = factor * length / trained - (factor - 1) if length > trained else 1.0
        return unstretched(d, theta * alpha ** (d / (d - 2))), 1.0

    return answer


def blended(f: list[float], factor: float, kept: list[float]) -> list[float]:
    return [(1 - g) * each / factor + g * each for each, g in zip(f, kept, strict=True)]


def by_turns(f: list[float], trained: int, slow: float, fast: float) -> list[float]:
    """The paper's γ: by how many turns a pair makes within the trained length."""
    turns = [trained * each / (2 * math.pi) for each in f]
    return [0.0 if r < slow else 1.0 if r > fast else (r - slow) / (fast - slow) for r in turns]


def by_pairs(d: int, theta: float, trained: int, slow: float, fast: float, truncate: bool) -> list[float]:
    """The authors' code's γ: by the number of the pair."""

    def where(turns: float) -> float:
        return d * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = where(fast), where(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    if low == high:
        high += 0.001
    return [1 - min(max((n - low) / (high - low), 0), 1) for n in range(d // 2)]


def yarn(
    factor: float | None,
    trained: int,
    ramp: str = "code",
    slow: float = 1.0,
    fast: float = 32.0,
    truncate: bool = True,
    scaled: float | None = None,
) -> Oracle:
    """Without a factor it follows the length."""

    def answer(d: int, theta: float, length: int) -> tuple[list[float], float]:
        s = max(1.0, length / trained) if factor is None else factor
        f = unstretched(d, theta)
        kept = by_pairs(d, theta, trained, slow, fast, truncate) if ramp == "code" else by_turns(f, trained, slow, fast)
        return blended(f, s, kept), 0.1 * math.log(s) + 1 if scaled is None else scaled

    return answer


def llama3(factor: float, trained: int, low: float = 1.0, high: float = 4.0) -> Oracle:
    def answer(d: int, theta: float, length: int) -> tuple[list[float], float]:
        out: list[float] = []
        for f in unstretched(d, theta):
            wave = 2 * math.pi / f
            smooth = (trained / wave - low) / (high - low)
            if wave < trained / high:
                out.append(f)
            elif wave > trained / low:
                out.append(f / factor)
            else:
                out.append((1 - smooth) * f / factor + smooth * f)
        return out, 1.0

    return answer


def long_rope(short: Sequence[float], long: Sequence[float], trained: int, factor: float) -> Oracle:
    def answer(d: int, theta: float, length: int) -> tuple[list[float], float]:
        chosen = long if length > trained else short
        size = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
        return [f / each for f, each in zip(unstretched(d, theta), chosen, strict=True)], size

    return answer


SHORT, LONG = (1.0, 1.1, 1.25, 1.5), (1.0, 2.5, 6.0, 20.0)

# With theta 50 and 8 channels, every ramp below has pairs at both ends and between.
STRETCHES: list[tuple[Any, Oracle]] = [
    (Interpolate(4), interpolated(4)),
    (Ntk(4.5), ntk(4.5)),
    (DynamicNtk(5), dynamic_ntk(5, 1.0)),
    (DynamicNtk(5, factor=3), dynamic_ntk(5, 3)),
    (DynamicNtk(5000), dynamic_ntk(5000, 1.0)),
    (Yarn(8, 5, slow=0.1, fast=0.7), yarn(8, 5, slow=0.1, fast=0.7)),
    (Yarn(8, 5, slow=0.1, fast=0.7, truncate=False), yarn(8, 5, slow=0.1, fast=0.7, truncate=False)),
    (Yarn(8, 5, "paper", slow=0.1, fast=0.7), yarn(8, 5, "paper", slow=0.1, fast=0.7)),
    (Yarn(8, 5, slow=0.1, fast=0.7, scaled=1.5), yarn(8, 5, slow=0.1, fast=0.7, scaled=1.5)),
    (DynamicYarn(5, slow=0.1, fast=0.7), yarn(None, 5, slow=0.1, fast=0.7)),
    (DynamicYarn(5, slow=0.1, fast=0.7, truncate=False), yarn(None, 5, slow=0.1, fast=0.7, truncate=False)),
    (DynamicYarn(5, "paper", slow=0.1, fast=0.7), yarn(None, 5, "paper", slow=0.1, fast=0.7)),
    (Llama3(8, 5, low=0.1, high=0.7), llama3(8, 5, low=0.1, high=0.7)),
    (LongRope(SHORT, LONG, 5, factor=8), long_rope(SHORT, LONG, 5, 8)),
    (LongRope(SHORT, LONG, 5000, factor=8), long_rope(SHORT, LONG, 5000, 8)),
]


def stretched_score(q: Tensor, k: Tensor, oracle: Oracle, theta: float, pairs: str) -> Score:
    """m² · Σ_n Re[q_n · conj(k_n) · e^(i(p − r)θ′_n)] / √d, causal; the text is as long as there are keys."""
    d, s, group, behind = q.shape[-1], k.shape[2], q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    frequencies, size = oracle(d, theta, s)

    def score(b: int, h: int, i: int, j: int) -> float:
        if j > i + behind:
            return -math.inf
        a, c, total = q[b, h, i].tolist(), k[b, h // group, j].tolist(), 0.0
        for n, f in enumerate(frequencies):
            one, two = (n, n + d // 2) if pairs == "halves" else (2 * n, 2 * n + 1)
            turn = cmath.exp(1j * (i + behind - j) * f)
            total += (complex(a[one], a[two]) * complex(c[one], -c[two]) * turn).real
        return total * size**2 / math.sqrt(d)

    return score


@pytest.mark.parametrize(("stretch", "oracle"), STRETCHES)
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_scores_under_every_stretch(stretch, oracle, pairs):
    q, k, v = inputs(t=7, s=12, d=8, dv=5)
    score = stretched_score(q, k, oracle, 50.0, pairs)
    ours = attend(q, k, v, Scheme(Rope(8, theta=50.0, pairs=pairs, stretch=stretch), causal))
    assert_same(ours, plain(q, k, v, score))


@pytest.mark.parametrize(("stretch", "oracle"), [each for each in STRETCHES if getattr(each[0], "by_length", False)])
def test_each_document_is_stretched_by_its_own_length(stretch, oracle):
    q, k, v = inputs(b=1, t=13, d=8)
    documents = torch.tensor([0] * 9 + [1] * 4)
    ours = attend(q, k, v, Scheme(Rope(8, theta=50.0, stretch=stretch), causal), documents=documents)
    for rows in (slice(0, 9), slice(9, 13)):
        one, two, three = (x[:, :, rows] for x in (q, k, v))
        assert_same(ours[:, :, rows], plain(one, two, three, stretched_score(one, two, oracle, 50.0, "halves")))


@pytest.mark.parametrize("stretch", [DynamicNtk(5, factor=2), DynamicYarn(5), LongRope(SHORT, LONG, 5, factor=8)])
@pytest.mark.parametrize("length", [4, 12])
def test_the_length_may_be_told_in_any_form(stretch, length):
    rope, index = Rope(8, stretch=stretch), torch.arange(length)
    untold = rope.cos_sin(index, dtype=torch.float64)
    batched = rope.cos_sin(index.expand(2, -1), torch.full((2, 1), length), torch.float64)
    for told in (length, torch.tensor([length]), torch.full((length,), length)):
        for ours, oracle in zip(rope.cos_sin(index, told, torch.float64), untold, strict=True):
            assert_same(ours, oracle)
    for ours, oracle in zip(batched, untold, strict=True):
        assert_same(ours, oracle.expand(2, -1, -1))


@pytest.mark.parametrize("dim", [32, 128])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("trained", [2048, 8192])
@pytest.mark.parametrize("factor", [2, 32])
def test_frequencies_of_real_models(dim, theta, trained, factor):
    short, long = ([1 + n / slow for n in range(dim // 2)] for slow in (50, 7))
    for length in (trained // 2, trained, trained + 1, factor * trained):
        for stretch, oracle in (
            (Interpolate(factor), interpolated(factor)),
            (Ntk(factor), ntk(factor)),
            (DynamicNtk(trained, factor), dynamic_ntk(trained, factor)),
            (Yarn(factor, trained), yarn(factor, trained)),
            (Yarn(factor, trained, truncate=False), yarn(factor, trained, truncate=False)),
            (Yarn(factor, trained, "paper"), yarn(factor, trained, "paper")),
            (DynamicYarn(trained), yarn(None, trained)),
            (DynamicYarn(trained, "paper"), yarn(None, trained, "paper")),
            (Llama3(factor, trained), llama3(factor, trained)),
            (LongRope(short, long, trained, factor), long_rope(short, long, trained, factor)),
        ):
            frequencies, size = stretched(stretch, dim, theta, length)
            expected, magnitude = oracle(dim, theta, length)
            assert_ratio(frequencies, expected)
            assert size == pytest.approx(magnitude, rel=1e-12)


# Golden values


def base_of(frequencies: Tensor) -> float:
    """The base θ of frequencies θ^(−2n/d)."""
    return float(frequencies[1]) ** -len(frequencies)


def test_ntk_raises_the_base():
    frequencies, _ = stretched(Ntk(8))
    assert base_of(frequencies) == pytest.approx(82684.62, abs=0.005)
    assert_ratio(frequencies, stretched(None, theta=10000.0 * 8 ** (128 / 126))[0])


@pytest.mark.parametrize("factor", [2, 8, 93.06])
@pytest.mark.parametrize("dim", [4, 64, 128])
def test_ntk_keeps_the_first_pair_and_divides_the_last_by_the_factor(dim, factor):
    ratio = stretched(Ntk(factor), dim)[0] / stretched(None, dim)[0]
    assert float(ratio[0]) == 1.0
    assert float(ratio[-1]) == pytest.approx(1 / factor, rel=1e-14)


def test_a_base_eight_times_as_large_divides_the_last_pair_by_less_than_eight():
    ratio = stretched(None, theta=80000.0)[0][-1] / stretched(None)[0][-1]
    assert float(ratio) == pytest.approx(0.129, abs=5e-4)


def test_code_llamas_base_is_ntk_by_93():
    assert pytest.approx(93.06, abs=0.005) == 100 ** (126 / 128)
    assert_ratio(stretched(Ntk(100 ** (126 / 128)))[0], stretched(None, theta=1e6)[0])


def test_dynamic_ntks_factor_is_not_the_ratio_of_lengths():
    assert base_of(stretched(DynamicNtk(4096, factor=2), length=2 * 4096)[0]) == pytest.approx(30527.74, abs=0.005)
    assert_ratio(stretched(DynamicNtk(4096, factor=2), length=2 * 4096)[0], stretched(Ntk(3))[0])
    assert_ratio(stretched(DynamicNtk(4096, factor=4), length=4 * 4096)[0], stretched(Ntk(13))[0])


@pytest.mark.parametrize(("trained", "low", "high"), [(2048, 16, 41), (4096, 20, 46), (8192, 25, 50)])
def test_the_ends_of_yarns_ramp(trained, low, high):
    share = stretched(Yarn(8, trained))[0] / stretched(None)[0]
    kept = [n for n in range(64) if share[n] > 1 - 1e-12]
    slowed = [n for n in range(64) if share[n] < 1 / 8 + 1e-12]
    assert kept == list(range(low + 1))
    assert slowed == list(range(high, 64))


def test_yarn_of_sixteen_channels():
    golden = [1, 0.31622777, 0.1, 0.02569351, 0.00625, 0.0013835, 0.00025, 7.906e-05]
    frequencies, _ = stretched(Yarn(4, 2048), dim=16)
    # The last digit written may be rounded by half its worth.
    for ours, value, place in zip(frequencies.tolist(), golden, (1e-8,) * 4 + (1e-8, 1e-7, 1e-8, 1e-8), strict=True):
        assert ours == pytest.approx(value, abs=0.501 * place)


@pytest.mark.parametrize("factor", [1, 2, 4, 8, 16, 32])
def test_yarns_temperature(factor):
    golden = {1: 1.0, 2: 1.0693, 4: 1.1386, 8: 1.2079, 16: 1.2773, 32: 1.3466}[factor]
    assert stretched(Yarn(factor, 4096))[1] == pytest.approx(golden, abs=5.01e-5)
    assert stretched(DynamicYarn(4096), length=4096 * factor)[1] == pytest.approx(golden, abs=5.01e-5)


def test_yarns_temperature_at_forty():
    assert stretched(Yarn(40, 4096))[1] == pytest.approx(1.36889, abs=5.01e-6)


def test_yarns_code_and_paper_differ_by_more_than_double_at_pair_36():
    code, paper = (stretched(Yarn(8, 4096, ramp))[0] for ramp in ("code", "paper"))
    apart = (code - paper).abs() / paper
    assert int(apart.argmax()) == 36
    assert float(apart.max()) == pytest.approx(1.30, abs=0.005)


def test_long_ropes_magnitude_rides_on_short_texts_too():
    ones = (1.0,) * 64
    for length in (10, 4096, 4097, 131072):
        assert stretched(LongRope(ones, ones, 4096, factor=32), length=length)[1] == pytest.approx(1.190238, abs=5e-7)
    assert stretched(LongRope(ones, ones, 4096))[1] == 1.0
    assert stretched(LongRope(ones, ones, 4096, factor=0.5))[1] == 1.0
    assert stretched(LongRope(ones, ones, 4096, factor=32, scaled=1.25))[1] == pytest.approx(1.25, rel=1e-14)


def test_long_rope_switches_after_the_trained_length():
    short, long = (1.0,) * 64, (2.0,) * 64
    stretch, whole = LongRope(short, long, 4096), stretched(None)[0]
    assert_ratio(stretched(stretch, length=4096)[0], whole)
    assert_ratio(stretched(stretch, length=4097)[0], whole / 2)


def test_a_ramp_without_width_is_a_step():
    # Both ends lie just past pair 5: pairs up to it are kept and the next is slowed at once.
    oracle = by_pairs(16, 10000.0, 2048, 1.0, 1.0 + 1e-9, truncate=False)
    frequencies, _ = stretched(Yarn(4, 2048, slow=1.0, fast=1.0 + 1e-9, truncate=False), dim=16)
    assert oracle == [1.0] * 6 + [0.0] * 2
    assert_ratio(frequencies, blended(unstretched(16, 10000.0), 4, oracle))
    # With low = high = 0 the first pair alone is kept.
    share = stretched(Yarn(4, 5), dim=16)[0] / stretched(None, dim=16)[0]
    assert_ratio(share, [1.0] + [0.25] * 7)


@pytest.mark.parametrize("stretch", [Yarn(4, 16), Yarn(4, 4096), Yarn(4, 4096, truncate=False), DynamicYarn(1024)])
def test_the_only_pair_of_two_channels_is_kept(stretch):
    # θ_0 is 1 whatever the base, and the code's ramp begins at the first pair or later.
    assert_ratio(stretched(stretch, dim=2, length=4096)[0], [1.0])


# One stretch as another


def test_interpolating_is_dividing_positions():
    x, index = inputs(t=9)[0], torch.arange(9)
    assert_same(Rope(8, stretch=Interpolate(4)).turn(x, index), Rope(8).turn(x, index / 4))


@pytest.mark.parametrize(
    "stretch",
    [
        Interpolate(1),
        Ntk(1),
        DynamicNtk(64),
        DynamicNtk(64, factor=4),
        Yarn(1, 4096),
        Yarn(1, 4096, "paper"),
        DynamicYarn(64),
        DynamicYarn(64, "paper"),
        Llama3(1, 4096),
        LongRope((1.0,) * 4, LONG, 64),
    ],
)
def test_a_stretch_of_one_or_within_the_trained_length_changes_nothing(stretch):
    q, k, v = inputs(t=9)
    ours = attend(q, k, v, Scheme(Rope(8, stretch=stretch), causal))
    assert_same(ours, attend(q, k, v, Scheme(Rope(8), causal)))


@pytest.mark.parametrize("length", [4097, 10000, 131072])
def test_dynamic_stretches_are_static_ones_at_each_length(length):
    ratio = length / 4096
    assert_ratio(stretched(DynamicNtk(4096), length=length)[0], stretched(Ntk(ratio))[0])
    for ramp in ("code", "paper"):
        dynamic, static = stretched(DynamicYarn(4096, ramp), length=length), stretched(Yarn(ratio, 4096, ramp))
        assert_ratio(dynamic[0], static[0])
        assert dynamic[1] == pytest.approx(static[1], rel=1e-14)


def test_llama3_is_the_papers_yarn_between_one_and_four_turns_without_a_temperature():
    ours = stretched(Llama3(8, 8192), theta=500000.0)
    yarns = stretched(Yarn(8, 8192, "paper", fast=4.0, slow=1.0, scaled=1.0), theta=500000.0)
    assert_ratio(ours[0], yarns[0])
    assert ours[1] == yarns[1] == 1.0


def test_long_rope_of_one_factor_is_interpolation():
    same = (4.0,) * 64
    assert_ratio(stretched(LongRope(same, same, 4096))[0], stretched(Interpolate(4))[0])


def test_ntk_may_be_written_as_long_rope():
    factors = tuple(8 ** (n / 63) for n in range(64))
    assert_ratio(stretched(LongRope(factors, factors, 4096))[0], stretched(Ntk(8))[0])


# transformers, which works in float32


def rounding(theta: float, factor: float = 1.0) -> float:
    """How far float32 takes a frequency from its value, as a ratio.

    Rounding the exponent 2n/d costs ln θ units of 2⁻²⁴, and a handful of operations one each. Where a frequency is
    blended from f and f/factor, an error of the blend weighs up to factor times as much.
    """
    return 2.0**-24 * (math.log(theta) + 12) * factor


def theirs(
    kind: str, dim: int, theta: float, length: int | None, longest: int, **parameters: Any
) -> tuple[Tensor, float]:
    """The frequencies and the factor on cos and sin that transformers computes."""
    rope = {"rope_type": kind, "rope_theta": theta, **parameters}
    config = LlamaConfig(
        hidden_size=dim, num_attention_heads=1, head_dim=dim, max_position_embeddings=longest, rope_parameters=rope
    )
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)


GRID = list(itertools.product((16, 64, 96, 128), (10000.0, 500000.0, 1000000.0)))


def assert_theirs(ours: tuple[Tensor, float], other: tuple[Tensor, float], within: float) -> None:
    assert_ratio(ours[0], other[0].double(), within)
    assert ours[1] == pytest.approx(other[1], rel=1e-12)


@pytest.mark.parametrize(("dim", "theta"), GRID)
@pytest.mark.parametrize("factor", [1.0, 2.5, 8.0])
def test_transformers_linear(dim, theta, factor):
    other = theirs("linear", dim, theta, None, 4096, factor=factor)
    assert_theirs(stretched(Interpolate(factor), dim, theta), other, rounding(theta))


@pytest.mark.parametrize(("dim", "theta"), GRID)
@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_transformers_dynamic(dim, theta, factor):
    # Their trained length is max_position_embeddings, and their factor ours.
    for trained, length in itertools.product((512, 4096), (1, 512, 513, 4096, 5000, 65536)):
        other = theirs("dynamic", dim, theta, length, trained, factor=factor)
        raised = theta * (max(1, factor * length / trained)) ** (dim / (dim - 2))
        assert_theirs(stretched(DynamicNtk(trained, factor), dim, theta, length), other, rounding(raised))


@pytest.mark.parametrize(("dim", "theta"), GRID)
@pytest.mark.parametrize("factor", [1.0, 4.0, 40.0])
@pytest.mark.parametrize("truncate", [True, False])
def test_transformers_yarn(dim, theta, factor, truncate):
    for trained, (fast, slow) in itertools.product((256, 2048, 4096, 32768), ((32.0, 1.0), (8.0, 2.0))):
        other = theirs(
            "yarn", dim, theta, None, int(trained * factor), factor=factor, original_max_position_embeddings=trained,
            beta_fast=fast, beta_slow=slow, truncate=truncate,
        )  # fmt: skip
        ours = stretched(Yarn(factor, trained, fast=fast, slow=slow, truncate=truncate), dim, theta)
        # A ramp's end is a number up to d, rounded to float32 before the number of the pair is taken from it.
        assert_theirs(ours, other, rounding(theta, factor) + 2.0**-24 * dim * factor)


def test_transformers_yarn_of_two_channels():
    other = theirs("yarn", 2, 10000.0, None, 16384, factor=4.0, original_max_position_embeddings=4096)
    assert_theirs(stretched(Yarn(4.0, 4096), 2), other, rounding(10000.0))


@pytest.mark.parametrize(
    ("told", "factor"),
    [
        ({}, 0.1 * math.log(40) + 1),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 0.707, "mscale_all_dim": 1.0}, (0.0707 * math.log(40) + 1) / (0.1 * math.log(40) + 1)),
        ({"mscale_all_dim": 1.0}, 0.1 * math.log(40) + 1),
        ({"mscale": 0.707}, 0.1 * math.log(40) + 1),
        ({"attention_factor": 1.5, "mscale": 0.707, "mscale_all_dim": 1.0}, 1.5),
    ],
)
def test_transformers_factor_on_cos_and_sin(told, factor):
    # Yarn's own factor, or the one that these settings come to, told as `scaled`.
    other = theirs("yarn", 64, 1e4, None, 163840, factor=40.0, original_max_position_embeddings=4096, **told)
    own = other[1] == stretched(Yarn(40.0, 4096), 64)[1]
    assert stretched(Yarn(40.0, 4096, scaled=None if own else factor), 64)[1] == pytest.approx(other[1], rel=1e-14)
    assert factor == pytest.approx(other[1], rel=1e-14)


@pytest.mark.parametrize(("dim", "theta"), GRID)
@pytest.mark.parametrize("factor", [1.0, 8.0, 32.0])
def test_transformers_llama3(dim, theta, factor):
    for trained, (low, high) in itertools.product((512, 8192), ((1.0, 4.0), (2.0, 3.0))):
        other = theirs(
            "llama3", dim, theta, None, int(trained * factor), factor=factor, original_max_position_embeddings=trained,
            low_freq_factor=low, high_freq_factor=high,
        )  # fmt: skip
        # The blend reads the number of turns, up to `high`, over high − low.
        within = rounding(theta, factor * high / (high - low))
        assert_theirs(stretched(Llama3(factor, trained, low, high), dim, theta), other, within)


@pytest.mark.parametrize(("dim", "theta"), GRID)
@pytest.mark.parametrize("factor", [0.5, 1.0, 32.0])
def test_transformers_longrope(dim, theta, factor):
    short = [1 + n / 50 for n in range(dim // 2)]
    long = [1 + n * n / 9 for n in range(dim // 2)]
    for length in (1, 4096, 4097, 131072):
        other = theirs(
            "longrope", dim, theta, length, 131072, factor=factor, original_max_position_embeddings=4096,
            short_factor=short, long_factor=long,
        )  # fmt: skip
        ours = stretched(LongRope(short, long, 4096, factor), dim, theta, length)
        assert_theirs(ours, other, rounding(theta))


MODELS: list[tuple[Any, dict[str, Any]]] = [
    (Interpolate(4.0), {"rope_type": "linear", "factor": 4.0}),
    (DynamicNtk(16, factor=2.0), {"rope_type": "dynamic", "factor": 2.0}),
    (Yarn(4.0, 16), {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
    (
        Llama3(8.0, 16),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "original_max_position_embeddings": 16,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    ),
    (
        LongRope(SHORT, LONG, 16, factor=4.0),
        {
            "rope_type": "longrope",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "short_factor": list(SHORT),
            "long_factor": list(LONG),
        },
    ),
]


@pytest.mark.parametrize(("stretch", "rope"), MODELS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("length", [10, 16, 40])
def test_llama_turns_queries_and_keys_the_same_way(stretch, rope, length):
    config = LlamaConfig(
        hidden_size=8,
        num_attention_heads=1,
        head_dim=8,
        max_position_embeddings=16,
        rope_parameters={"rope_theta": 10000.0, **rope},
    )
    q, k, _ = (x.float() for x in inputs(t=length))
    index = torch.arange(length)
    cos, sin = LlamaRotaryEmbedding(config)(q, index[None])
    # An angle of theirs errs by its own rounding, and |x| is below 5.
    within = 5 * length * rounding(10000.0, 8.0)
    for x, oracle in zip((q, k), llama_rotary(q, k, cos, sin), strict=True):
        assert_same(Rope(8, stretch=stretch).turn(x, index), oracle, within)


def test_a_longer_text_seen_before_changes_nothing():
    # transformers goes back to the plain base only below the trained length, not at it.
    rope = Rope(8, stretch=DynamicNtk(16))
    before = rope.cos_sin(torch.arange(16))
    rope.cos_sin(torch.arange(64))
    for ours, again, unstretched_table in zip(
        before, rope.cos_sin(torch.arange(16)), Rope(8).cos_sin(torch.arange(16)), strict=True
    ):
        assert torch.equal(ours, again)
        assert torch.equal(ours, unstretched_table)


# What is refused


@pytest.mark.parametrize("kind", [Interpolate, Ntk])
@pytest.mark.parametrize(
    ("factor", "error", "text"),
    [
        (0, ValueError, r"\(factor=0\): factor must be greater than 0"),
        (-2.0, ValueError, "factor must be greater than 0"),
        (math.nan, ValueError, "factor must be finite"),
        (math.inf, ValueError, "factor must be finite"),
        ("8", TypeError, "factor must be a number, not str"),
        (True, TypeError, "factor must be a number, not bool"),
        (None, TypeError, "factor must be a number, not NoneType"),
    ],
)
def test_a_factor_that_is_no_positive_number_is_refused(kind, factor, error, text):
    with pytest.raises(error, match=text):
        kind(factor)


@pytest.mark.parametrize("kind", [DynamicNtk, Yarn, DynamicYarn, Llama3, LongRope])
@pytest.mark.parametrize(
    ("trained", "error", "text"),
    [
        (0, ValueError, r"\(trained=0\): trained must be at least"),
        (-4096, ValueError, "trained must be at least"),
        (4096.0, TypeError, r"\(trained=4096.0\): trained must be an integer, not float"),
        (True, TypeError, "trained must be an integer, not bool"),
        ("4096", TypeError, "trained must be an integer, not str"),
        (None, TypeError, "trained must be an integer, not NoneType"),
    ],
)
def test_a_trained_length_that_is_no_count_is_refused(kind, trained, error, text):
    others: dict[Any, dict[str, Any]] = {
        Yarn: {"factor": 8},
        Llama3: {"factor": 8},
        LongRope: {"short": SHORT, "long": LONG},
    }
    with pytest.raises(error, match=f"{kind.__name__}.*{text}" if text.startswith(r"\(") else text):
        kind(trained=trained, **others.get(kind, {}))


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "text"),
    [
        (DynamicNtk, {"factor": 0.5}, ValueError, r"DynamicNtk\(factor=0.5\): factor must be at least 1"),
        (DynamicNtk, {"factor": math.inf}, ValueError, "factor must be finite"),
        (DynamicNtk, {"factor": "2"}, TypeError, "factor must be a number, not str"),
        (Yarn, {"factor": 0.5}, ValueError, r"Yarn\(factor=0.5\): factor must be at least 1"),
        (Yarn, {"factor": math.nan}, ValueError, "factor must be finite"),
        (Yarn, {"ramp": "linear"}, ValueError, r"Yarn\(ramp='linear'\): ramp must be one of 'code', 'paper'"),
        (Yarn, {"slow": 0}, ValueError, "slow must be greater than 0"),
        (Yarn, {"fast": 1}, ValueError, r"Yarn\(fast=1\): fast must be greater than 1"),
        (Yarn, {"fast": math.inf}, ValueError, "fast must be finite"),
        (Yarn, {"scaled": 0}, ValueError, "scaled must be greater than 0"),
        (Yarn, {"scaled": math.nan}, ValueError, "scaled must be finite"),
        (DynamicYarn, {"ramp": "linear"}, ValueError, r"DynamicYarn\(ramp='linear'\): ramp must be one of"),
        (DynamicYarn, {"slow": -1}, ValueError, "slow must be greater than 0"),
        (DynamicYarn, {"fast": 0.5}, ValueError, "fast must be greater than 1"),
        (Llama3, {"factor": 0}, ValueError, r"Llama3\(factor=0\): factor must be greater than 0"),
        (Llama3, {"low": 0}, ValueError, "low must be greater than 0"),
        (Llama3, {"high": 1.0}, ValueError, r"Llama3\(high=1.0\): high must be greater than 1"),
        (LongRope, {"trained": 1}, ValueError, r"LongRope\(trained=1\): trained must be at least 2"),
        (LongRope, {"factor": 0}, ValueError, "factor must be greater than 0"),
        (LongRope, {"scaled": -1.0}, ValueError, "scaled must be greater than 0"),
        (LongRope, {"short": (1.0, 0.0, 1.0, 1.0)}, ValueError, r"LongRope\(short=.*short must be greater than 0"),
        (LongRope, {"long": (1.0, math.nan, 1.0, 1.0)}, ValueError, "long must be finite"),
        (LongRope, {"long": ("a",) * 4}, TypeError, "long must be a number, not str"),
        (LongRope, {"short": (1.0,)}, ValueError, "1 short factors but 4 long ones; one of each for every pair"),
        (LongRope, {"short": 2.0}, TypeError, "short"),
    ],
)
def test_wrong_arguments_are_refused(kind, arguments, error, text):
    rest: dict[Any, dict[str, Any]] = {
        DynamicNtk: {"trained": 4096},
        Yarn: {"factor": 8, "trained": 4096},
        DynamicYarn: {"trained": 4096},
        Llama3: {"factor": 8, "trained": 4096},
        LongRope: {"short": SHORT, "long": LONG, "trained": 4096},
    }
    with pytest.raises(error, match=text):
        kind(**(rest[kind] | arguments))


def test_long_rope_with_factors_for_another_width_is_refused():
    with pytest.raises(ValueError, match="4 factors for 3 pairs of channels; give one for every pair"):
        Rope(6, stretch=LongRope(SHORT, LONG, 16)).turn(torch.zeros(1, 1, 3, 6), torch.arange(3))


@pytest.mark.parametrize("stretch", [Ntk(2), DynamicNtk(2)])
def test_ntk_of_a_single_pair_is_refused(stretch):
    with pytest.raises(ValueError, match="needs at least two pairs of channels"):
        Rope(2, stretch=stretch).turn(torch.zeros(1, 1, 3, 2), torch.arange(3))


@pytest.mark.parametrize("stretch", [Yarn(2, 4096), DynamicYarn(2)])
def test_yarns_ramp_over_frequencies_all_alike_is_refused(stretch):
    # The code's ramp divides by ln θ.
    with pytest.raises(ValueError, match="theta"):
        Rope(8, theta=1.0, stretch=stretch).turn(torch.zeros(1, 1, 3, 8), torch.arange(3))


@pytest.mark.parametrize("stretch", [each for each, _ in STRETCHES[::3]])
def test_a_stretch_is_no_part_of_a_scheme(stretch):
    with pytest.raises(TypeError, match=r"is not a part of a scheme, it stretches a rotation: Rope\(dim, stretch="):
        Scheme(stretch)
