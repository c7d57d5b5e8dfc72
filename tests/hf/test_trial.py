"""One text that shows loss, recall and a pass key in one pass; what is doubted; how long a choice will take."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milepost.hf.choosing import forecast
from milepost.hf.choosing.doubts import begins_with, doubts, entropy_of
from milepost.hf.choosing.forecast import seconds_of
from milepost.hf.choosing.trial import DEPTHS, Sizes, read_off, sizes_for, trials_for
from milepost.hf.measuring.judged import Row, judge
from tests.hf.test_measure import VOCABULARY, copier

pytest.importorskip("transformers")
pytest.importorskip("scipy")


def text(n: int = 4000) -> Tensor:
    return torch.randint(0, VOCABULARY, (n,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(("trained", "target"), [(256, 1024), (256, 512), (64, 1024), (512, 2048)])
def test_passages_stand_out_of_the_windows_sight_and_come_again_at_the_end(trained: int, target: int):
    sizes = sizes_for(trained, target, None)
    assert len(sizes.starts) == DEPTHS
    assert sizes.starts[0] >= max(sizes.passage, target // 32)
    for number, trial in enumerate(trials_for(text(), None, sizes, 3, first=7)):
        ids = trial.ids[0]
        assert len(ids) == target + 1
        assert ids[0] == 7
        assert sorted(trial.order) == list(range(DEPTHS))
        assert trial.order[0] == number
        tail = len(ids) - trial.answer - trial.asked - DEPTHS * sizes.passage
        for n, depth in enumerate(trial.order):
            start, again = sizes.starts[depth], tail + n * sizes.passage
            assert torch.equal(ids[start : start + sizes.passage], ids[again : again + sizes.passage])
            # The window is given the last of all tokens but the very last.
            assert start + sizes.passage <= target - trained


def test_the_ending_is_that_of_the_text_and_endings_do_not_overlap():
    sizes, ids = sizes_for(64, 256, None), text()
    ends: list[int] = []
    for trial in trials_for(ids, None, sizes, 5, None):
        end = trial.ids.shape[1] - trial.judged(sizes) + sizes.last
        own = trial.ids[0, end - sizes.last : end].tolist()
        ends += [n for n in range(len(ids)) if ids[n : n + sizes.last].tolist() == own]
    assert len(ends) == 5
    assert all(b - a >= sizes.last for a, b in itertools.pairwise(ends))


def test_who_looks_back_recalls_and_finds_the_key_and_a_window_does_not():
    sizes = sizes_for(256, 1024, None)
    trial, *_ = trials_for(text(), None, sizes, 1, None)
    last = trial.judged(sizes)
    whole, window = (
        judge(Row("", copier, window=n, sinks=sizes.sinks if n else 0), trial.ids, last) for n in (0, sizes.trained)
    )
    sees, blind = (read_off(each.nats[0], each.right[0], trial, sizes) for each in (whole, window))
    assert max(sees.copies) < 0.5 * min(blind.copies)
    assert sees.found
    assert not blind.found
    assert len(sees.blocks) == 8


def test_what_is_read_off_is_the_ending_then_each_copy_by_its_depth():
    sizes = Sizes(target=64, trained=32, last=8, passage=2, starts=(4, 10, 16), sinks=2)
    trial = trials_for(text(), None, sizes, 2, None)[1]
    assert trial.order == (1, 2, 0)
    nats = torch.cat((torch.full((5,), 99.0), torch.arange(8.0), torch.tensor([10.0, 10, 20, 20, 0, 0])))
    found = read_off(nats, torch.zeros(len(nats), dtype=torch.bool), trial, sizes)
    assert found.blocks == tuple(range(8))
    assert found.copies == (0.0, 10.0, 20.0)


def test_where_nothing_is_out_of_sight_nothing_is_repeated():
    assert sizes_for(256, 260, None).starts == ()
    with pytest.raises(ValueError, match=r"extend\(last=250\): a window of 256 tokens must hold what is judged"):
        sizes_for(256, 1024, 250)
    with pytest.raises(ValueError, match=r"has 100 tokens, and 3 endings at 256 tokens needs 289"):
        trials_for(text(100), None, sizes_for(64, 256, None), 3, None)


# Doubts


class Knows(nn.Module):
    """A model that has learned that each token is followed by the next number, behind a BOS or in any case."""

    def __init__(self, bos: int | None = None) -> None:
        super().__init__()
        self.bos, self.calls = bos, 0
        self.config: Any = type("Config", (), {"bos_token_id": 0, "max_position_embeddings": 64})()

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        sure = torch.nn.functional.one_hot((input_ids + 1) % VOCABULARY, VOCABULARY).float() * 8
        if self.bos is not None:
            sure *= (input_ids[:, :1] == self.bos)[..., None]
        return type("Out", (), {"logits": sure})()

    @property
    def device(self) -> str:
        return "cpu"


COUNTED = torch.arange(1, 4001) * 7 % 39 + 1
"""A text whose tokens follow each other by 7."""
STEPS = (torch.arange(4000) + torch.arange(4000) // 57) % VOCABULARY


def said(model: nn.Module, ids: Tensor, words: object = None) -> tuple[str, int | None]:
    found, first = doubts(model, ids, None, words)
    return " ".join(found), first


def test_a_text_that_fits_is_not_doubted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("milepost.hf.choosing.doubts.AGAIN", 1.0)
    assert said(Knows(), STEPS, "words") == ("", None)


def test_noise_is_doubted():
    assert "hardly better than by counting tokens" in said(Knows(), text())[0]


def test_bytes_that_are_no_text_are_doubted():
    words = b"caf\xe9 au lait".decode("utf-8", errors="replace")
    assert "1 of 12 characters could not be decoded as UTF-8" in said(Knows(), STEPS, words)[0]


def test_a_missing_bos_is_doubted_and_put_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("milepost.hf.choosing.doubts.AGAIN", 1.0)
    found, first = said(Knows(bos=0), STEPS)
    assert "adds no BOS, and the model reads this text better behind one (token 0)" in found
    assert first == 0
    assert said(Knows(), STEPS)[1] is None


def test_a_text_that_repeats_itself_is_doubted():
    assert "the text repeats itself" in said(Knows(), torch.arange(64).repeat(60) % VOCABULARY)[0]
    assert "repeats" not in said(Knows(), text())[0]


def test_the_entropy_of_counts():
    assert entropy_of(torch.tensor([3, 3, 5, 5])) == pytest.approx(0.6931, abs=1e-4)
    assert begins_with(lambda words: [1]) is None


# Time


class Clock:
    """A clock that stands still but for what layers say they took."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Layers(nn.Module):
    """Layers in a row; each takes as long as its kind does, the first ten times as long."""

    def __init__(self, clock: Clock, kinds: list[str]) -> None:
        super().__init__()
        self.clock, self.ran = clock, 0
        self.layers = nn.ModuleList(nn.Identity() for _ in kinds)
        self.config: Any = type("Config", (), {"layer_types": kinds})()

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        x = torch.zeros(*input_ids.shape, VOCABULARY)
        for number, layer in enumerate(self.layers):
            took = 3.0 if self.config.layer_types[number] == "far" else 1.0
            self.clock.now += took if number else 10 * took
            self.ran += 1
            x = layer(x)
        return type("Out", (), {"logits": x})()


@pytest.mark.parametrize(
    ("kinds", "ran", "took"),
    [(["near"] * 20, 2, 10 + 19 + 1), (["near", "near", "near", "far"] * 5, 4, 10 + 14 + 15 + 1), ([], 0, 0)],
    ids=["alike", "of two kinds", "no list of layers"],
)
def test_a_few_layers_tell_what_all_take(kinds: list[str], ran: int, took: float, monkeypatch: pytest.MonkeyPatch):
    """The layers, the first as slow as it was, and as much as one more for the head."""
    clock = Clock()
    monkeypatch.setattr(forecast, "time", clock)
    model = Layers(clock, kinds)
    assert seconds_of(Row("", model), torch.zeros(1, 9, dtype=torch.long), 2) == pytest.approx(took)
    assert model.ran == ran
    assert not any(each._forward_hooks for each in model.layers)
