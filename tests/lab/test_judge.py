"""The judge against a slow loop that asks the model byte by byte, giving it exactly what the protocol allows."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import milepost as mp
from milepost.lab.cells.cell import Cell, make
from milepost.lab.cells.work import judged
from milepost.lab.judging import judge
from milepost.lab.judging.scoring import Judging
from milepost.lab.statistics.intervals import over_windows
from milepost.lab.text import corpus
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.recipe import Recipe

TEXT = torch.randint(0, 50, (400,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
NUMBERED = torch.arange(5_000_000, dtype=torch.int32)


def model_of(*parts: object, layers: int = 2) -> Model:
    """A model in float64, with weights so large that every byte before matters."""
    torch.manual_seed(0)
    model = Model(Shape(16, layers, 2, vocabulary=50, hidden=16), mp.Scheme(*parts)).double()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3, mean=1.0 if weight.dim() == 1 else 0.0)
    return model


ROPE = model_of(mp.Rope(8), mp.causal)


@torch.no_grad()
def asked(model: Model, before: Tensor, byte: Tensor) -> float:
    """The bits of one byte, given the bytes before it."""
    logits = model(before.long()[None])[0, -1]
    return float(logits.logsumexp(0) - logits[int(byte)]) / math.log(2)


def assert_bits(ours: Tensor, slow: list[list[float]]) -> None:
    """Equal but for the logits' rounding to float32."""
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), torch.tensor(slow, dtype=torch.float64), rtol=0, atol=2e-5)


# Which bytes


