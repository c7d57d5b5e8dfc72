"""Which tokens a rank has: torch's own load balancers where lengths are equal, every token once where they are not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor.experimental._context_parallel import _load_balancer as torchs

import milepost as mp
from milepost import causal, sinks, window
from milepost.parallel import Layout, pairs

DOCUMENTS = [16, 48, 8, 56]


def indices(layout: Layout) -> Tensor:
    """The tokens of each rank, as torch has them: [ranks t]."""
    return torch.stack([torch.cat([torch.arange(*span) for span in spans]) for spans in layout.spans])


def by_rank(balancer: torchs._LoadBalancer, ranks: int) -> Tensor:
    found = balancer._generate_indices()
    assert found is not None
    return found[0].view(ranks, -1).long()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_head_and_tail_are_torchs(ranks: int):
    assert torch.equal(
        indices(Layout.head_tail(64, ranks)), by_rank(torchs._HeadTailLoadBalancer(64, ranks, "cpu"), ranks)
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_heads_and_tails_of_documents_are_torchs_document_by_document(ranks: int):
    ours = indices(Layout.of_documents(DOCUMENTS, ranks))
    # torch lists the ranks of a document before the next document; a rank has its part of each.
    theirs = torchs._PerDocumentHeadTailLoadBalancer([DOCUMENTS], ranks, "cpu")._generate_indices()[0]
    apart = torch.cat([each.view(ranks, -1) for each in theirs.split(DOCUMENTS)], 1)
    assert torch.equal(ours, apart.sort(1).values)


@pytest.mark.parametrize("ranks", [2, 4])
def test_blocks_are_dealt_as_torch_deals_them(ranks: int):
    work = torch.tensor([9.0, 14, 2, 20, 10, 15, 8, 14, 16, 19, 15, 3, 12, 1, 12, 10])
    theirs = torchs._PTRRLoadBalancer.ptrr_scheduling(work, ranks)
    assert torch.equal(indices(Layout.by_work(work, ranks, block=1)), theirs)


@pytest.mark.parametrize(
    "make",
    [Layout.contiguous, Layout.head_tail, lambda t, n: Layout.of_documents([1] * (t % 7) + [t - t % 7], n),
     lambda t, n: Layout.by_work(torch.arange(t), n, block=3)],
)  # fmt: skip
def test_every_token_is_somewhere_once_and_shares_are_even(make: Callable[[int, int], Layout]):
    for ranks in (1, 2, 3, 4, 7):
        for length in (7, 14, 25, 64, 101):
            layout = make(length, ranks)
            assert sorted(i for spans in layout.spans for span in spans for i in range(*span)) == [*range(length)]
            counts = [layout.tokens(rank) for rank in range(ranks)]
            assert max(counts) - min(counts) <= 7
            assert layout.most == max(counts)
    assert [Layout.contiguous(10, 4).tokens(rank) for rank in range(4)] == [2, 3, 2, 3]
    assert [Layout.head_tail(3, 2).tokens(rank) for rank in range(2)] == [1, 2]


def test_short_documents_do_not_all_go_to_one_rank():
    layout = Layout.of_documents([1] * 40, 4)
    assert [layout.tokens(rank) for rank in range(4)] == [10] * 4


@pytest.mark.parametrize(
    "spans", [(((0, 4),), ((5, 8),)), (((0, 4),), ((3, 8),)), (((4, 8), (0, 4)),), (((0, 4),), ((4, 7),))]
)
def test_spans_that_are_no_layout_are_refused(spans: tuple[tuple[tuple[int, int], ...], ...]):
    with pytest.raises(ValueError, match=r"Layout\(length=8\): the spans"):
        Layout(8, spans)


SEEN = {
    "causal": causal, "everything": mp.everything, "window": window(5), "window ahead": window(5, ahead=2),
    "sinks": causal & (window(4) | sinks(3)), "chunks": causal & mp.chunks(4), "chunks both ways": mp.chunks(5),
    "sinks alone": causal & sinks(3), "no band": causal & ~(mp.chunks(3) & window(4)),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_pairs_are_those_that_are_seen(name: str):
    scheme = mp.Scheme(SEEN[name])
    for documents in (None, torch.tensor([0] * 7 + [-1] * 2 + [1] * 9 + [2])):
        own = torch.zeros(19, dtype=torch.int64) if documents is None else documents
        index = torch.cat([torch.arange(int(n)) for n in torch.unique_consecutive(own, return_counts=True)[1]])
        zero = torch.zeros(1, 1, dtype=torch.int64)
        seen = scheme.see(zero, zero, index[:, None], index[None])
        assert seen is not None
        if scheme.band() is None:
            seen = torch.ones_like(seen)
        together = (own[:, None] == own[None]) & (own >= 0)[:, None]
        assert pairs(scheme, 19, documents).tolist() == (seen & together).sum(1).tolist()


def busiest(layout: Layout, work: Tensor) -> float:
    """The pairs of the busiest rank over the mean."""
    sums = [float(sum(work[slice(*span)].sum() for span in spans)) for spans in layout.spans]
    return max(sums) * layout.ranks / sum(sums)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_no_rank_has_much_more_to_do_than_another(ranks: int):
    """At most 1.05 times the mean; a causal text cut into one span a rank goes towards 2."""
    for length in (4096, 4099):
        work = pairs(mp.Scheme(causal), length)
        assert busiest(Layout.head_tail(length, ranks), work) <= 1.05
        assert busiest(Layout.by_work(work, ranks, block=64), work) <= 1.05
        assert 1.4 < busiest(Layout.contiguous(length, ranks), work) <= 2.0
        windowed = pairs(mp.Scheme(window(64)), length)
        assert busiest(Layout.contiguous(length, ranks), windowed) <= 1.05
    drawn = random.Random(0)
    lengths = [drawn.choice((31, 130, 517, 1025, 2050)) for _ in range(24)]
    documents = torch.repeat_interleave(torch.arange(24), torch.tensor(lengths))
    work = pairs(mp.Scheme(causal), len(documents), documents)
    assert busiest(Layout.by_work(work, ranks, block=64), work) <= 1.05
    assert busiest(Layout.of_documents(lengths, ranks), work) <= 1.05
