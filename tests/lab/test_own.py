"""Methods of one's own: from a file or from a package, compared, kept, resumed and saved like milepost's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import milepost as mp
from milepost.lab.cells.events import Described, Stepped
from milepost.lab.cells.store import Store
from milepost.lab.command.asked import with_files
from milepost.lab.engines.parcels import ByUrl
from milepost.lab.engines.ray_driver import work_cell
from milepost.lab.exported import export, load
from milepost.lab.schemes import own
from milepost.lab.schemes.named import build, learns_bias, learns_more
from milepost.lab.sweep.recorded import record
from milepost.lab.training.model import Model, bias_weights
from milepost.lab.training.train import Trainer
from tests.examples import EXAMPLES
from tests.lab.test_compare import done, refused
from tests.lab.test_ray_post import PostHere
from tests.lab.test_sweep import SWEEP, work

WAVES = (EXAMPLES / "waves.py").read_text()
SOURCE = own.Source("waves.py", WAVES)
OWN = replace(SWEEP, schemes=("WaveBias(heads)", "LearnedWave(heads)"), free=False, own=(SOURCE,))


@pytest.fixture(autouse=True)
def _none_afterwards() -> Iterator[None]:
    yield
    own.use(())


@pytest.fixture
def waves(tmp_path: Path) -> Path:
    path = tmp_path / "waves.py"
    path.write_text(WAVES)
    return path


# From a file


def test_a_file_before_a_name_is_read_and_taken_off(waves: Path):
    names, rows, files = with_files(
        [f"{waves}:WaveBias(heads) + LogN(trained)", "rope"], [f"rope: Rope(dim) + {waves}:WaveBias(heads)"], [waves]
    )
    assert names == ("WaveBias(heads) + LogN(trained)", "rope")
    assert rows == (("rope", "Rope(dim) + WaveBias(heads)"),)
    assert files == (own.read(waves),)


def test_a_class_that_is_no_method_is_told_why(tmp_path: Path):
    path = tmp_path / "odd.py"
    path.write_text(
        WAVES
        + """

class Oops:
    def bendd(self, score):
        return score


class Forgetful(mp.Learner):
    def __init__(self, heads):
        super().__init__()
        self.height = nn.Parameter(torch.ones(heads))

    def bend(self, score, batch, head, p, r):
        return score
"""
    )
    text = tmp_path / "text.txt"
    text.write_text("every good boy does fine " * 400)
    for scheme, why in (
        ("Oops()", "Oops of odd.py has no verb such as bend, turn or embed; it has `bendd`, did you mean `bend`?"),
        ("Forgetful(heads)", "Forgetful does not keep its argument heads"),
    ):
        assert why in " ".join(refused(text, tmp_path, f"{path}:{scheme}").split())
    assert not (tmp_path / "lab.sqlite").exists()


def test_it_computes_what_the_class_computes():
    own.use([SOURCE])
    schedule = build("WaveBias(heads, height=2)", SWEEP.size.shape, 16, 64)
    score = torch.zeros(4, dtype=torch.float64)
    near = torch.arange(4)
    part = schedule[0].parts[0]
    bent = part.bend(score, near, near, near + 3, near)
    assert torch.allclose(bent, -2 * (1 - torch.cos(torch.tensor(3.0, dtype=torch.float64))) * torch.ones(4).double())


def test_what_it_learns_is_trained_and_counted_as_in_a_method_of_milepost():
    own.use([SOURCE])
    assert learns_bias("LearnedWave(heads)")
    assert not learns_bias("WaveBias(heads)")
    assert not learns_more("LearnedWave(heads)")
    shape, recipe = SWEEP.size.shape, SWEEP.size.recipe
    models = [Model(shape, build(name, shape, 16, 64)) for name in ("LearnedWave(heads)", "WaveBias(heads)")]
    assert models[0].count() - models[1].count() == shape.layers * shape.heads
    trainer = Trainer(models[0], recipe, SWEEP.corpus.batches(0, 2, 16))
    weights = {id(weight) for weight in bias_weights(models[0].schedule)}
    before = [weight.detach().clone() for weight in bias_weights(models[0].schedule)]
    trainer.advance()
    (rate,) = {
        group["lr"] for group in trainer.optimiser.param_groups for each in group["params"] if id(each) in weights
    }
    assert rate == pytest.approx(10 * recipe.rate_at(0))
    assert all((old != new).any() for old, new in zip(before, bias_weights(models[0].schedule), strict=True))


def test_a_sweep_of_own_methods_is_resumed_and_a_changed_file_is_another_cell(tmp_path: Path):
    seen = work(OWN, tmp_path)
    assert {cell.name for cell, event in seen if isinstance(event, Stepped)} == set(OWN.schemes)
    assert work(OWN, tmp_path) == []
    changed = replace(OWN, own=(own.Source("waves.py", WAVES.replace("1 - torch.cos", "2 - torch.cos")),))
    old, new = ([cell.key for cell in each.cells()] for each in (OWN, changed))
    assert not {*old} & {*new}, "an old score would answer for a changed method"


def test_a_changed_file_changes_no_cell_that_does_not_use_it():
    plain = replace(SWEEP, free=False)
    both = replace(plain, own=(SOURCE,))
    assert [cell.key for cell in both.cells()] == [cell.key for cell in plain.cells()]
    assert all(not cell.own for cell in both.cells())


def test_scores_of_a_row_are_made_again_when_its_file_changes(tmp_path: Path):
    rows = (("rope", "Rope(dim) + WaveBias(heads)"),)
    asked_for = replace(SWEEP, schemes=("rope",), free=False, rows=rows, own=(SOURCE,))
    work(asked_for, tmp_path)
    changed = replace(asked_for, own=(own.Source("waves.py", WAVES.replace("1 - torch.cos", "2 - torch.cos")),))
    again = work(changed, tmp_path)
    assert {getattr(event, "variant", None) for _, event in again if not isinstance(event, (Stepped, Described))} == {
        rows[0][1]
    }


def test_a_worker_of_ray_needs_nothing_but_the_cell(tmp_path: Path):
    """What Ray calls on a worker, where no file of methods is and none was read."""
    (cell,) = replace(OWN, schemes=("WaveBias(heads)",)).cells()
    own.use(())
    post = PostHere()
    work_cell(0, 0, cell, set(), OWN.corpus, tmp_path / "far", "cpu", ByUrl("memory://own"), post)
    events = [letter.event for letter in post.letters]
    assert any(isinstance(event, Stepped) and event.done for event in events)


# What is refused


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1\n", "mine.py has no method, a class with a verb such as bend, turn or embed: there is no class in it"),
        ("class Alibi:\n    def bend(self, score, batch, head, p, r): ...\n", "milepost has a method called Alibi"),
        ("class ROPE:\n    def turn(self, x, position): ...\n", "milepost has a method called Rope; rename yours"),
        ("import not_there\n", "No module named 'not_there'; a file of methods is sent to workers alone"),
        ("1 / 0\n", "mine.py cannot be run: ZeroDivisionError: division by zero"),
        ("class wave:\n    def bend(self, score, batch, head, p, r): ...\n", "wave must begin with a capital"),
    ],
    ids=["none", "taken", "taken in another spelling", "import", "error", "small"],
)
def test_a_file_that_cannot_be_used_says_why(text: str, why: str):
    with pytest.raises(ValueError, match=r"mine\.py") as raised:
        own.use([own.Source("mine.py", text)])
    assert why in str(raised.value)


def test_one_name_in_two_files_is_refused():
    other = own.Source("other.py", WAVES + "\n")
    with pytest.raises(ValueError, match=r"waves.py and other.py both have a WaveBias; rename one of them"):
        own.use([SOURCE, other])


def test_a_method_that_reads_the_answer_by_its_embedding_is_refused():
    leaking = own.Source(
        "mine.py",
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Ahead:\n    dim: int\n"
        "    def embed(self, x, index):\n        return x + x.roll(-1, 1)\n",
    )
    with pytest.raises(ValueError, match="lets a token change what is made of those before it"):
        replace(OWN, schemes=("Ahead(width)",), own=(leaking,)).cells()
    with pytest.raises(ValueError, match=r"the row 'Ahead\(width\)' lets a token change"):
        replace(OWN, schemes=("nope",), rows=(("nope", "Ahead(width)"),), own=(leaking,)).cells()


# From a package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with the entry point."""
    (tmp_path / "wavepackage.py").write_text(WAVES)
    about = tmp_path / "wavepackage-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: wavepackage\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[milepost.methods]\nWaveBias = wavepackage:WaveBias\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield about
    sys.modules.pop("wavepackage", None)


