"""`mp.scores`, `mp.weights`, `scheme.distances`, `scheme.curve`: what attention computes on its way to the values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal
from milepost.backends import reference
from milepost.call.call import span_of
from milepost.call.resolve import resolve
from tests.cases import CASES
from tests.layers import B, D, G, H, T, embedded, fresh, project, tokens
from tests.oracles import assert_same

KINDS: dict[str, dict[str, Any]] = {
    "whole": {},
    "documents": {"documents": torch.tensor([[0] * 5 + [1] * 6 + [-1] * 2, [0] * 13])},
    "positions": {"index": torch.arange(3, 3 + T), "key_index": torch.arange(3, 3 + T)},
}


def same(ours: Tensor, theirs: Tensor) -> None:
    """Hidden in the same places, and equal elsewhere."""
    hidden = theirs == -math.inf
    assert torch.equal(ours == -math.inf, hidden)
    assert_same(ours.masked_fill(hidden, 0.0), theirs.masked_fill(hidden, 0.0))


def made(scheme: mp.Scheme, t: int = T) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values of a text [b h t d], and the layer inputs."""
    x = embedded(scheme, tokens(t))
    return *project(x), x


def specified(scheme: mp.Scheme, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """The scores of the reference, which reads verbs and shares no code."""
    call = resolve(q, k, v, scheme, options)  # pyright: ignore[reportArgumentType]
    regimes = scheme.place()
    span = max(span_of(*call.places(regime)) for regime in regimes) * max(regime.growth for regime in regimes)
    scores = reference.whole_scores(call, regimes, scheme.relate(span) if scheme.answering("relate") else ())
    return (
        scores
        if call.key_order is None
        else scores.gather(3, call.key_order.argsort(-1)[:, None, None].expand_as(scores))
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_scores_are_those_of_the_reference(name: str, kind: str):
    scheme = fresh(CASES[name])
    q, k, v, x = made(scheme)
    inside = scheme.attention
    options = KINDS[kind] | ({"x": x} if "own" in name else {})
    expected = specified(inside, q, k, v, **options)
    same(mp.scores(q, k, inside, v=v, **options), expected)
    for rows in (4, [0, 1, 7, 5], range(1, 12, 5), slice(-3, None), torch.tensor([2, 3])):
        chosen = torch.arange(T)[rows].reshape(-1)
        same(mp.scores(q, k, inside, v=v, rows=rows, **options), expected[:, :, chosen])
    out = mp.weights(q, k, inside, v=v, **options) @ v.repeat_interleave(H // G, 1)
    if not (inside.answering("relate") or name in ("FloaterLayer", "FusedRope", "TwoPartRope")):
        assert_same(out, mp.attend(q, k, v, inside, **options))
    sums = mp.weights(q, k, inside, v=v, **options).sum(-1)
    alive = (expected > -torch.inf).any(-1)
    assert (sums[~alive] == 0).all()
    assert (sums[alive] < 1).all() if inside.answering("rest") else ((sums[alive] - 1).abs() < 1e-12).all()


@pytest.mark.parametrize("name", ["Cope", "Cope, gates on keys", "Pivot", "Rope", "Shaw"])
def test_keys_in_any_order_keep_their_columns(name: str):
    scheme = fresh(CASES[name])
    q, k, v, _ = made(scheme)
    order = torch.randperm(T, generator=torch.Generator().manual_seed(3))
    shuffled = mp.scores(q, k[:, :, order], scheme, v=v[:, :, order], index=torch.arange(T), key_index=order)
    same(shuffled, mp.scores(q, k, scheme, v=v)[..., order])


@pytest.mark.parametrize("name", ["Kerple", "Pivot", "Cope", "TransformerXL", "SinkLogit"])
def test_gradients_flow_to_queries_keys_and_what_is_learned(name: str):
    scheme = fresh(CASES[name])
    q, k, v, _ = (each.requires_grad_() for each in made(scheme))
    seen = torch.ones(T, T, dtype=torch.bool).tril()
    factor = torch.randn(B, H, T, T, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted = (q, k, *scheme.parameters())
    sums = [(each.where(seen, 0.0) * factor).sum() for each in (mp.scores(q, k, scheme), specified(scheme, q, k, v))]
    ours, theirs = (torch.autograd.grad(each, wanted, allow_unused=True) for each in sums)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert_same(one, other, within=1e-11)
    assert torch.autograd.grad((mp.weights(q, k, scheme) * factor).sum(), q)[0].isfinite().all()


def test_keys_of_a_cache_give_the_scores_of_one_pass():
    scheme = mp.Scheme(mp.Rope(D), mp.LogN(5), causal)
    q, k, v, _ = made(scheme)
    cache = mp.Cache(scheme)
    for one in range(T):
        cache.append(k[:, :, one : one + 1], v[:, :, one : one + 1])
    same(mp.scores(q[:, :, -1:], cache.keys, scheme), mp.scores(q, k, scheme, rows=-1))


def test_what_cannot_be_meant_is_refused():
    scheme = mp.Scheme(mp.Rope(D), causal)
    q, k, _, _ = made(scheme)
    for wrong, error, said in (
        ({"rows": [T]}, IndexError, "there are 13 queries"),
        ({"rows": [1.5]}, TypeError, "whole numbers"),
        ({"rows": torch.tensor([0.5])}, TypeError, "whole numbers"),
        ({"rows": torch.ones(T, dtype=torch.bool)}, TypeError, "whole numbers"),
        ({"dropout": 0.1}, ValueError, "before any is dropped"),
        ({"docs": 1}, TypeError, "no option is called 'docs'"),
    ):
        with pytest.raises(error, match=said):
            mp.scores(q, k, scheme, **wrong)  # pyright: ignore
    with pytest.raises(TypeError, match="third argument is a Scheme, given Tensor"):
        mp.weights(q, k, k)  # pyright: ignore
    with pytest.raises(ValueError, match="reads the values; give v="):
        mp.scores(q, k, mp.Scheme(mp.Cope(D, 6, gates="values"), causal).double())
    assert mp.scores(q, k, scheme, rows=[]).shape == (B, H, 0, T)
    assert mp.weights(q, k[:, :, :0], scheme, index=torch.arange(T), key_index=torch.arange(0)).shape == (B, H, T, 0)


# scheme.distances


def brute(part: Any, rule: Any, n: int = 40) -> None:
    """The distances of every pair behind a query are what a rule says, one pair at a time."""
    at = torch.arange(n)
    found = mp.Scheme(mp.Rope(D), part, causal).distances(at, at)
    assert found.shape == (1, n, n)
    assert found.dtype == torch.float64
    for i in range(n):
        for j in range(i + 1):
            assert found[0, i, j] == pytest.approx(rule(i, j)), (i, j)


def test_distances_are_where_each_method_moves_a_pair():
    w = 7
    brute(mp.Rerope(w), lambda i, j: min(i - j, w))
    brute(mp.LeakyRerope(w, 4.0), lambda i, j: i - j if i - j < w else w + (i - j - w) / 4)
    brute(mp.SelfExtend(4, 8), lambda i, j: i - j if i - j < 8 else i // 4 - j // 4 + 8 - 8 // 4)
    brute(mp.Pivot(mp.Rerope(w), trained=9), lambda i, j: min(i - j, w))
    brute(mp.Nope(), lambda i, j: i - j)


def test_a_rotation_sees_each_pair_at_its_distance():
    """Equal queries and equal keys: the score of a pair is that of plain RoPE at the distance that is shown."""
    n = 30
    q, k = torch.randn(1, H, 1, D, dtype=torch.float64), torch.randn(1, G, 1, D, dtype=torch.float64)
    for name in ("Rerope", "Rerope, far keys nearer", "LeakyRerope", "SelfExtend", "DualChunk", "Stream", "Rope"):
        scheme = fresh(CASES[name])
        found = mp.scores(q.expand(-1, -1, n, -1), k.expand(-1, -1, n, -1), scheme)
        distances = scheme.distances(torch.arange(n), torch.arange(n))[0]
        for i in range(n):
            for j in range(n):
                if found[0, 0, i, j] == -math.inf:
                    continue
                p = torch.tensor([float(distances[i, j])], dtype=torch.float64)
                turned = mp.Rope(D, theta=100.0).turn(q, p)
                expected = (turned @ k.repeat_interleave(H // G, 1).mT).flatten() / math.sqrt(D)
                assert_same(found[0, :, i, j], expected)


def test_distances_of_given_positions_and_of_rows():
    scheme = mp.Scheme(mp.Rope(D), mp.Rerope(4), causal)
    index = torch.arange(6)
    position = torch.tensor([[0.0, 1, 2, 3, 10, 11], [0.0, 0.5, 1, 1.5, 2, 2.5]])
    found = scheme.distances(index, index, position=position, key_position=position)
    assert found.shape == (2, 6, 6)
    assert found[0, 5].tolist() == [4, 4, 4, 4, 1, 0]
    assert found[1, 5].tolist() == [2.5, 2.0, 1.5, 1.0, 0.5, 0.0]
    with pytest.raises(TypeError, match="key_index must be"):
        scheme.distances(index, index.bool())


# scheme.curve


@pytest.mark.parametrize("name", CASES)
def test_a_curve_is_a_row_of_scores_of_equal_keys(name: str):
    scheme = fresh(CASES[name]).attention
    n = 24
    q = torch.randn(H, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    k = torch.randn(G, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    if scheme.needs_whole_rows is not None:
        with pytest.raises(ValueError, match="other keys of its row"):
            scheme.curve(q, k, torch.arange(n), n)
        return
    whole = mp.scores(q[None, :, None], k[None, :, None].expand(-1, -1, n, -1), scheme, index=range(n - 1, n))
    for distances in (torch.arange(n), torch.tensor([0, 17, 3, 3, 23])):
        same(scheme.curve(q, k, distances, n), whole[0, :, 0].flip(-1)[:, distances])


def test_keys_ahead_have_a_curve_where_they_are_seen():
    q, k = torch.randn(H, D), torch.randn(H, D)
    both = mp.Scheme(mp.T5Bias(H, bidirectional=True))
    distances = torch.tensor([-3, 0, 6])
    found = both.curve(q, k, distances, 10)
    assert found.dtype == torch.float32
    whole = mp.scores(q[None, :, None], k[None, :, None].expand(-1, -1, 10, -1), both, index=range(6, 7))
    assert_same(found, whole[0, :, 0][:, 6 - distances], 1e-6)
    with pytest.raises(ValueError, match="3 ahead needs 11 tokens"):
        both.curve(q, k, torch.tensor([-3, 7]), 10)
    assert (mp.Scheme(mp.Alibi(H), causal).curve(q, k, torch.tensor([-1]), 10) == -math.inf).all()


def test_a_curve_reaches_far():
    distances = torch.tensor([0, 5, 131_071])
    q, k = torch.randn(H, D, dtype=torch.float64), torch.randn(H, D, dtype=torch.float64)
    scheme = mp.Scheme(mp.TransformerXL(10, H, D), causal).double()
    found = scheme.curve(q, k, distances, 131_072)
    part: Any = scheme.parts[0]
    wave = torch.arange(5, dtype=torch.float64)
    for n, c in enumerate(distances.tolist()):
        angle = c * 10000 ** (-wave / 5)
        rows = part.project(torch.cat((angle.sin(), angle.cos()))).view(H, D)
        assert_same(found[:, n], (((q + part.u) * k).sum(-1) + ((q + part.v) * rows).sum(-1)) / math.sqrt(D))
    xpos = mp.Scheme(mp.Xpos(64), causal)
    q, k = torch.randn(1, 64).float(), torch.randn(1, 64).float()
    assert xpos.curve(q, k, distances, 131_072).isfinite().all()


def test_a_curve_refuses_what_has_no_place_in_the_text():
    scheme = mp.Scheme(mp.Rope(D), causal)
    q = torch.randn(H, D)
    for wrong, said in (
        ((q, q, torch.tensor([10]), 10), "needs 11 tokens; given length=10"),
        ((q[None], q, torch.tensor([1]), 10), r"q is \[h d\]"),
        ((q, q, torch.tensor([[1]]), 10), r"distances is \[n\]"),
    ):
        with pytest.raises(ValueError, match=said):
            scheme.curve(*wrong)
    with pytest.raises(TypeError, match="distances must be integers"):
        scheme.curve(q, q, torch.tensor([0.5]), 10)


def test_a_query_that_is_no_number_shows_itself():
    q, k, v = torch.randn(3, 1, 1, 5, D, dtype=torch.float64)
    q[:, :, 3] = math.nan
    scheme = mp.Scheme(mp.Rope(D), mp.Rerope(2), causal)
    assert mp.weights(q, k, scheme)[0, 0].isnan().any(-1).tolist() == [False, False, False, True, False]
    out, lse = mp.attend(q, k, v, scheme, return_lse=True, backend="chunked")
    assert out[0, 0].isnan().all(-1).tolist() == lse[0, 0].isnan().tolist() == [False, False, False, True, False]
    assert mp.merge(out, lse, torch.zeros_like(out), torch.full_like(lse, -math.inf))[0][0, 0, 3].isnan().all()


def test_a_curve_of_no_distance_is_empty():
    scheme = mp.Scheme(mp.TransformerXL(10, H, D), mp.Stream(1, 3))
    q = torch.randn(H, D)
    assert scheme.curve(q, q, torch.arange(0), 9).shape == (H, 0)
    assert (scheme.curve(q, q, torch.tensor([5, 6]), 9) == -math.inf).all()
