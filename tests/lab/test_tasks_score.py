"""Judging by a task, at lengths and positions of one's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import milepost as mp
from milepost.lab.tasks import HIERARCHY, score
from milepost.lab.tasks.score import JUDGING, placed
from milepost.lab.tasks.task import DRAWN_ONCE
from milepost.lab.training.reader import Reader

REVERSE = HIERARCHY["reverse-string"]


class Knows(Reader):
    """Reverses the first half of its input, but for the examples that begin with a 1; notes where tokens stand."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(3, 1)
        self.seen: list[Tensor | None] = []

    def forward(self, tokens: Tensor, position: Tensor | None = None) -> Tensor:
        self.seen.append(position)
        said = tokens.flip(1) * (tokens[:, :1] != 1) + (1 - tokens.flip(1)) * (tokens[:, :1] == 1)
        return nn.functional.one_hot(said.clamp(0, 2), 3).float()


def test_training_judging_and_what_is_drawn_once_come_from_seeds_of_their_own():
    """Of a seed torch reads 32 bits: what differs above them draws the same."""
    seeds = [start + n for start in (0, JUDGING, DRAWN_ONCE) for n in range(50)]
    first = {int(torch.randint(1 << 60, (), generator=torch.Generator().manual_seed(seed))) for seed in seeds}
    assert len(first) == 150


def test_a_score_is_one_where_every_answer_is_right_and_zero_where_none_is():
    found = score(Knows(), REVERSE, 7, 200, seed=0)
    assert found.shape == (200,)
    inputs, _ = REVERSE.batch(200, 7, torch.Generator().manual_seed((1 << 31) + 7))
    assert found.tolist() == (inputs[:, 0] != 1).float().tolist()


def test_a_score_is_the_same_whenever_its_seed_is():
    torch.manual_seed(0)
    first = score(Knows(), REVERSE, 7, 100, seed=3)
    torch.manual_seed(1)
    assert score(Knows(), REVERSE, 7, 100, seed=3).equal(first)
    assert not score(Knows(), REVERSE, 7, 100, seed=4).equal(first)


def test_whole_answers_can_be_counted_instead():
    class Half(Knows):
        def forward(self, tokens: Tensor, position: Tensor | None = None) -> Tensor:
            return nn.functional.one_hot(torch.zeros_like(tokens), 3).float()

    assert 0.4 < score(Half(), REVERSE, 8, 100, seed=0).mean() < 0.6
    assert score(Half(), REVERSE, 8, 100, seed=0, measure=REVERSE.exact).mean() < 0.1


def test_positions_are_drawn_for_every_64_examples_and_reach_the_model():
    model = Knows()
    score(model, REVERSE, 10, 150, seed=0, positions=mp.Randomized(2048).sample)
    assert [each.shape for each in model.seen] == [(20,)] * 3
    assert not model.seen[0].equal(model.seen[1])
    assert all(each.diff().min() > 0 and each.max() < 2048 for each in model.seen)
    again = Knows()
    score(again, REVERSE, 10, 150, seed=0, positions=mp.Randomized(2048).sample)
    assert all(a.equal(b) for a, b in zip(model.seen, again.seen, strict=True))


def test_positions_may_be_evenly_spaced_at_test():
    model = Knows()
    score(model, REVERSE, 8, 10, seed=0, positions=mp.Randomized(2048).evenly)
    assert model.seen[0].tolist() == [128.0 * n for n in range(16)]


def test_drawing_positions_leaves_the_generator_of_torch_alone():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    first, again = (placed(mp.Randomized(2048).sample, 9, seed=1) for _ in range(2))
    assert torch.rand(3).equal(wanted)
    assert first.equal(again)
    assert not first.equal(placed(mp.Randomized(2048).sample, 9, seed=2))
