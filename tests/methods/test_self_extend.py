from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost import Fire, Rope, Scheme, SelfExtend, attend, causal
from tests.oracles import assert_same, inputs, plain, turned


def extended(i: int, j: int, group: int, neighbours: int) -> int:
    """D(i, j): the distance itself below the neighbours, from there on the distance in groups; mirrored ahead."""
    if j > i:
        return -extended(j, i, group, neighbours)
    if i - j < neighbours:
        return i - j
    return i // group - j // group + neighbours - neighbours // group


def placed(method: SelfExtend, t: int) -> Tensor:
    """The distance at which the method puts each of t × t pairs."""
    p, r = torch.arange(t)[:, None], torch.arange(t)
    found, claims = torch.zeros(t, t, dtype=torch.long), torch.zeros(t, t, dtype=torch.long)
    for regime in method.place():
        region = regime.holds(p, r)
        found, claims = torch.where(region, regime.query(p) - regime.key(r), found), claims + region
    assert bool((claims == 1).all())
    return found


SETTINGS = [(group, group * times) for group in (1, 2, 3, 4, 5) for times in (1, 2, 3)]


@pytest.mark.parametrize("sees_ahead", [False, True])
def test_far_keys_are_placed_by_group(sees_ahead: bool):
    q, k, v = inputs(t=14, dv=5)

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        if j > i and not sees_ahead:
            return -math.inf
        distance = torch.tensor(extended(i, j, 3, 6))
        pairs = turned(q[b, h, i], distance) * turned(k[b, h // 2, j], torch.tensor(0)).conj()
        return pairs.real.sum() / math.sqrt(8)

    scheme = Scheme(Rope(8), SelfExtend(3, 6)) if sees_ahead else Scheme(Rope(8), SelfExtend(3, 6), causal)
    assert_same(attend(q, k, v, scheme), plain(q, k, v, score))


def test_the_authors_two_rotations():
    """Neighbours at (i, j), groups at (⌊i/G⌋ + w − w/G, ⌊j/G⌋), chosen entry by entry."""
    group, w, t = 4, 8, 24
    q, k, v = inputs(t=t)
    keys, values, i = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), torch.arange(t)
    near = (turned(q, i) @ turned(keys, i).conj().mT).real / math.sqrt(8)
    far = (turned(q, i // group + w - w // group) @ turned(keys, i // group).conj().mT).real / math.sqrt(8)
    distance = i[:, None] - i
    scores = torch.where(distance < w, near, far).masked_fill(distance < 0, -math.inf)
    assert_same(attend(q, k, v, Scheme(Rope(8), SelfExtend(group, w), causal)), scores.softmax(-1) @ values)


@pytest.mark.parametrize(("group", "neighbours"), SETTINGS)
def test_every_pair_stands_where_the_paper_puts_it(group: int, neighbours: int):
    found = placed(SelfExtend(group, neighbours), 40)
    expected = [[extended(i, j, group, neighbours) for j in range(40)] for i in range(40)]
    assert found.tolist() == expected


@pytest.mark.parametrize(("group", "neighbours"), SETTINGS)
def test_the_first_far_key_is_as_far_as_it_was(group: int, neighbours: int):
    assert set(placed(SelfExtend(group, neighbours), 40).diagonal(-neighbours).tolist()) == {neighbours}


@pytest.mark.parametrize(("group", "neighbours"), SETTINGS)
@pytest.mark.parametrize("more", [1, 4])
def test_the_reach_is_the_group_times_what_the_neighbours_leave(group: int, neighbours: int, more: int):
    """Trained on L0 tokens, G · (L0 − w) + w of them show no distance above L0 − 1, and one token more does."""
    trained = neighbours + more
    longest = group * (trained - neighbours) + neighbours
    assert int(placed(SelfExtend(group, neighbours), longest).max()) == trained - 1
    assert int(placed(SelfExtend(group, neighbours), longest + 1).max()) == trained


@pytest.mark.parametrize("method", [SelfExtend(1, 3), SelfExtend(3, 12)], ids=str)
def test_groups_of_one_and_neighbours_all_along_are_rope(method: SelfExtend):
    q, k, v = inputs()
    assert_same(attend(q, k, v, Scheme(Rope(8), method)), attend(q, k, v, Scheme(Rope(8))))


def test_the_group_must_divide_the_neighbours():
    """Otherwise the two code paths of the authors differ: w/G is 2.5 in one and 2 in the other."""
    with pytest.raises(
        ValueError, match=r"SelfExtend\(group=4, neighbours=10\): group must divide neighbours; try neighbours=8"
    ):
        SelfExtend(4, 10)
    with pytest.raises(ValueError, match=r"SelfExtend\(group=8, neighbours=4\): .*; try neighbours=8"):
        SelfExtend(8, 4)


@pytest.mark.parametrize("name", ["group", "neighbours"])
def test_sizes_are_checked(name: str):
    sizes = {"group": 4, "neighbours": 8}
    for wrong in (0, -4):
        with pytest.raises(ValueError, match=rf"SelfExtend\({name}={wrong}\): {name} must be at least 1"):
            SelfExtend(**(sizes | {name: wrong}))
    for wrong in (4.0, True):
        with pytest.raises(TypeError, match=rf"SelfExtend\({name}={wrong}\): {name} must be an integer"):
            SelfExtend(**(sizes | {name: wrong}))


def test_a_part_that_reads_more_than_distances_cannot_stand_beside_it():
    with pytest.raises(ValueError, match=r"SelfExtend\(2, 4\) moves tokens so that only their distances mean anything"):
        Scheme(SelfExtend(2, 4), Fire(4), causal)
