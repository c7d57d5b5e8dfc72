"""Which tokens of a text each rank has: a few ranges, and how even the work is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.scheme import Scheme
from milepost.seams import demand
from milepost.seams.band import Band

Span = tuple[int, int]
"""Tokens start … stop − 1 of a text."""


@dataclass(frozen=True)
class Layout:
    """Which tokens of a text of `length` tokens each rank has: spans (start, stop), in the order of the text.

        Layout.head_tail(131_072, ranks=8)

    contiguous      one span a rank; even where every query sees as many keys: windows, encoders
    head_tail       the r-th of 2n spans and the r-th from the end; even under a causal mask
    of_documents    head_tail within every document of a packed text
    by_work         blocks dealt by what each costs, measured or counted by `pairs`

    The ranks' shares differ by at most a few tokens where the length is no multiple of their number, and no token is
    added to make them equal.
    """

    length: int
    spans: tuple[tuple[Span, ...], ...]

    def __post_init__(self) -> None:
        end = 0
        for start, stop in sorted(span for rank in self.spans for span in rank):
            if start != end or stop <= start:
                raise ValueError(
                    f"Layout(length={self.length}): the spans of all ranks must cover every token once; a span "
                    f"{start} … {stop} follows the token {end}"
                )
            end = stop
        if end != self.length or any(list(rank) != sorted(rank) for rank in self.spans):
            raise ValueError(
                f"Layout(length={self.length}): the spans end at {end}; give those of all tokens, in the order of the "
                f"text within each rank"
            )

    @staticmethod
    def contiguous(length: int, ranks: int) -> Layout:
        """Give each rank one span."""
        return _laid(length, [[span] for span in _cut(length, ranks)])

    @staticmethod
    def head_tail(length: int, ranks: int) -> Layout:
        """Give each rank a span from the head of the text and one from its tail, which cost the same together."""
        demand.whole(Layout.head_tail, "ranks", ranks)
        spans = _cut(length, 2 * ranks)
        return _laid(length, [[spans[rank], spans[-1 - rank]] for rank in range(ranks)])

    @staticmethod
    def of_documents(lengths: Iterable[int], ranks: int) -> Layout:
        """Give each rank a head and a tail of every document; lengths are those of the documents, in order."""
        demand.whole(Layout.of_documents, "ranks", ranks)
        found: list[list[Span]] = [[] for _ in range(ranks)]
        first = uneven = 0
        for length in lengths:
            # Where a document leaves a remainder, another rank gets it each time.
            uneven += length % (2 * ranks) != 0
            for rank, spans in enumerate(Layout.head_tail(length, ranks).spans):
                found[(rank + uneven) % ranks] += [(first + start, first + stop) for start, stop in spans]
            first += length
        return _laid(first, found)

    @staticmethod
    def by_work(work: Tensor | Sequence[float], ranks: int, *, block: int = 128) -> Layout:
        """Deal blocks of tokens by what they cost, the dearest first, there and back over the ranks.

        work: what each token costs, [t]: `pairs(scheme, length, documents)`, or what was measured.
        """
        demand.whole(Layout.by_work, "ranks", ranks)
        demand.whole(Layout.by_work, "block", block)
        costs = torch.as_tensor(work, dtype=torch.float64).cpu()
        if costs.dim() != 1:
            raise ValueError(f"Layout.by_work: work is the cost of each token, [t]; given {list(costs.shape)}")
        spans = [(start, min(start + block, len(costs))) for start in range(0, len(costs), block)]
        totals = torch.stack([costs[start:stop].sum() for start, stop in spans]) if spans else costs
        dealt: list[list[Span]] = [[] for _ in range(ranks)]
        dearest: list[int] = totals.sort(descending=True, stable=True).indices.tolist()  # pyright: ignore
        for turn, number in enumerate(dearest):
            there, place = divmod(turn, ranks)
            dealt[ranks - 1 - place if there % 2 else place].append(spans[number])
        return _laid(len(costs), dealt)

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.spans)

    def tokens(self, rank: int) -> int:
        """Return how many tokens a rank has."""
        return sum(stop - start for start, stop in self.spans[rank])

    @property
    def most(self) -> int:
        """The tokens of the rank that has most."""
        return max(map(self.tokens, range(self.ranks)))

    def local(self, rank: int) -> Iterator[tuple[Span, slice]]:
        """Return each span of a rank, and where its tokens lie among the rank's own."""
        first = 0
        for start, stop in self.spans[rank]:
            yield (start, stop), slice(first, first + stop - start)
            first += stop - start

    def within(self, rank: int, span: Span) -> list[tuple[Span, slice]]:
        """Return what a rank has of a span of the text: which tokens, and where they lie among the rank's own."""
        found: list[tuple[Span, slice]] = []
        for (start, stop), place in self.local(rank):
            low, high = max(start, span[0]), min(stop, span[1])
            if low < high:
                found.append(((low, high), slice(place.start + low - start, place.start + high - start)))
        return found


def _laid(length: int, spans: Iterable[Iterable[Span]]) -> Layout:
    """Return the layout of these spans, without empty ones, and with those that meet joined."""
    return Layout(length, tuple(tuple(joined(rank)) for rank in spans))


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the same tokens in the fewest spans, in order."""
    found: list[Span] = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


def _cut(length: int, parts: int) -> list[Span]:
    """Cut a text into parts that differ by at most one token."""
    demand.whole(Layout.contiguous, "length", length)
    demand.whole(Layout.contiguous, "ranks", parts)
    return [(length * n // parts, length * (n + 1) // parts) for n in range(parts)]


def pairs(scheme: Scheme, length: int, documents: Tensor | None = None) -> Tensor:
    """Return how many keys each query of a text sees, [t] int64: what attention costs it.

    documents: [t], or [b t] for a batch whose rows are added; each lies together. An expression that is no band of keys
    (see `scheme.band`) counts all keys of the document.
    """
    band = scheme.band() or Band(math.inf, math.inf, 0, None)
    i = torch.arange(length)
    rows = (
        torch.zeros(1, length, dtype=torch.int64)
        if documents is None
        else documents.view(-1, documents.shape[-1]).cpu()
    )
    if rows.shape[1] != length:
        raise ValueError(f"pairs(length={length}): documents has {rows.shape[1]} entries; give one for each token")
    return torch.stack([_seen(band, i, row) for row in rows]).sum(0)


def _seen(band: Band, i: Tensor, documents: Tensor) -> Tensor:
    """Return how many keys each query of one row sees."""
    lengths = documents.unique_consecutive(return_counts=True)[1]  # pyright: ignore[reportUnknownVariableType]
    counts = torch.as_tensor(lengths)
    run = torch.repeat_interleave(torch.arange(len(counts)), counts)
    end = counts.cumsum(0)[run]
    first = end - counts[run]
    size = len(i) + 1
    start = first if band.chunk is None else first + (i - first) // band.chunk * band.chunk
    stop = end if band.chunk is None else torch.minimum(end, start + band.chunk)
    high = torch.minimum(stop, i + int(min(max(band.ahead, -size), size)) + 1)
    low = torch.maximum(start, i - int(min(max(band.behind, -size), size)) + 1)
    near = (high - low).clamp(min=0)
    sinks = (torch.minimum(first + band.sinks, torch.minimum(low, high)) - start).clamp(min=0)
    return torch.where(documents >= 0, near + sinks, 0)
