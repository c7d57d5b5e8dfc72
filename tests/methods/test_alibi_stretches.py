"""AlibiInterpolate, AlibiNtk and AlibiDynamicNtk: flatter slopes for longer texts, against their formulas."""

from __future__ import annotations

import math

import pytest
import torch

from milepost import (
    Alibi,
    AlibiDynamicNtk,
    AlibiInterpolate,
    AlibiNtk,
    Cache,
    Ntk,
    Scheme,
    attend,
    causal,
    documents_of,
)
from tests.oracles import assert_same, dots, inputs, plain


def slopes_of(method: Alibi) -> tuple[float, ...]:
    """The slope of each head, as the method says it."""
    return tuple(method.slopes().behind.tolist())


def slopes(heads: int) -> list[float]:
    """The authors' rule: 2^(−8h/n) for a power of two n; otherwise every second slope of the next finer list joins."""
    if heads & (heads - 1) == 0:
        return [2.0 ** (-8 * h / heads) for h in range(1, heads + 1)]
    below = 2 ** math.floor(math.log2(heads))
    return slopes(below) + slopes(2 * below)[0::2][: heads - below]


def flattened(heads: int, factor: float) -> list[float]:
    """Each slope times factor^(−rank/(heads − 1)), the ranks found by sorting."""
    steepest_first = sorted(slopes(heads), reverse=True)
    return [m * factor ** (-steepest_first.index(m) / (heads - 1)) for m in slopes(heads)]


def oracle(q, k, v, slope):
    """Causal ALiBi with these slopes; queries are the last of the keys."""
    dot, behind = dots(q, k), k.shape[2] - q.shape[2]

    def score(b, h, i, j):
        return dot(b, h, i, j) - slope[h] * (i + behind - j) if j <= i + behind else -math.inf

    return plain(q, k, v, score)


# One factor for all heads


@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (6, 2)])
@pytest.mark.parametrize("factor", [0.5, 2, 3.7])
def test_interpolation_divides_every_slope(heads, groups, factor):
    q, k, v = inputs(b=1, h=heads, g=groups, t=7, dv=5)
    ours = attend(q, k, v, Scheme(Alibi(heads, stretch=AlibiInterpolate(factor)), causal))
    assert_same(ours, oracle(q, k, v, [m / factor for m in slopes(heads)]))
    assert slopes_of(Alibi(heads, stretch=AlibiInterpolate(factor))) == tuple(
        m / factor for m in slopes_of(Alibi(heads))
    )


def test_interpolating_slopes_is_interpolating_positions():
    q, k, v = inputs()
    at = torch.arange(11) / 4
    ours = attend(q, k, v, Scheme(Alibi(4, stretch=AlibiInterpolate(4))))
    assert_same(ours, attend(q, k, v, Scheme(Alibi(4)), position=at, key_position=at))


# A factor for each head


def test_the_published_slopes_of_eight_heads_stretched_by_four():
    golden = [0.5, 0.205084, 0.084119, 0.034503, 0.014152, 0.005805, 0.002381, 0.000977]
    assert [round(m, 6) for m in slopes_of(Alibi(8, stretch=AlibiNtk(4)))] == golden


@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (6, 2), (7, 1)])
def test_heads_are_flattened_by_their_rank(heads, groups):
    q, k, v = inputs(b=1, h=heads, g=groups, t=7, dv=5)
    assert_same(
        attend(q, k, v, Scheme(Alibi(heads, stretch=AlibiNtk(3.0)), causal)), oracle(q, k, v, flattened(heads, 3.0))
    )


@pytest.mark.parametrize("factor", [0.5, 2, 3.0, 4])
def test_the_steepest_head_stays_and_the_flattest_is_divided_by_the_factor_for_every_head_count(factor):
    for heads in range(2, 41):
        before, after = slopes_of(Alibi(heads)), slopes_of(Alibi(heads, stretch=AlibiNtk(factor)))
        ranked = sorted(range(heads), key=lambda h: -before[h])
        assert after[ranked[0]] == before[ranked[0]]
        assert after[ranked[-1]] == before[ranked[-1]] / factor
        divided = [before[h] / after[h] for h in ranked]
        assert sorted(divided, reverse=factor < 1) == divided
        assert sorted((after[h] for h in ranked), reverse=True) == [after[h] for h in ranked]
        assert list(after) == pytest.approx(flattened(heads, factor), rel=1e-14)


