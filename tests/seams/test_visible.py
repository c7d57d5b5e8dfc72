from __future__ import annotations

import itertools
import math
import operator
import random

import pytest
import torch
from torch import Tensor

from milepost import Rope, Scheme, Stream, attend, causal, chunks, everything, sinks, window
from milepost.seams.band import Band, Strip
from milepost.seams.visible import Visible
from tests.oracles import assert_same, inputs, plain

T = 24
"""Queries and keys of the brute force. No leaf below is wider than half of it."""

LEAVES = {
    "everything": (everything, lambda i, j: True),
    "causal": (causal, lambda i, j: j <= i),
    "window(1)": (window(1), lambda i, j: i == j),
    "window(4)": (window(4), lambda i, j: i - 4 < j <= i),
    "window(3, ahead=2)": (window(3, ahead=2), lambda i, j: i - 3 < j <= i + 2),
    "sinks(2)": (sinks(2), lambda i, j: j < 2),
    "chunks(1)": (chunks(1), lambda i, j: i == j),
    "chunks(5)": (chunks(5), lambda i, j: i // 5 == j // 5),
}


def seen(visible: Visible, t: int = T) -> Tensor:
    zero = torch.tensor(0)
    return visible.see(zero, zero, torch.arange(t)[:, None], torch.arange(t)).expand(t, t)


def by_definition(name: str) -> Tensor:
    rule = LEAVES[name][1]
    return torch.tensor([[rule(i, j) for j in range(T)] for i in range(T)])


def expressions(count: int = 150) -> list[tuple[Visible, Tensor]]:
    """Random trees of leaves with what they show, told by truth tables."""
    chance = random.Random(0)

    def tree(depth: int) -> tuple[Visible, Tensor]:
        if depth == 0 or chance.random() < 0.2:
            name = chance.choice(list(LEAVES))
            return LEAVES[name][0], by_definition(name)
        a, shown = tree(depth - 1)
        kind = chance.choice("&&||~")
        if kind == "~":
            return ~a, ~shown
        b, other = tree(depth - 1)
        return (a & b, shown & other) if kind == "&" else (a | b, shown | other)

    return [(visible, by_definition(name)) for name, (visible, _) in LEAVES.items()] + [
        tree(chance.randint(1, 4)) for _ in range(count)
    ]


RANGES = [(first, last) for first, last in itertools.combinations_with_replacement(range(0, T, 3), 2)]
EXPRESSIONS = expressions()


def clipped(low: float, high: float) -> range:
    """The keys 0 … T − 1 of a range."""
    return range(int(max(low, 0)), int(min(high, T - 1)) + 1) if low <= high else range(0)


# What is seen


@pytest.mark.parametrize("name", LEAVES)
def test_a_leaf_shows_what_it_says(name: str):
    assert torch.equal(seen(LEAVES[name][0]), by_definition(name))


def test_and_or_and_not_combine_what_is_seen():
    for visible, shown in EXPRESSIONS:
        assert torch.equal(seen(visible), shown), visible


def test_a_window_holds_n_keys_its_own_included():
    assert seen(window(4)).sum(-1).tolist() == [min(i + 1, 4) for i in range(T)]
    assert seen(window(4, ahead=2))[10].nonzero().flatten().tolist() == [7, 8, 9, 10, 11, 12]


def test_a_window_on_both_sides_is_a_bound_on_the_distance():
    distance = (torch.arange(T)[:, None] - torch.arange(T)).abs()
    for w in (1, 2, 5):
        assert torch.equal(seen(window(w, ahead=w - 1)), distance < w)


def test_usual_masks():
    i, j = torch.arange(T)[:, None], torch.arange(T)
    assert torch.equal(seen(causal & (window(4) | sinks(2))), (j <= i) & ((i - j < 4) | (j < 2)))
    assert torch.equal(seen(causal & chunks(8)), (j <= i) & (i // 8 == j // 8))
    assert torch.equal(seen(~causal), j > i)


# What is answered for ranges


def test_within_leaves_out_no_key_that_is_seen():
    for visible, shown in EXPRESSIONS:
        for first, last in RANGES:
            possible = clipped(*visible.within(first, last))
            found = shown[first : last + 1].any(0).nonzero().flatten().tolist()
            assert set(found) <= set(possible), (visible, first, last)


def test_surely_holds_no_key_that_any_query_misses():
    for visible, shown in EXPRESSIONS:
        for first, last in RANGES:
            sure = list(clipped(*visible.surely(first, last)))
            assert bool(shown[first : last + 1][:, sure].all()), (visible, first, last)


@pytest.mark.parametrize("name", LEAVES)
def test_a_leaf_knows_its_ranges_exactly(name: str):
    visible, shown = LEAVES[name][0], by_definition(name)
    for first, last in RANGES:
        rows = shown[first : last + 1]
        assert list(clipped(*visible.within(first, last))) == rows.any(0).nonzero().flatten().tolist(), (first, last)
        assert list(clipped(*visible.surely(first, last))) == rows.all(0).nonzero().flatten().tolist(), (first, last)


def test_a_sliding_window_with_sinks_knows_its_ranges():
    visible = causal & (window(4) | sinks(2))
    assert clipped(*visible.within(12, 15)) == range(16)
    assert clipped(*(causal & window(4)).within(12, 15)) == range(9, 16)
    assert clipped(*(causal & window(4)).surely(12, 13)) == range(10, 13)
    assert clipped(*causal.surely(12, 15)) == range(13)
    # Of two ranges that cannot be one, the wider.
    assert clipped(*(window(4) | sinks(8)).surely(12, 13)) == range(8)
    assert clipped(*(sinks(2) | window(4)).surely(12, 13)) == range(10, 13)


def test_a_key_that_a_later_query_sees_is_kept():
    for visible, shown in EXPRESSIONS:
        for i in range(T):
            kept = visible.keeps(i, torch.arange(T))
            assert kept.dtype == torch.bool
            assert kept.shape == (T,)
            assert not bool((shown[i:].any(0) & ~kept).any()), (visible, i)


@pytest.mark.parametrize("name", ["window(1)", "window(4)", "window(3, ahead=2)", "sinks(2)", "chunks(5)"])
def test_a_leaf_keeps_nothing_for_nobody(name: str):
    visible = LEAVES[name][0]
    whole = seen(visible, 2 * T)
    for i in range(T):
        assert torch.equal(visible.keeps(i, torch.arange(T)), whole[i:, :T].any(0)), i


def test_a_sliding_window_with_sinks_forgets_what_lies_between():
    kept = (causal & (window(4) | sinks(2))).keeps(20, torch.arange(21))
    assert kept.nonzero().flatten().tolist() == [0, 1, 17, 18, 19, 20]


def test_behind_is_told_only_where_no_key_ahead_is_seen():
    ahead = torch.ones(T, T, dtype=torch.bool).triu(1)
    for visible, shown in EXPRESSIONS:
        assert not (visible.is_causal and bool((shown & ahead).any())), visible


def test_behind_is_told_where_it_matters():
    told = causal, window(4), causal & sinks(2), sinks(2) & window(4), causal | window(3), causal & ~chunks(4)
    for visible in told:
        assert visible.is_causal, visible
    for visible in (everything, sinks(2), chunks(4), ~causal, causal | sinks(2), window(4, ahead=1)):
        assert not visible.is_causal, visible


# How it is written


@pytest.mark.parametrize(
    ("visible", "told"),
    [
        (causal, "causal"),
        (everything, "everything"),
        (window(4096), "window(4096)"),
        (window(4, ahead=3), "window(4, ahead=3)"),
        (sinks(4), "sinks(4)"),
        (chunks(8192), "chunks(8192)"),
        (causal & (window(4096) | sinks(4)), "causal & (window(4096) | sinks(4))"),
        (causal & window(4) | sinks(4), "causal & window(4) | sinks(4)"),
        ((causal | window(4)) & (sinks(4) | chunks(2)), "(causal | window(4)) & (sinks(4) | chunks(2))"),
        (~causal, "~causal"),
        (~(causal & window(4)), "~(causal & window(4))"),
        (~(causal | window(4)), "~(causal | window(4))"),
        (~causal & ~window(4), "~causal & ~window(4)"),
        (~~causal, "~~causal"),
    ],
)
def test_an_expression_prints_as_it_is_written(visible: Visible, told: str):
    assert repr(visible) == told
    assert str(visible) == told


def test_what_is_printed_can_be_read_back():
    names = {"causal": causal, "everything": everything, "window": window, "sinks": sinks, "chunks": chunks}
    for visible, shown in EXPRESSIONS:
        assert torch.equal(seen(eval(repr(visible), names)), shown), visible


def test_expressions_built_alike_are_equal():
    assert causal & (window(4) | sinks(2)) == causal & (window(4) | sinks(2))
    assert len({causal & window(4), causal & window(4), causal & window(5), window(4) | causal}) == 3
    assert window(4) != window(4, ahead=1)
    assert causal & window(4) != causal | window(4)


def test_a_scheme_prints_what_is_visible():
    assert "see  causal & (window(4) | sinks(2))" in str(Scheme(causal & (window(4) | sinks(2))))
    assert repr(Scheme(Rope(8), ~causal)).endswith(", ~causal)")


# In attention


@pytest.mark.parametrize(
    "visible",
    [causal & (window(4) | sinks(2)), ~causal, chunks(4), causal & chunks(4), ~(window(3) | sinks(1)), ~everything],
    ids=str,
)
def test_attention_goes_to_what_is_seen_and_a_row_that_sees_nothing_gives_zeros(visible: Visible):
    q, k, v = inputs(dv=5)
    shown = seen(visible, 11)

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        return q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) if shown[i, j] else -math.inf

    assert_same(attend(q, k, v, Scheme(visible)), plain(q, k, v, score))


def test_several_visible_parts_are_met():
    q, k, v = inputs()
    assert_same(attend(q, k, v, Scheme(causal, window(4))), attend(q, k, v, Scheme(causal & window(4))))


def test_indices_are_read_and_positions_are_not():
    q, k, v = inputs(t=4)
    scheme = Scheme(causal & window(2))
    there = torch.tensor([50, 3, 17, 8])
    assert_same(attend(q, k, v, scheme, position=there, key_position=there), attend(q, k, v, scheme))
    moved = attend(q, k, v, scheme, index=there, key_index=there)
    shown = torch.tensor([[i - 2 < j <= i for j in there.tolist()] for i in there.tolist()])
    expected = plain(
        q, k, v, lambda b, h, i, j: q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) if shown[i, j] else -math.inf
    )
    assert_same(moved, expected)


def test_masking_a_window_equals_giving_each_token_its_own_last_keys():
    """For a relative encoding and one layer: the tokens may as well be numbered from 0 in each window."""
    q, k, v = inputs(t=14)
    masked = attend(q, k, v, Scheme(Rope(8), causal & window(5)))
    for i in range(14):
        last = slice(max(0, i - 4), i + 1)
        alone = attend(q[:, :, i : i + 1], k[:, :, last], v[:, :, last], Scheme(Rope(8), causal))
        assert_same(masked[:, :, i : i + 1], alone)


# Classes of a user's own


class EveryOther:
    """Every other key."""

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & ((i - j) % 2 == 0)


class Further(type(window(4))):
    """Five keys ahead, whatever the window."""

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i + 5) & (j >= i - 7)


