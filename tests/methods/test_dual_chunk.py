from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost import DualChunk, Rope, Scheme, attend, causal, sinks, window
from tests.oracles import assert_same, inputs, plain, turned

SETTINGS = [(chunk, local) for chunk in range(2, 22) for local in range(chunk)]


def formula(i: int, j: int, chunk: int, local: int) -> int:
    """Query position less key position, for a key behind the query."""
    size = chunk - local
    between = i // size - j // size
    query = [i % size, min(i % size + size, chunk), min(2 * size - 1, chunk)][min(between, 2)]
    return query - j % size


def placed(method: DualChunk, t: int) -> Tensor:
    """The distance at which the method puts each pair of t tokens; −1 for keys ahead."""
    p, r = torch.arange(t)[:, None], torch.arange(t)
    found, claims = torch.zeros(t, t, dtype=torch.long), torch.zeros(t, t, dtype=torch.long)
    for regime in method.place():
        region = regime.holds(p, r)
        found, claims = torch.where(region, regime.query(p) - regime.key(r), found), claims + region
    behind = p >= r
    assert bool((claims[behind] == 1).all())
    return found.masked_fill(~behind, -1)


@pytest.mark.parametrize(("chunk", "local"), [(6, 2), (5, 0), (6, 4), (3, 2)])
def test_positions_start_over_in_every_chunk(chunk: int, local: int):
    q, k, v = inputs(t=14, dv=5)

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        if j > i:
            return -math.inf
        distance = torch.tensor(formula(i, j, chunk, local))
        pairs = turned(q[b, h, i], distance) * turned(k[b, h // 2, j], torch.tensor(0)).conj()
        return pairs.real.sum() / math.sqrt(8)

    assert_same(attend(q, k, v, Scheme(Rope(8), DualChunk(chunk, local), causal)), plain(q, k, v, score))


@pytest.mark.parametrize(("chunk", "local"), [(7, 2), (7, 5)])
def test_the_authors_three_attentions_merged_by_their_sums(chunk: int, local: int):
    """Chunk by chunk: its own keys, those of the chunk before, and all older ones, each with a softmax of its own."""
    t, size = 23, chunk - local
    q, k, v = inputs(t=t)
    values = v.repeat_interleave(2, 1)
    own_place = torch.arange(size)
    next_place = (torch.arange(size) + size).clamp(max=chunk)
    keys = turned(k.repeat_interleave(2, 1), torch.arange(t) % size)

    def attention(queries: Tensor, first: int, last: int, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        scores = (queries @ keys[:, :, first:last].conj().mT).real / math.sqrt(8)
        if hidden is not None:
            scores = scores.masked_fill(hidden, -math.inf)
        return scores.softmax(-1) @ values[:, :, first:last], scores.logsumexp(-1, keepdim=True)

    rows: list[Tensor] = []
    for first in range(0, t, size):
        last = min(first + size, t)
        held, x = last - first, q[:, :, first:last]
        ahead = torch.ones(held, held, dtype=torch.bool).triu(1)
        parts = [attention(turned(x, own_place[:held]), first, last, ahead)]
        if first >= size:
            parts.append(attention(turned(x, next_place[:held]), first - size, first))
        if first >= 2 * size:
            parts.append(attention(turned(x, next_place[-1].expand(held)), 0, first - size))
        shares = torch.stack([total for _, total in parts]).softmax(0)
        rows.append(sum(share * out for share, (out, _) in zip(shares, parts, strict=True)))

    ours = attend(q, k, v, Scheme(Rope(8), DualChunk(chunk, local), causal))
    assert_same(ours, torch.cat(rows, 2))


@pytest.mark.parametrize(("chunk", "local"), SETTINGS)
def test_the_facts_of_dual_chunk(chunk: int, local: int):
    size = chunk - local
    t = 4 * size + 3
    found = placed(DualChunk(chunk, local), t)
    i, j = torch.arange(t)[:, None], torch.arange(t)
    true, behind, between = i - j, i >= j, i // size - j // size

    # Distances are exact up to min(local + 1, ℓ), and the first that is not is one more.
    altered = true[behind & (found != true)]
    assert int(altered.min()) == min(local + 2, size + 1)

    # None is negative or above min(chunk, 2ℓ − 1), and that one occurs.
    assert int(found[behind].min()) == 0
    assert int(found.max()) == min(chunk, 2 * size - 1)

    # Older chunks repeat every ℓ keys, at local + 1 … chunk where the clip acts.
    older = found[3 * size :, : 2 * size]
    assert torch.equal(older[:, :size], older[:, size:])
    constant = min(chunk, 2 * size - 1)
    assert older[0, :size].tolist() == list(range(constant, constant - size, -1))
    if chunk <= 2 * size - 1:
        assert int(found[between >= 2].min()) == local + 1
        assert int(found[between >= 2].max()) == chunk
    if local > size - 1:
        assert constant == 2 * size - 1
        assert torch.equal(found[between == 1], true[between == 1])

    assert found.tolist() == [[formula(a, b, chunk, local) if b <= a else -1 for b in range(t)] for a in range(t)]


def test_chunkllama_for_a_trained_length_of_4096():
    trained = 4096
    chunk, local = 3 * trained // 4, trained // 8
    assert (chunk, local, chunk - local) == (3072, 512, 2560)
    keys = torch.arange(0, 12000, 7)
    regimes = DualChunk(chunk, local).place()
    queries = torch.tensor([2559, 2560, 3071, 3072, 5119, 5120, 11999])[:, None]
    found = torch.zeros(len(queries), len(keys), dtype=torch.long)
    for regime in regimes:
        distance = (regime.query(queries) - regime.key(keys)) * (keys <= queries)
        found = torch.where(regime.holds(queries, keys), distance, found)
    assert int(found.max()) == 3072


def test_the_clip_is_that_of_the_code_and_not_of_the_figure():
    """Chunks of 6 in a window of 10: the paper's figure shows no distance above 9, the code reaches 10."""
    assert int(placed(DualChunk(10, 4), 40).max()) == 10


def test_a_text_of_one_chunk_is_rope_and_a_longer_one_is_not():
    chunked, rope = Scheme(Rope(8), DualChunk(8, 2), causal), Scheme(Rope(8), causal)
    q, k, v = inputs(t=6)
    assert_same(attend(q, k, v, chunked), attend(q, k, v, rope))
    q, k, v = inputs(t=10)
    assert float((attend(q, k, v, chunked) - attend(q, k, v, rope)).abs().max()) > 1e-4


def test_a_scheme_that_only_looks_back_is_needed():
    for visible in ((), (sinks(2),), (window(4, ahead=2),)):
        with pytest.raises(ValueError, match=r"DualChunk\(6, 2\) is defined for keys behind the query only; .*causal"):
            Scheme(Rope(8), DualChunk(6, 2), *visible)
    Scheme(Rope(8), DualChunk(6, 2), window(4))


def test_sizes_are_checked():
    for wrong in (1, 0, -6):
        with pytest.raises(ValueError, match=rf"DualChunk\(chunk={wrong}\): chunk must be at least 2"):
            DualChunk(wrong, 0)
    with pytest.raises(ValueError, match=r"DualChunk\(local=-1\): local must be at least 0"):
        DualChunk(6, -1)
    for wrong in (6, 7):
        with pytest.raises(ValueError, match=rf"DualChunk\(chunk=6, local={wrong}\): local must be smaller than chunk"):
            DualChunk(6, wrong)
    with pytest.raises(TypeError, match=r"DualChunk\(chunk=6.0\): chunk must be an integer, not float"):
        DualChunk(6.0, 2)
    with pytest.raises(TypeError, match=r"DualChunk\(local=True\): local must be an integer, not bool"):
        DualChunk(6, True)
