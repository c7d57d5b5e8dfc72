"""Which distances of recall `compare` asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from milepost.lab.command import asked
from milepost.lab.training.recipe import SIZES, Recipe


@pytest.mark.parametrize("length", [16, 64, 128, 512])
@pytest.mark.parametrize("times", [1, 2, 4, 16, 64])
def test_recall_is_asked_at_distances_that_fit_the_longest_length(length: int, times: int):
    chosen = replace(SIZES["demo"], recipe=Recipe(length=length), longest=times * length)
    distances = asked.judging_of(chosen, None, None).recall
    assert sorted(set(distances)) == list(distances)
    copied = min(128, length // 4)
    assert asked.judging_of(chosen, None, None).copied == copied
    assert all(copied <= distance <= chosen.longest - copied for distance in distances)
    assert min(distances) + copied <= length, "one lies within what was trained on"


def test_distances_that_were_asked_for_are_taken():
    assert asked.judging_of(SIZES["base"], None, "256,3072").recall == (256, 3072)


def test_the_size_of_the_anchors_is_asked_at_their_distances():
    assert asked.judging_of(SIZES["base"], None, None).recall[:5] == (256, 384, 768, 1536, 3072)


def test_the_demo_judges_more_ends_and_copies_than_so_few_bytes_would_give_unless_bytes_are_asked_for():
    demo = asked.size_of("demo", {}, "cpu")
    found = asked.judging_of(demo, None, None)
    assert (found.ends, found.copies) == (demo.ends, demo.copies) == (192, 32)
    few = asked.judging_of(demo, 1 << 15, None)
    assert (few.ends, few.copies) == (32, 16)