class Even(EveryOther, type(causal)):
    """What it sees comes from one base, and what its kind answers for ranges from another."""


class Told(type(window(4))):
    """What it sees is said for ranges as well."""

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i + 1) & (j >= i - 1)

    @property
    def strip(self) -> Strip:
        return Strip(2, 1)


@pytest.mark.parametrize("backend", [None, "sdpa", "chunked", "diagonals"])
@pytest.mark.parametrize("part", [Even(), Further(4), Told(4), causal & Even(), ~Further(4) | window(2)], ids=repr)
def test_a_subclass_that_sees_anew_is_asked_for_it(part: Visible, backend: str | None):
    q, k, v = inputs(t=20)
    scheme = Scheme(part)
    with torch.no_grad():
        oracle = attend(q, k, v, scheme, backend="reference")
        assert_same(attend(q, k, v, scheme, backend=backend), oracle)
        assert_same(attend(q[:, :, -1:], k, v, scheme, backend=backend), oracle[:, :, -1:])


def test_a_subclass_that_sees_anew_answers_for_no_ranges():
    for part in (Even(), Further(4), Told(4)):
        assert not part.is_causal
    for part in (Even(), Further(4)):
        assert part.normal() is None
        assert part.strips() is None
        assert part.keeps(100, torch.arange(4)).all()
    assert Told(4).normal() == Band(2, 1, 0, None)
    assert causal.is_causal
    assert window(4).normal() == Band(4, 0, 0, None)


