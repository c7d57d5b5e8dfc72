"""The default text: the same bytes everywhere, in parts that share nothing, with passages that come again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from milepost.lab.command import asked
from milepost.lab.text import baselines, corpus
from milepost.lab.text.again import BACK, with_passages_again
from milepost.lab.text.baselines import shared_with
from milepost.lab.text.corpus import Corpus, of_own, own_files, parts_of
from tests.lab.gather_text import gathered, stretches


@pytest.fixture(scope="module")
def own() -> Corpus:
    return of_own()


def tensor(text: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def test_the_default_text_is_the_same_on_every_machine_and_under_every_python(own: Corpus):
    """A store of one machine is known on another by this digest; who changes the text makes all of them old."""
    assert (own.digest, own.chosen_by) == ("ab9865777df0dda6", "bf6439a7906788ba")
    assert own.source == "milepost's own sources and documents, with passages that come again"


def test_no_stretch_of_the_files_that_are_trained_on_stands_in_the_others():
    train, judged, chosen = (stretches(b"\0".join(part)) for part in parts_of(enumerate(own_files())))
    assert (train & judged, train & chosen) == (set(), set())
    assert len(judged & chosen) < len(judged) / 1000


def test_what_parts_share_in_the_end_is_short_passages_said_often_and_the_report_says_how_much(own: Corpus):
    """Six blanks, said six times, stand in any two parts."""
    assert own.facts.shared is not None
    assert 0 < own.facts.shared < 0.005


def test_it_is_what_is_read_where_no_text_is_named(monkeypatch: pytest.MonkeyPatch, own: Corpus):
    monkeypatch.setattr(corpus, "of_own", lambda: own)
    assert asked.corpus_of(None, None, []) is own


def test_the_text_is_long_enough_for_the_demo_and_for_choosing_settings(own: Corpus):
    own.needs(64, 1024, chosen=512)
    assert len(own.train) > 2_000_000
    assert min(len(own.test), len(own.validation)) > 100_000


# Passages that come again


def again(text: bytes, within: int, size: int = 6) -> float:
    """Which share of the stretches of `size` bytes stands in the `within` bytes before each."""
    found = [text[n : n + size] in text[max(0, n - within) : n] for n in range(within, len(text) - size, 5)]
    return sum(found) / len(found)


def test_passages_come_again_within_the_trained_length_and_from_far_back(own: Corpus):
    """In plain text hardly anything does within 64 bytes."""
    judged = own.test[:40_000].numpy().tobytes()
    draw = random.Random(0)
    plain = bytes(draw.randrange(97, 123) for _ in range(40_000))
    assert again(plain, 64) < 0.01
    near, far = again(judged, 64), again(judged, BACK[1])
    assert near > 0.4
    assert far > near + 0.1


def test_one_seed_gives_one_text_and_another_seed_another():
    plain = bytes(range(33, 127)) * 30
    assert with_passages_again(plain, 1) == with_passages_again(plain, 1)
    assert with_passages_again(plain, 1) != with_passages_again(plain, 2)
    assert with_passages_again(b"", 1) == b""


def test_what_is_read_is_read_in_its_order_and_to_its_end():
    """Taking out what comes again leaves the text, but for passages that drawn letters stand in for."""
    plain = bytes(n % 90 + 33 for n in range(9000))
    made = with_passages_again(plain, 3)
    assert made.count(b"\n") == 0
    assert len(made) > 1.5 * len(plain)
    places = [made.find(plain[n : n + 4]) for n in range(0, len(plain), 90)]
    assert sum(place >= 0 for place in places) > len(places) / 2


# Parts that share nothing


def test_what_is_shared_is_counted_by_stretches_of_32_bytes():
    draw = random.Random(1)
    train, fresh = (bytes(draw.randrange(256) for _ in range(2000)) for _ in range(2))
    test = fresh[:1000] + train[300:700] + fresh[1000:]
    known = stretches(train)
    expected = sum(test[n : n + 32] in known for n in range(len(test) - 31)) / (len(test) - 31)
    assert 0.1 < expected < 0.2
    assert shared_with(tensor(train), tensor(test)) == pytest.approx(expected, abs=1e-12)
    assert shared_with(tensor(train), tensor(fresh)) == 0.0


def test_what_is_shared_is_found_across_the_parts_that_are_looked_through(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(baselines, "AT_ONCE", 64)
    train = torch.randint(256, (300,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for start in range(0, 269):
        assert shared_with(train, train[start : start + 32]) == 1.0, start


def test_lines_that_stand_in_another_part_are_left_out_when_a_text_is_gathered(tmp_path: Path):
    draw = random.Random(2)
    (tmp_path / "docs").mkdir()
    shared = "this line stands, word by word, in every one of the files there are\n"
    for n in range(60):
        lines = ["".join(chr(draw.randrange(97, 123)) for _ in range(50)) for _ in range(20)]
        (tmp_path / "docs" / f"{n}.md").write_text(
            shared + "\n".join(lines) + f"\nand this one, {n}, but for a number, too\n"
        )
    text = gathered(tmp_path)
    assert text.count(shared.encode()) == 1
    assert text.count(b"but for a number") == 1
    train, judged, chosen = (stretches(b"\0".join(part)) for part in parts_of(enumerate(text.split(b"\0"))))
    assert (train & judged, train & chosen) == (set(), set())