@pytest.mark.parametrize("length", [512, 1024, 2048, 4096, 8192, 16384])
def test_windows_start_where_the_measured_recipe_has_them(length: int):
    n = 2**20 // length
    starts = [i * (5_000_000 - length - 1) // (n - 1) for i in range(n)]
    found = judge.windows(NUMBERED, length, 2**20)
    assert found.shape == (n, length + 1)
    assert found[:, 0].tolist() == starts
    assert torch.equal(found - found[:, :1], torch.arange(length + 1).expand(n, -1))
    assert int(found[-1, -1]) == 5_000_000 - 1


def test_a_single_window_stands_at_the_start():
    assert judge.windows(NUMBERED, 100, 99).tolist() == [list(range(101))]
    assert judge.windows(NUMBERED[:101], 100, 100).tolist() == [list(range(101))]


@pytest.mark.parametrize("size", [101, 150, 250, 1000])
def test_windows_do_not_overlap_however_short_the_text(size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(judge, "bits", lambda model, windows: windows[:, 1:])
    targets = judge.non_overlapping(ROPE, NUMBERED[:size], 100, 2**17).flatten()
    assert len(targets.unique()) == len(targets)
    assert len(targets) == (size - 1) // 100 * 100


# Each protocol


def test_bits_of_windows_are_those_of_each_byte_given_the_bytes_before_it_in_its_window():
    found = judge.non_overlapping(ROPE, TEXT, 12, 60)
    starts = [i * (400 - 12 - 1) // 4 for i in range(5)]
    slow = [[asked(ROPE, TEXT[a : a + 1 + p], TEXT[a + 1 + p]) for p in range(12)] for a in starts]
    assert_bits(found, slow)


def test_how_much_is_read_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    windows = judge.windows(TEXT, 12, 120)
    whole = judge.bits(ROPE, windows)
    monkeypatch.setattr(judge, "AT_ONCE", 30)
    monkeypatch.setattr(judge, "ROWS", 7)
    torch.testing.assert_close(judge.bits(ROPE, windows), whole, rtol=0, atol=1e-5)
    torch.testing.assert_close(judge.bits(ROPE, windows, keep=5), whole[:, -5:], rtol=0, atol=1e-5)
    assert judge.bits(ROPE, windows, keep=99).shape == (10, 12)
    assert judge.bits(ROPE, windows[:0], keep=5).shape == (0, 5)


@pytest.mark.parametrize("stride", [1, 3, 12])
def test_sliding_judges_a_stretch_of_bytes_once_each_on_nearly_its_whole_length(stride: int):
    found = judge.sliding(ROPE, TEXT, 12, stride, 24)
    windows = 24 // stride
    assert found.shape == (windows, stride)
    span = 12 + 1 + (windows - 1) * stride
    first = (400 - span) // 2
    slow = []
    for n in range(windows):
        start = first + n * stride
        slow.append([asked(ROPE, TEXT[start : start + p], TEXT[start + p]) for p in range(12 - stride + 1, 13)])
    assert_bits(found, slow)


def test_sliding_over_a_whole_text_judges_every_byte_but_the_first_few_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(judge, "bits", lambda model, windows, keep: windows[:, -keep:])
    found = judge.sliding(ROPE, NUMBERED[:401], 12, 4, 10**6).flatten()
    assert torch.equal(found, torch.arange(9, 401))


def test_each_byte_alone_is_judged_on_exactly_its_own_last_bytes():
    found = judge.each_alone(ROPE, TEXT, 12, 6)
    starts = [i * (400 - 12 - 1) // 5 for i in range(6)]
    assert_bits(found, [[asked(ROPE, TEXT[a : a + 12], TEXT[a + 12])] for a in starts])


@pytest.mark.parametrize("length", [8, 16, 64])
def test_the_bytes_before_the_same_ends_are_judged_at_every_length(length: int):
    found = judge.at_ends(ROPE, TEXT, length, 64, 4, last=8)
    ends = [64 + i * (400 - 64 - 1) // 3 for i in range(4)]
    assert ends[-1] == 399
    slow = [[asked(ROPE, TEXT[end - length : byte], TEXT[byte]) for byte in range(end - 7, end + 1)] for end in ends]
    assert_bits(found, slow)


def cell_of(**judging: object) -> Cell:
    own: dict = {"longest": 64, "total": 256, "ends": 4} | judging
    return Cell("rope", 0, Shape(16, 1, 2), Recipe(length=16, batch=2, steps=5), Judging(**own), "", threads=1)


def scores_of(cell: Cell, text: Tensor) -> list:
    found = judged(cell, make(cell), corpus.Corpus(text, text, "here"), set())
    return [each for each in found if hasattr(each, "protocol")]


def test_the_ends_are_the_same_bytes_even_where_the_trained_length_is_short():
    scores = scores_of(cell_of(protocols=("ends",)), TEXT)
    # Half of the trained length, so that each byte has as much before it; and never more than 256.
    assert [(score.length, score.count) for score in scores] == [(16, 4 * 8), (32, 4 * 8), (64, 4 * 8)]
    assert judge.at_ends(ROPE, torch.cat([TEXT] * 2), 300, 300, 2).shape == (2, 256)


def test_where_a_text_is_short_no_byte_is_judged_twice_by_its_ends():
    text = torch.arange(50).to(torch.uint8)
    seen: list[Tensor] = []

    class Reads(Copier):
        def states(self, tokens: Tensor) -> Tensor:
            seen.append(tokens)
            return super().states(tokens)

    found = judge.at_ends(Reads(1), text, 16, 16, 16, last=8)  # pyright: ignore
    # 33 bytes of room hold four ends that are eight or more apart, and one more.
    assert found.shape == (5, 8)
    judged = torch.cat(seen)[:, -8:].flatten().tolist()
    assert len(set(judged)) == len(judged) == 40
    assert judge.at_ends(Reads(1), text[:18], 16, 16, 16, last=8).shape == (1, 8)  # pyright: ignore


# Recall


class Copier:
    """Stands in for a model: it always says again what it read so many bytes before."""

    device = torch.device("cpu")

    def __init__(self, distance: int, bytes_: int = 50) -> None:
        self.distance, self.bytes = distance, bytes_

    def eval(self) -> None: ...

    def states(self, tokens: Tensor) -> Tensor:
        self.read = tokens
        guess = F.pad(tokens, (self.distance, 0))[:, 1 : tokens.shape[1] + 1]
        return F.one_hot(guess, self.bytes).float()

    def logits(self, states: Tensor) -> Tensor:
        return 20 * states


def test_recall_repeats_a_passage_at_the_very_distance_asked_for():
    model = Copier(40)
    found = {at: judge.recall(model, TEXT, at, size=16, count=8) for at in (40, 41, 80)}  # pyright: ignore
    assert {second.shape for second, _ in found.values()} == {(8, 16)}
    assert float(found[40][0].max()) < 1e-3
    # Fresh, the same bytes are no copy of what stands there.
    assert float(found[40][1].mean()) > math.log2(50)
    assert float(found[41][0].mean()) > math.log2(50)
    assert float(found[80][0].mean()) > math.log2(50)


class Reader(Copier):
    """Notes every reading."""

    def states(self, tokens: Tensor) -> Tensor:
        self.readings = [*getattr(self, "readings", []), tokens]
        return super().states(tokens)


@pytest.mark.parametrize("real", [False, True])
def test_the_same_bytes_are_judged_in_the_same_place_with_and_without_a_first_copy(real: bool):
    model = Reader(40)
    judge.recall(model, TEXT, 40, size=16, count=8, real=real)  # pyright: ignore
    twice, fresh = model.readings
    assert twice.shape == fresh.shape == (8, 40 + 16)
    assert torch.equal(twice[:, 17:], fresh[:, 17:]), "but for the first copy all is alike"
    assert torch.equal(twice[:, :1], fresh[:, :1])
    assert torch.equal(twice[:, 1:16], twice[:, 41:]), "the last of the second copy is asked for, and not read"
    # Two of 50 bytes agree one time in fifty.
    assert float((fresh[:, 1:17] == twice[:, 1:17]).float().mean()) < 0.15
    assert float((twice[:, 17:33] == twice[:, 1:17]).float().mean()) < 0.15
    assert set(twice.flatten().tolist()) <= set(TEXT.tolist())


def test_recalled_passages_are_of_the_text():
    model, text = Reader(40, 256), torch.arange(200).to(torch.uint8)
    judge.recall(model, text, 40, size=16, count=4, real=True)  # pyright: ignore
    twice, fresh = model.readings
    steps = twice[:, 1:] - twice[:, :-1]
    assert bool((steps[:, :40] == 1).all()), "up to the second copy it is the text as it stands"
    assert bool(((fresh[:, 2:17] - fresh[:, 1:16]) == 1).all())
    assert twice[0, 0] == 0
    assert twice[-1, 40] == 200 - 1 - 16


def test_recall_draws_the_same_bytes_from_the_text_every_time():
    model, again = Copier(40), Copier(40)
    judge.recall(model, TEXT, 40, size=16, count=8)  # pyright: ignore
    torch.manual_seed(5)
    judge.recall(again, TEXT, 40, size=16, count=8)  # pyright: ignore
    assert torch.equal(model.read, again.read)
    judge.recall(again, TEXT, 40, size=16, count=8, seed=1)  # pyright: ignore
    assert not torch.equal(model.read, again.read)


def test_a_window_shorter_than_the_distance_saves_nothing_and_full_attention_can():
    # Two layers of windows reach 2 · 7 bytes back.
    short = model_of(mp.Rope(8), mp.causal & mp.window(8))
    for real in (False, True):
        second, fresh = judge.recall(short, TEXT, 40, size=8, count=4, real=real)
        assert torch.equal(second, fresh)
        second, fresh = judge.recall(ROPE, TEXT, 40, size=8, count=4, real=real)
        assert float((second - fresh).abs().max()) > 1e-2


def test_a_score_of_recall_is_what_the_second_copy_saves():
    cell = cell_of(protocols=("recall", "passages"), recall=(40,), copies=6, copied=8)
    random, real = scores_of(cell, TEXT)
    assert [(each.protocol, each.length, each.count) for each in (random, real)] == [
        ("recall", 40, 6 * 8), ("passages", 40, 6 * 8),
    ]  # fmt: skip
    for score, passages in ((random, False), (real, True)):
        second, fresh = judge.recall(make(cell), TEXT, 40, 8, 6, real=passages)
        saved = (fresh.double() - second.double()).mean(1)
        assert score.mean == pytest.approx(float(saved.mean()), abs=1e-6)
        assert score.windows == pytest.approx(saved.tolist(), abs=1e-6)
        assert score.detail["fresh"] - score.detail["second"] == pytest.approx(score.mean, abs=1e-6)


def test_copies_that_would_overlap_are_refused():
    with pytest.raises(ValueError, match="recall: copies of 128 bytes cannot stand 127 apart"):
        judge.recall(ROPE, TEXT, 127)


# Numbers


def test_lengths_double():
    assert list(judge.lengths_up_to(128, 2048)) == [128, 256, 512, 1024, 2048]
    assert list(judge.lengths_up_to(128, 1000)) == [128, 256, 512]
    assert list(judge.lengths_up_to(128, 128)) == [128]


def test_a_score_holds_the_mean_over_windows_and_the_bits_by_position():
    cell = cell_of(protocols=("windows", "sliding", "alone"), longest=32, alone=6)
    scores = {(score.protocol, score.length): score for score in scores_of(cell, TEXT)}
    assert set(scores) == {("windows", 16), ("windows", 32), ("sliding", 16), ("alone", 16)}
    bits = judge.non_overlapping(make(cell), TEXT, 32, 256).double()
    mean = bits.mean(1)
    score = scores["windows", 32]
    assert score.count == 256
    assert score.mean == pytest.approx(float(mean.mean()), abs=1e-6)
    assert score.windows == pytest.approx(mean.tolist(), abs=1e-6)
    assert score.half == pytest.approx(float(over_windows(mean)), rel=1e-4)
    assert score.detail["last"] == pytest.approx(float(bits.mean()), abs=1e-6)
    edges = [0, 1, 2, 4, 8, 12, 16, 24, 32]
    wanted = [(a, pytest.approx(float(bits[:, a:b].mean()), abs=1e-6)) for a, b in itertools.pairwise(edges)]
    assert score.detail["by_position"] == wanted
    assert scores["alone", 16].count == 6
    assert scores["sliding", 16].count == 64
    (single,) = scores_of(cell_of(protocols=("windows",), longest=16, total=16), TEXT)
    assert single.half is None
