"""Intervals of what was measured: windows of a text are alike, those that were drawn are not."""

from __future__ import annotations

import math

import pytest
import torch

from milepost.hf import measure
from milepost.hf.measuring.scores import paired, score
from tests.hf.test_measure import QUICK, VOCABULARY, llama


def test_drawn_windows_have_students_interval_and_differences_are_paired():
    one = score(torch.tensor([1.0, 2.0, 4.0, 9.0]), drawn=True)
    two = score(torch.tensor([0.5, 1.5, 3.5, 8.5]), drawn=True)
    spread = math.sqrt(sum((x - 4) ** 2 for x in (1, 2, 4, 9)) / 3)
    # 3.18245 is the 97.5 % point of Student's t with three degrees of freedom.
    assert (one.mean, one.half) == pytest.approx((4.0, 3.18245 * spread / 2), rel=1e-5)
    assert (paired(one, two).mean, paired(one, two).half) == pytest.approx((0.5, 0.0), abs=1e-12)
    assert paired(one, two).drawn
    assert math.isnan(score(torch.tensor([1.0])).half)
    with pytest.raises(ValueError, match="4 windows and 1"):
        paired(one, score(torch.tensor([1.0])))


def test_windows_of_a_text_have_the_interval_of_slow_cosines():
    values = [1.0, 2.0, 4.0, 9.0, 8.0, 7.0]
    n, mean = 6, 31 / 6
    cosines = [
        sum((x - mean) * math.sqrt(2 / n) * math.cos(math.pi * k * (t + 0.5) / n) for t, x in enumerate(values))
        for k in (1, 2)
    ]
    # Two cosines; 4.30265 is the 97.5 % point of Student's t with two degrees of freedom.
    half = 4.30265 * math.sqrt(sum(c**2 for c in cosines) / 2 / n)
    assert score(torch.tensor(values)).half == pytest.approx(half, rel=1e-5)
    zero = score(torch.zeros(6))
    assert paired(score(torch.tensor(values)), zero).half == pytest.approx(half, rel=1e-5)


def test_windows_that_are_alike_count_for_less():
    # Each value and the next share most of what they are made of, as windows that overlap do.
    noise = torch.randn(71, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    alike = noise.unfold(0, 8, 1).mean(1)
    assert score(alike).half > 1.5 * score(alike, drawn=True).half
    ids = torch.randint(0, VOCABULARY, (600,), generator=torch.Generator().manual_seed(1))
    found = measure(llama(), ids, lengths=[32, 64], distances=[12], needle=(), **(QUICK | {"windows": 12}))
    nats, recall = found.nats["stock"][64], found.recall["stock"][12]
    assert nats.half == score(torch.tensor(nats.values)).half != score(torch.tensor(nats.values), drawn=True).half
    assert (nats.drawn, recall.first.drawn, recall.second.drawn) == (False, True, True)
