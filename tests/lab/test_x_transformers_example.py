"""x-transformers beside the lab, run small from end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from milepost.lab.cells.store import Store
from milepost.lab.sweep.recorded import record
from milepost.lab.sweep.search import as_chosen, cells_of_rates, rounds_of_rates
from milepost.lab.sweep.sweep import Local, Sweep, run
from milepost.lab.text import corpus
from milepost.lab.training.model import Shape
from tests.examples import example_of
from tests.lab.test_sweep import JUDGING, SIZE, WORDS

pytest.importorskip("x_transformers")
pytestmark = pytest.mark.slow

BYTES = b"".join(WORDS[n % 57 : n % 57 + n % 23] for n in range(1200))
ASKED = Sweep(
    ("alibi", "kerple"), SIZE, corpus.of_bytes(BYTES, "words", third=True), (0, 1), JUDGING, free=False, threads=1,
    search=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return example_of("beside_x_transformers")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as milepost compare leaves it, and its text."""
    folder = tmp_path_factory.mktemp("lab")
    store = Store(folder / "lab.sqlite")
    record(store, ASKED, "milepost compare")
    for cells in rounds_of_rates(ASKED, store):
        run(ASKED, store, Local(folder), cells=cells)
    run(as_chosen(ASKED, store), store, Local(folder))
    store.close()
    (folder / "text").write_bytes(BYTES)
    return folder


def windows(path: Path, sweep: Sweep, protocol: str, length: int) -> dict[str, np.ndarray]:
    """Of each scheme of a sweep, the bits of every window of every seed."""
    store = Store(path / "lab.sqlite")
    found: dict[str, list[tuple[float, ...]]] = {}
    for cell in as_chosen(sweep, store).cells():
        (score,) = (each for each in store.scores(cell.key) if (each.protocol, each.length) == (protocol, length))
        found.setdefault(cell.name, []).append(score.windows)
    store.close()
    return {name: np.array(rows) for name, rows in found.items()}


def test_every_difference_is_that_of_the_same_windows(
    example: ModuleType, lab: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    given = ["--beside", str(lab), "--out", str(tmp_path), "--device", "cpu"]
    example.main([*given, "--text", str(lab / "text")])
    printed = capsys.readouterr().out
    assert "\nALiBi of x-transformers, " in printed
    assert ", seeds: 2, the best rate of 3: " in printed
    found = json.loads((tmp_path / "beside.json").read_text())["differences"]
    # As trained: windows and ends at three lengths, sliding and alone at one, both recalls, of two rows and two peers.
    assert len(found) == 4 * (3 + 3 + 1 + 1 + 1 + 1)
    peers = example.beside(ASKED, ["alibi", "t5"], False)
    for protocol, length in (("windows", 16), ("windows", 64), ("recall", 128)):
        ours, theirs = windows(lab, ASKED, protocol, length), windows(tmp_path, peers, protocol, length)
        for row, name in (("ALiBi", "alibi"), ("KERPLE", "kerple")):
            for peer, other in (("ALiBi", "alibi"), ("T5", "t5")):
                wanted = {"row": row, "peer": peer, "protocol": protocol, "length": length, "seeds": 2}
                (each,) = (each for each in found if wanted.items() <= each.items())
                assert ours[name].shape == theirs[other].shape
                assert each["mean"] == pytest.approx((ours[name] - theirs[other]).mean(), abs=1e-12)
                assert each["half_over_windows"] > 0
                assert each["half_over_seeds"] > 0
    # All is done: the text is not asked for again, and nothing changes.
    example.main([*given, "--against", "alibi"])
    assert [each for each in found if each["row"] == "ALiBi"] == json.loads((tmp_path / "beside.json").read_text())[
        "differences"
    ]


def test_other_bytes_and_other_names_are_refused(example: ModuleType, lab: Path, tmp_path: Path):
    (tmp_path / "other").write_bytes(BYTES[1:])
    given = ["--beside", str(lab), "--out", str(tmp_path / "out"), "--device", "cpu"]
    with pytest.raises(ValueError, match="these are not the bytes that the lab read, words; give those"):
        example.main([*given, "--text", str(tmp_path / "other")])
    with pytest.raises(ValueError, match="cope: of x-transformers there are rope, alibi, t5"):
        example.main(["cope", *given])


def test_its_cells_are_the_labs_but_for_the_model(example: ModuleType):
    for alike in (False, True):
        peers = example.beside(ASKED, ["alibi"], alike)
        for ours, theirs in ((Sweep.cells, type(peers).cells), (cells_of_rates, cells_of_rates)):
            pairs = list(zip(ours(replace(ASKED, schemes=("alibi",))), theirs(peers), strict=True))
            assert pairs
            for one, other in pairs:
                assert one.key != other.key
                same = {"seed", "shape", "recipe", "judging", "corpus", "threads", "version"}
                assert all(getattr(one, name) == getattr(other, name) for name in same)
    keys = {cell.key for alike in (False, True) for cell in example.beside(ASKED, ["alibi"], alike).cells()}
    assert len(keys) == 4


def test_how_the_labs_model_starts_is_no_reason_to_train_another_anew(example: ModuleType):
    keys: list[list[str]] = []
    for shape in (SIZE.shape, replace(SIZE.shape, start="torch", tied=False), replace(SIZE.shape, layers=3)):
        sweep = replace(ASKED, size=replace(SIZE, shape=shape))
        keys.append([cell.key for cell in example.beside(sweep, ["alibi", "t5"], False).cells()])
    first, started, deeper = keys
    assert first == started
    assert not set(first) & set(deeper)


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("name", ["rope", "alibi", "t5"])
@torch.no_grad()
def test_read_in_pieces_a_text_has_the_same_logits(
    name: str, alike: bool, example: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    torch.manual_seed(0)
    model = example.Peer(name, Shape(64, 2, 1), 16, alike).double().eval()
    text = torch.randint(0, 256, (3, 90), generator=torch.Generator().manual_seed(1))
    whole = model(text)
    for scores in (1 << 27, 2 * 90 * 90, 90 * 31, 1):
        monkeypatch.setattr(example, "SCORES", scores)
        # Its softmax is in float32, whatever the rest is in.
        torch.testing.assert_close(model.logits(model.states(text)), whole, atol=2e-6, rtol=0)


def test_at_the_labs_base_size_it_has_as_many_numbers_as_the_anchor(example: ModuleType):
    counts = {name: example.Peer(name, Shape(), 16, False).count() for name in ("alibi", "t5")}
    assert counts == {"alibi": 14_378_112, "t5": 14_378_304}
    # T5's table alone has the rate of biases.
    learned = list(example.Peer("t5", Shape(), 16, False).biases())
    assert [weight.shape for weight in learned] == [(32, 6)]
