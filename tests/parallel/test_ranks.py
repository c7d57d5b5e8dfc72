"""Attention over the tokens of several processes equals that of one, gradients included, or is refused by name."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
import torch

from milepost import causal, sinks, window
from tests.cases import CASES
from tests.layers import DV, D, H
from tests.parallel import jobs
from tests.parallel.world import PATIENCE, World

WAYS = ("gather", "ring", "heads")
REFUSED = {
    "ring": "Cope|goes by the length of each document|sets far scores off against near ones, after",
    "heads": r"FloaterLayer|gates='own'",
}
"""What only gather can do; every refusal names it."""
Worlds = Callable[[int], World]


def check(outcomes: list[jobs.Outcome], how: str) -> str:
    """Every rank agrees with one process, or refuses for one of the reasons above, which is returned."""
    refusals = [each.refusal for each in outcomes]
    assert len(set(refusals)) == 1, refusals
    if refusals[0]:
        assert re.search(REFUSED[how], refusals[0]), refusals[0]
        assert 'use how="gather"' in refusals[0]
    return refusals[0]


@pytest.mark.sample(45)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("layout", jobs.LAYOUTS)
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_every_method_is_as_in_one_process(world: Worlds, name: str, how: str, layout: str, ranks: int):
    refusal = check(world(ranks).run(jobs.method, name=name, how=how, layout=layout), how)
    refused = (how == "ring" and name.startswith("Cope")) or (how == "heads" and name == "FloaterLayer")
    assert bool(refusal) == refused


@pytest.mark.sample(25)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("how", "shape"),
    [(how, shape) for how in WAYS for shape in jobs.SHAPES if how == "gather" or shape not in jobs.GATHERED],
)
@pytest.mark.parametrize("name", jobs.SHAPED)
def test_texts_of_every_shape(world: Worlds, name: str, how: str, shape: str, ranks: int):
    check(world(ranks).run(jobs.shaped, name=name, how=how, shape=shape), how)


@pytest.mark.sample(15)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("number", range(30))
def test_compositions(world: Worlds, number: int, how: str, ranks: int):
    check(world(ranks).run(jobs.composed, number=number, how=how, layout="head-tail"), how)


@pytest.mark.sample(15)
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", jobs.MORE)
def test_corners_of_each_way(world: Worlds, name: str, how: str):
    refusal = check(world(4).run(jobs.more, name=name, how=how), how)
    assert bool(refusal) == (how == "ring" and name == "Pivot, Alibi")


@pytest.mark.parametrize("how", WAYS)
def test_layer_inputs_are_fetched_with_the_keys(world: Worlds, how: str):
    assert bool(check(world(2).run(jobs.gated, how=how), how)) == (how != "gather")


def test_what_is_cut_is_put_together_again(world: Worlds):
    world(2).run(jobs.unsharded)
    world(4).run(jobs.unsharded)


# Refusals


@pytest.mark.parametrize("name", jobs.UNEQUAL)
def test_ranks_that_ask_different_things_are_all_refused_at_once(world: Worlds, name: str):
    two = world(2)
    two.run(jobs.nonsense)
    began = time.monotonic()
    for rank, message in enumerate(two.run(jobs.unequal, name=name)):
        assert message.startswith(
            f"parallel.attend: {name} differs between the ranks 0 and 1 of the mesh; here, on rank {rank}"
        )
    assert time.monotonic() - began < PATIENCE / 2


def test_a_rank_with_other_tokens_than_its_own_is_refused_and_the_others_are_told(world: Worlds):
    own, other = world(2).run(jobs.unequal_tokens)
    assert own == "parallel.attend: rank 1 of the mesh refused its call; its error says why"
    assert other.startswith(
        "parallel.attend: a tensor [2, 4, 15, 8] has 15 tokens along dim 2, and the layout gives rank 1 16 of 32"
    )


def test_heads_that_cannot_be_shared_name_what_can(world: Worlds):
    message = world(2).run(jobs.heads_apart)[0]
    assert '3 query heads and 3 key heads cannot be shared evenly by 2 ranks; use how="gather"' in message


def test_options_that_make_no_sense(world: Worlds):
    for message, wanted in zip(world(2).run(jobs.nonsense)[0], jobs.NONSENSE, strict=True):
        assert wanted in message


def test_a_killed_rank_ends_all_others_with_an_error():
    lost = World(3)
    try:
        lost.run(jobs.method, name="Rope", how="gather", layout="contiguous")
        began = time.monotonic()
        for rank, pipe in enumerate(lost.pipes):
            job = (
                (jobs.sleep, {})
                if rank == 2
                else (jobs.method, {"name": "Rope", "how": "gather", "layout": "contiguous"})
            )
            pipe.send(job)
        lost.processes[2].kill()
        for pipe in lost.pipes[:2]:
            assert pipe.poll(PATIENCE)
            assert pipe.recv()[1] is not None
        assert time.monotonic() - began < PATIENCE
    finally:
        lost.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("how", WAYS)
def test_rounding_is_that_of_one_process(world: Worlds, how: str, dtype: torch.dtype):
    """Against float64; gradients of keys are rounded once more where ranks add them up."""
    for ours, alone in world(4).run(jobs.halves, how=how, dtype=dtype):
        assert ours <= 2 * alone


# What is sent


@pytest.mark.parametrize("layout", jobs.LAYOUTS)
@pytest.mark.parametrize("t", [64, 70])
@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_are_those_of_the_formula(world: Worlds, ranks: int, t: int, layout: str):
    spans, g, each, two = jobs.LAYOUTS[layout](t, ranks), 4, H // ranks, 2
    share = spans.most * g * (D + DV) * two
    once = (ranks - 1) * share
    for sent in world(ranks).run(jobs.bytes_sent, t=t, how="gather", layout=layout, g=g):
        assert sent == (once, once)
    for sent in world(ranks).run(jobs.bytes_sent, t=t, how="ring", layout=layout, g=g):
        assert sent == (once, once + ranks * share)
    for rank, sent in enumerate(world(ranks).run(jobs.bytes_sent, t=t, how="heads", layout=layout, g=g)):
        own, others = spans.tokens(rank), t - spans.tokens(rank)
        into, back = each * D + g // ranks * (D + DV), each * DV
        forward = (ranks - 1) * own * into + others * back
        assert sent == (forward * two, ((ranks - 1) * own * back + others * into) * two)


@pytest.mark.parametrize("seen", [window(9), causal & (window(9) | sinks(2)), window(9, ahead=3)])
def test_the_halo_of_a_window_does_not_grow_with_the_text(world: Worlds, seen: object):
    found = [world(4).run(jobs.bytes_sent, t=t, how="gather", layout="contiguous", seen=seen) for t in (128, 512)]
    assert found[0] == found[1]
    one = 4 * (D + DV) * 2
    ahead = 3 if "ahead" in repr(seen) else 0
    first = 3 * 2 if "sinks" in repr(seen) else 0
    # To the next rank the eight keys before its first query; to the one before, those ahead.
    assert [forward // one for forward, _ in found[0]] == [8 + first, 8 + ahead, 8 + ahead, ahead]
    assert [backward // one for _, backward in found[0]] == [
        ahead,
        8 + ahead + first // 3,
        8 + ahead + first // 3,
        8 + first // 3,
    ]


# Beside data parallelism


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("wrapped", ["DDP", "FSDP2"])
def test_gradients_of_weights_are_those_of_one_process(world: Worlds, wrapped: str, how: str):
    world(4).run(jobs.trained, wrapped=wrapped, how=how)


def test_the_examples_are_right(world: Worlds):
    assert max(world(2).run(jobs.example)) < 1e-6
    assert max(world(4).run(jobs.in_tensor_parallel)) < 1e-5


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_holds_its_share_and_one_group_of_keys(world: Worlds, ranks: int):
    for alone, own, group in world(ranks).run(jobs.memory, how="gather", key_heads=1):
        assert own <= 1.1 / ranks * alone + group
    # Without groups the keys of the whole text stay.
    for alone, own, group in world(ranks).run(jobs.memory, how="gather", key_heads=None):
        assert 1.1 / ranks * alone + group / 16 < own <= 1.1 / ranks * alone + 3 * group
