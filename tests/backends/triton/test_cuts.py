"""Regimes that cut a text into rectangles: every pair that is seen is in one of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import milepost as mp

pytest.importorskip("triton")

from milepost.backends.triton.dual_chunk import cuts
from milepost.backends.triton.dual_chunk.cuts import Rectangle, cut
from milepost.memory.table import MEMORY


@pytest.fixture(autouse=True)
def any_number(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However many rectangles there are."""
    monkeypatch.setattr(cuts, "EACH", 1)
    MEMORY.forget()
    yield
    MEMORY.forget()


@pytest.mark.parametrize(("chunk", "local"), [(9, 3), (12, 4), (5, 0), (6, 5), (2, 1), (2, 0), (20, 2)])
@pytest.mark.parametrize("where", [(0, 50, 0, 50), (0, 3, 0, 3), (17, 33, 0, 50), (7, 20, 0, 50), (12, 30, 5, 37)])
@pytest.mark.parametrize(("heads", "alone"), [(1, True), (2, False), (9999, True)])
def test_every_pair_that_is_seen_is_in_one_rectangle_seen_from_where_its_regime_says(
    chunk: int, local: int, where: tuple[int, int, int, int], heads: int, alone: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cuts, "A_FEW", 10**6)
    method, (first, t, key_first, s) = mp.DualChunk(chunk, local), where
    i, j = torch.arange(first, first + t)[:, None], torch.arange(key_first, key_first + s)[None]
    wanted, found = torch.full((t, s), -1), torch.full((t, s), -1)
    for regime in method.place():
        region = regime.holds(i, j)
        assert region is not None
        wanted = torch.where(region & (j <= i), regime.query(i), wanted)
    made = cut(method, (0, 1, 2), *where, heads, alone)
    assert made is not None
    for each in made:
        for n in range(each.times):
            rows, keys = (slice(at + n * each.step, at + n * each.step + many) for at, many in (each[1:3], each[3:5]))
            inside = torch.zeros(t, s, dtype=torch.bool)
            inside[rows, keys] = True
            inside &= (j <= i) | (not each.slanted)
            assert (found[inside] == -1).all()
            found = torch.where(inside, method.place()[each.turn].query(i), found)
    assert torch.equal(found, wanted)


def test_what_is_alike_is_done_at_once_and_steps_of_few_blocks_two_by_two():
    method = mp.DualChunk(3072, 512)
    at_once = (
        Rectangle(0, 0, 2560, 0, 2560, True, 6, 2560),
        Rectangle(1, 2560, 512, 0, 2560, False, 6, 2560),
        Rectangle(2, 3072, 5120, 0, 2560),
        Rectangle(2, 5632, 2560, 2560, 2560, False, 2, 5120),
        Rectangle(2, 8192, 5120, 0, 7680),
        Rectangle(2, 13312, 3072, 0, 12800),
        Rectangle(0, 15360, 1024, 15360, 1024, True),
        Rectangle(2, 15872, 512, 12800, 2560),
    )
    assert cut(method, (0, 1, 2), 0, 16384, 0, 16384, 16, True) == at_once
    assert cut(method, (0, 1, 2), 0, 4096, 0, 4096, 64, False) == (
        Rectangle(0, 0, 2560, 0, 2560, True),
        Rectangle(1, 2560, 1536, 0, 2560),
        Rectangle(0, 2560, 1536, 2560, 1536, True),
    )


def test_what_is_no_rectangle_or_too_many_is_not_cut(monkeypatch: pytest.MonkeyPatch):
    assert cut(mp.Rerope(7), (0, 1), 0, 40, 0, 40, 1, True) is None
    # Keys stand otherwise in the second regime.
    assert cut(mp.SelfExtend(3, 9), (0, 1), 0, 40, 0, 40, 1, True) is None
    # The first queries see nothing.
    assert cut(mp.DualChunk(12, 4), (0, 1, 2), 0, 40, 5, 35, 1, True) is None
    assert cut(mp.DualChunk(12, 4), (0, 1, 2), 0, 400, 0, 400, 2, False) is not None
    monkeypatch.setattr(cuts, "EACH", 512)
    MEMORY.forget()
    assert cut(mp.DualChunk(12, 4), (0, 1, 2), 0, 400, 0, 400, 2, False) is None