def test_a_single_head_is_the_flattest():
    assert slopes_of(Alibi(1, stretch=AlibiNtk(4))) == (2**-10,)


def test_the_ends_hold_where_the_pseudo_code_misses_them():
    # It divides head h of the first c by a^((h − 1)/(H − 1)) and leaves the others: of 12 heads the flattest by 2.416.
    assert round(4 ** (7 / 11), 3) == 2.416
    before, after = slopes_of(Alibi(12)), slopes_of(Alibi(12, stretch=AlibiNtk(4)))
    assert before[7] / after[7] == 4
    assert all(after[h] < before[h] for h in (9, 10, 11))
    assert after[8] == before[8]


# A factor that follows the length


@pytest.mark.parametrize("ahead", [1.0, 1.5])
@pytest.mark.parametrize("length", [3, 5, 6, 12])
def test_the_factor_follows_the_length(length, ahead):
    q, k, v = inputs(b=1, t=length, dv=5)
    factor = max(1.0, ahead * length / 5)
    ours = attend(q, k, v, Scheme(Alibi(4, stretch=AlibiDynamicNtk(5, factor=ahead)), causal))
    assert_same(ours, oracle(q, k, v, flattened(4, factor)))
    if factor == 1:
        assert torch.equal(ours, attend(q, k, v, Scheme(Alibi(4), causal)))


def test_the_keys_tell_the_length_not_the_queries():
    q, k, v = inputs(t=3, s=12)
    ours = attend(q, k, v, Scheme(Alibi(4, stretch=AlibiDynamicNtk(5)), causal))
    assert_same(ours, oracle(q, k, v, flattened(4, 12 / 5)))


@pytest.mark.parametrize("backend", ["reference", "chunked", "flex"])
def test_each_packed_document_goes_by_its_own_length(backend):
    q, k, v = inputs(b=1, t=19, dv=5)
    scheme = Scheme(Alibi(4, stretch=AlibiDynamicNtk(5)), causal)
    documents, _ = documents_of(torch.tensor([0, 8, 11, 19]))
    together = attend(q, k, v, scheme, documents=documents, backend=backend)
    for start, end in ((0, 8), (8, 11), (11, 19)):
        alone = oracle(*(x[:, :, start:end] for x in (q, k, v)), flattened(4, max(1.0, (end - start) / 5)))
        assert_same(together[:, :, start:end], alone)