def test_a_method_of_a_package_is_found_by_its_entry_point(package: Path):
    schedule = build("WaveBias(heads)", SWEEP.size.shape, 16, 64)
    assert type(schedule[0].parts[0]).__module__ == "wavepackage"
    saved = mp.Scheme.from_dict(schedule[0].to_dict())
    assert saved.same_as(schedule[0])
    assert type(saved.parts[0]) is type(schedule[0].parts[0])


def test_another_version_of_a_package_is_another_cell(package: Path):
    asked_for = replace(OWN, schemes=("WaveBias(heads)",), own=())
    (before,) = asked_for.cells()
    assert before.key == asked_for.cells()[0].key
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: wavepackage\nVersion: 1.1\n")
    assert asked_for.cells()[0].key != before.key


def test_a_name_that_no_package_has_is_still_refused(package: Path):
    with pytest.raises(ValueError, match="no method is called 'SeaBias'"):
        mp.Scheme.from_dict({"scheme": [{"is": "SeaBias"}]})
    with pytest.raises(ValueError, match="is not known"):
        build("SeaBias(heads)", SWEEP.size.shape, 16, 64)


# Saved, and from the command line


def test_a_model_with_an_own_method_loads_where_its_file_is_not(tmp_path: Path):
    work(replace(OWN, schemes=("LearnedWave(heads)",)), tmp_path)
    recorded_in = Store(tmp_path / "lab.sqlite")
    record(recorded_in, replace(OWN, schemes=("LearnedWave(heads)",)), "milepost compare")
    recorded_in.close()
    export(tmp_path, "LearnedWave(heads)", tmp_path / "folder")
    own.use(())
    model = load(tmp_path / "folder")
    assert repr(model.schedule[0].parts[0]) == "LearnedWave(2)"
    assert model(torch.randint(256, (1, 8))).isfinite().all()


@pytest.mark.slow
def test_own_methods_from_the_command_line(waves: Path, tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("every good boy does fine " * 400)
    out = tmp_path / "out"
    first = done(text, out, f"{waves}:WaveBias(heads)", "--set", "steps=2")
    assert "WaveBias(heads)" in first.stdout
    again = done(text, out, "WaveBias(heads)", "--methods", str(waves), "--set", "steps=2")
    assert "1 of 1 models are done already" in again.stderr
    assert "cannot be read" in refused(text, out, "none.py:WaveBias(heads)")


def test_without_its_file_a_name_is_not_known():
    with pytest.raises(ValueError, match=r"WaveBias\(heads\)' is not known"):
        replace(OWN, own=()).cells()