# What is refused


@pytest.mark.parametrize(("make", "called"), [(window, "window"), (sinks, "sinks"), (chunks, "chunks")])
def test_sizes_are_positive_integers(make: type, called: str):
    for wrong in (0, -4):
        with pytest.raises(ValueError, match=rf"{called}\(n={wrong}\): n must be at least 1"):
            make(wrong)
    with pytest.raises(TypeError, match=rf"{called}\(n=4.0\): n must be an integer, not float"):
        make(4.0)
    with pytest.raises(TypeError, match=rf"{called}\(n=True\): n must be an integer, not bool"):
        make(True)


def test_a_window_looks_no_negative_way_ahead():
    with pytest.raises(ValueError, match=r"window\(ahead=-1\): ahead must be at least 0"):
        window(4, ahead=-1)
    with pytest.raises(TypeError, match=r"window\(ahead=1.5\): ahead must be an integer"):
        window(4, ahead=1.5)


@pytest.mark.parametrize("other", [4, None, window, Stream(2, 4)], ids=["number", "nothing", "function", "method"])
def test_only_expressions_combine(other: object):
    """A method in an expression would lose its other verbs: `causal & Stream(2, 4)` would see but not place."""
    for combine in (operator.and_, operator.or_):
        with pytest.raises(TypeError):
            combine(causal, other)