@pytest.mark.parametrize("backend", ["reference", "chunked", "flex"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_not_counted(side, backend):
    q, k, v = inputs(b=3, t=12)
    documents = torch.zeros(3, 12, dtype=torch.long)
    real = [slice(0, 12), slice(5, 12) if side == "left" else slice(0, 7), slice(9, 12) if side == "left" else slice(3)]
    for row, kept in enumerate(real):
        documents[row] = -1
        documents[row, kept] = 0
    ours = attend(
        q, k, v, Scheme(Alibi(4, stretch=AlibiDynamicNtk(5, factor=1.5)), causal), documents=documents, backend=backend
    )
    for row, (kept, length) in enumerate(zip(real, (12, 7, 3), strict=True)):
        alone = [x[row : row + 1, :, kept] for x in (q, k, v)]
        assert_same(ours[row : row + 1, :, kept], oracle(*alone, flattened(4, max(1.0, 1.5 * length / 5))))


def test_decoding_gives_the_last_row_of_a_fresh_pass():
    q, k, v = inputs(t=12)
    scheme, cache = Scheme(Alibi(4, stretch=AlibiDynamicNtk(5)), causal), Cache()
    for i in range(12):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        row = attend(q[:, :, i : i + 1], cache.keys, cache.values, scheme, key_index=cache.index)
        fresh = oracle(*(x[:, :, : i + 1] for x in (q, k, v)), flattened(4, max(1.0, (i + 1) / 5)))
        assert_same(row[:, :, 0], fresh[:, :, -1])
    # A longer text flattens the slopes of its earlier rows too.
    longer, shorter = attend(q, k, v, scheme), attend(*(x[:, :, :8] for x in (q, k, v)), scheme)
    assert float((longer[:, :, 7] - shorter[:, :, 7]).abs().max()) > 1e-3


def test_the_bias_tells_the_length():
    index = torch.arange(12)
    scheme = Scheme(Alibi(4, stretch=AlibiDynamicNtk(5)), causal)
    added = scheme.bias(index[-3:], index, dtype=torch.float64)
    assert added.shape == (1, 4, 3, 12)
    slope = flattened(4, 12 / 5)
    for h, i, j in ((0, 0, 0), (3, 0, 0), (3, 2, 5), (2, 1, 10)):
        assert float(added[0, h, i, j]) == pytest.approx(-slope[h] * (9 + i - j), abs=1e-14)
    assert float(added[0, 0, 0, 11]) == -math.inf


def test_the_bias_tells_the_length_of_each_document():
    documents, index = documents_of(torch.tensor([0, 8, 11]))
    scheme = Scheme(Alibi(4, stretch=AlibiDynamicNtk(5)), causal)
    added = scheme.bias(index, index, documents=documents, dtype=torch.float64)[0]
    for h in range(4):
        assert float(added[h, 7, 0]) == pytest.approx(-flattened(4, 8 / 5)[h] * 7, abs=1e-14)
        assert float(added[h, 10, 8]) == pytest.approx(-slopes(4)[h] * 2, abs=1e-14)
        assert float(added[h, 10, 7]) == -math.inf


def test_a_batch_of_documents_gets_a_bias_for_each_row():
    documents = torch.tensor([[0] * 12, [-1] * 9 + [0] * 3])
    index = torch.tensor([list(range(12)), [7] * 9 + [0, 1, 2]])
    added = Scheme(Alibi(4, stretch=AlibiDynamicNtk(5)), causal).bias(
        index, index, documents=documents, dtype=torch.float64
    )
    for h in range(4):
        assert float(added[0, h, 11, 9]) == pytest.approx(-flattened(4, 12 / 5)[h] * 2, abs=1e-14)
        assert float(added[1, h, 11, 9]) == pytest.approx(-slopes(4)[h] * 2, abs=1e-14)


def test_the_score_mod_tells_the_length_of_each_document():
    documents, index = documents_of(torch.tensor([0, 8, 11]))
    score_mod, _ = Scheme(Alibi(4, stretch=AlibiDynamicNtk(5)), causal).flex(index, index, documents=documents)
    nothing, zero = torch.zeros((), dtype=torch.float64), torch.tensor(0)
    for h in range(4):
        far = score_mod(nothing, zero, torch.tensor(h), torch.tensor(7), torch.tensor(0))
        near = score_mod(nothing, zero, torch.tensor(h), torch.tensor(10), torch.tensor(8))
        assert float(far) == pytest.approx(-flattened(4, 8 / 5)[h] * 7, abs=1e-14)
        assert float(near) == pytest.approx(-slopes(4)[h] * 2, abs=1e-14)


@pytest.mark.slow
def test_flex_attention_with_our_score_mod_gives_our_attention():
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (x.float() for x in inputs(t=12, g=4))
    scheme, index = Scheme(Alibi(4, stretch=AlibiDynamicNtk(5)), causal), torch.arange(12)
    score_mod, block_mask = scheme.flex(index, index)
    compiled = torch.compile(flex_attention, backend="eager")
    assert_same(compiled(q, k, v, score_mod, block_mask), attend(q, k, v, scheme), within=2e-6)


# What a stretch is, and is not


@pytest.mark.parametrize("heads", [1, 6, 8])
def test_a_factor_of_one_changes_nothing(heads):
    plain = Alibi(heads).slopes().behind
    for neutral in (AlibiInterpolate(1), AlibiNtk(1), AlibiDynamicNtk(10**9)):
        assert torch.equal(Alibi(heads, stretch=neutral).slopes(length=512).behind, plain)


def test_only_the_dynamic_one_depends_on_the_length():
    assert Scheme(Alibi(4, stretch=AlibiDynamicNtk(5)), causal).by_length
    for stretch in (None, AlibiInterpolate(2), AlibiNtk(2)):
        assert not Scheme(Alibi(4, stretch=stretch), causal).by_length
    short = Alibi(8, stretch=AlibiDynamicNtk(512, factor=1.5)).slopes(length=100).behind
    assert torch.equal(short, Alibi(8).slopes().behind)


def test_the_dynamic_one_asks_for_the_length():
    zero = torch.zeros((), dtype=torch.long)
    with pytest.raises(ValueError, match=r"AlibiDynamicNtk: the slopes follow the length of the text; pass length="):
        Alibi(4, stretch=AlibiDynamicNtk(5)).bend(torch.zeros(()), zero, zero, zero, zero)
    with pytest.raises(ValueError, match=r"AlibiDynamicNtk: the slopes follow the length of the text; pass length="):
        Alibi(4, stretch=AlibiDynamicNtk(5)).slopes()


def test_slopes_may_be_asked_of_several_lengths_at_once():
    method = Alibi(6, stretch=AlibiDynamicNtk(5))
    lengths = torch.tensor([[4], [20], [65]])
    found = method.slopes(lengths).behind
    assert found.shape == (3, 1, 6)
    for row, length in zip(found, (4, 20, 65), strict=True):
        assert_same(row[0], torch.tensor(flattened(6, max(1.0, length / 5)), dtype=torch.float64))


@pytest.mark.parametrize("make", [AlibiInterpolate, AlibiNtk, lambda factor: AlibiDynamicNtk(5, factor=factor)])
@pytest.mark.parametrize(
    ("factor", "error", "text"),
    [
        (0, ValueError, r"^Alibi\w+\(factor=0\): factor must be greater than 0"),
        (-2.0, ValueError, r"\(factor=-2.0\): factor must be greater than 0"),
        (math.inf, ValueError, r"\(factor=inf\): factor must be finite"),
        (math.nan, ValueError, r"\(factor=nan\): factor must be finite"),
        ("2", TypeError, r"\(factor='2'\): factor must be a number, not str"),
        (True, TypeError, r"\(factor=True\): factor must be a number, not bool"),
    ],
)
def test_what_is_no_factor_is_refused(make, factor, error, text):
    with pytest.raises(error, match=text):
        make(factor)


def test_what_is_no_trained_length_is_refused():
    for wrong in (0, -512):
        with pytest.raises(ValueError, match=rf"AlibiDynamicNtk\(trained={wrong}\): trained must be at least 1"):
            AlibiDynamicNtk(wrong)
    for wrong in (512.0, None):
        with pytest.raises(TypeError, match=rf"AlibiDynamicNtk\(trained={wrong}\): trained must be an integer, not"):
            AlibiDynamicNtk(wrong)


def test_what_does_not_stretch_slopes_is_refused():
    with pytest.raises(TypeError, match=r"Alibi\(stretch=Ntk.*: a stretch is a method such as AlibiNtk\(factor=2\)"):
        Alibi(4, stretch=Ntk(2))
    with pytest.raises(TypeError, match=r"Alibi\(stretch=AlibiNtk\): this is a class; make one: AlibiNtk\(…\)"):
        Alibi(4, stretch=AlibiNtk)
    with pytest.raises(TypeError, match=r"Alibi\(stretch=2.0\): a stretch is a method such as"):
        Alibi(4, stretch=2.0)


@pytest.mark.parametrize("stretch", [AlibiInterpolate(2), AlibiNtk(2), AlibiDynamicNtk(512)])
def test_a_stretch_by_itself_is_no_part_of_a_scheme(stretch):
    name = type(stretch).__name__
    with pytest.raises(TypeError, match=rf"{name} is not a part of a scheme, it stretches ALiBi: Alibi\(heads, st"):
        Scheme(stretch, causal)
