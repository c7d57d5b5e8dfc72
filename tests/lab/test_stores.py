"""What can be had from a store alone: its report, the difference of two, and a model as a folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner, Result

from milepost import refusal
from milepost.cli import app
from milepost.lab.cells.cell import Cell
from milepost.lab.cells.events import Event
from milepost.lab.cells.store import Store
from milepost.lab.cells.work import load
from milepost.lab.command.progress import Watched
from milepost.lab.command.shown import table
from milepost.lab.exported import export
from milepost.lab.exported import load as load_folder
from milepost.lab.report import gather, to_markdown
from milepost.lab.report import page as whole_page
from milepost.lab.statistics.difference import compared, differ
from milepost.lab.statistics.findings import Findings
from milepost.lab.statistics.measures import paired
from milepost.lab.sweep.recorded import record, recorded
from tests.lab.test_compare import asked
from tests.lab.test_sweep import SWEEP, work

SMALL = replace(SWEEP, free=False)


def said(*words: object) -> Result:
    return CliRunner().invoke(app(), [*map(str, words)], env={"COLUMNS": "160"})


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that was run to its end."""
    folder = tmp_path_factory.mktemp("filled")
    work(SMALL, folder)
    store = Store(folder / "lab.sqlite")
    record(store, SMALL, "milepost compare rope kerple")
    store.close()
    return folder


# The report of any store


def test_what_was_asked_is_read_back_as_it_was(filled: Path):
    store = Store(filled / "lab.sqlite")
    found, command = recorded(store)
    assert command == "milepost compare rope kerple"
    assert replace(found, corpus=SMALL.corpus) == SMALL
    assert [cell.key for cell in found.cells()] == [cell.key for cell in SMALL.cells()]
    first, again = gather(store, SMALL, command), gather(store, found, command)
    store.close()
    assert again == first


def test_a_report_is_written_from_the_store_alone(filled: Path, tmp_path: Path):
    found = said("report", filled, "--json", tmp_path / "all.json")
    assert found.exit_code == 0, found.stderr
    assert "KERPLE" in found.stdout
    assert found.stdout.endswith(f"report: {filled / 'report.html'}\n")
    assert len(json.loads((tmp_path / "all.json").read_text())["rows"]) == 2
    assert "milepost compare rope kerple" in (filled / "report.html").read_text()


def test_a_store_of_before_anything_was_noted_is_reported_too(filled: Path, tmp_path: Path):
    store = Store(tmp_path / "lab.sqlite")
    old = Store(filled / "lab.sqlite")
    old.db.backup(store.db)
    old.close()
    store.db.execute("DELETE FROM notes")
    found, _ = recorded(store)
    assert [cell.key for cell in found.cells()] == [cell.key for cell in SMALL.cells()]
    store.close()
    assert "RoPE" in said("report", tmp_path).stdout


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError("the disk is gone")], ids=["by hand", "by an error"])
def test_a_sweep_that_ends_early_writes_its_report(
    stop: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    text = tmp_path / "text.txt"
    text.write_text("every good boy does fine " * 400)

    def watch(self: Watched, cell: Cell, event: Event) -> None:
        if cell.name == "alibi":
            raise stop

    with monkeypatch.context() as patch:
        patch.setattr(Watched, "__call__", watch)
        found = asked(text, tmp_path / "out", "nope", "alibi", "--markdown", str(tmp_path / "so far.md"))
    assert found.exit_code == (130 if stop is KeyboardInterrupt else 2)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Not finished: 1 of 2 models are fully judged" in page
    assert "the report of what was found so far" in found.stderr
    assert "Not finished: 1 of 2 models" in (tmp_path / "so far.md").read_text()
    again = said("report", tmp_path / "out")
    assert again.exit_code == 0
    assert "NoPE" in again.stdout


def test_a_folder_without_a_store_is_named_and_none_is_made(tmp_path: Path):
    new = ("--to", "milepost", "--out", tmp_path / "new")
    for words in (("report", tmp_path), ("diff", tmp_path, tmp_path), ("export", tmp_path, "rope", *new)):
        found = said(*words)
        assert found.exit_code == 2
        assert f"{words[0]}: {tmp_path}: there is no lab.sqlite in it" in found.stderr
    assert not list(tmp_path.iterdir())


# Two stores


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same sweep with another rate and one scheme less."""
    folder = tmp_path_factory.mktemp("other")
    size = replace(SMALL.size, recipe=replace(SMALL.size.recipe, rate=2e-2))
    asked_for = replace(SMALL, schemes=("rope",), size=size)
    work(asked_for, folder)
    store = Store(folder / "lab.sqlite")
    record(store, asked_for, "milepost compare rope --set rate=2e-2")
    store.close()
    return folder


def test_a_row_of_ones_own_is_the_same_by_its_expression_and_not_by_its_name(filled: Path):
    store = Store(filled / "lab.sqlite")
    findings = gather(store, recorded(store)[0])
    store.close()
    kerple = findings.rows[1]

    def named(*rows: tuple[str, str]) -> Findings:
        return replace(findings, rows=tuple(replace(kerple, variant=name, text=text, own=True) for name, text in rows))

    one, two = named(("x", "A()"), ("y", "B()"), ("z", "C()")), named(("x", "D()"), ("w", "B()"), ("z", "C()"))
    assert differ(one, two) == [("KERPLE: x", "A()", "D()")]
    assert list(dict.fromkeys(each.row.variant for each in compared(one, two))) == ["y", "z"]
    # One of ours is never one of the user's, whatever that is called.
    assert not list(compared(replace(one, rows=(replace(one.rows[0], own=False),)), two))


def test_rows_with_fewer_seeds_say_so(filled: Path):
    store = Store(filled / "lab.sqlite")
    findings = gather(store, replace(recorded(store)[0], seeds=(0, 1)))
    store.close()
    assert [row.few for row in findings.rows] == ["1 seed", "1 seed"]
    page = to_markdown(findings)
    assert "| RoPE (1 seed) |" in page
    assert '<em class="tag">1 seed</em>' in whole_page(findings)
    assert "Not finished: 2 of 4 models are fully judged" in page
    console = Console(width=160)
    with console.capture() as seen:
        console.print(table(findings))
    assert "RoPE (1 seed)" in seen.get()
    assert "Not finished: 2 of 4 models" in seen.get()
    assert "One seed: these are differences of checkpoints" in seen.get()


def test_two_stores_differ_by_what_was_asked_and_by_what_was_found(filled: Path, other: Path):
    found = []
    for folder in (filled, other):
        store = Store(folder / "lab.sqlite")
        found.append(gather(store, recorded(store)[0]))
        store.close()
    assert differ(*found) == [("recipe: rate", "0.01", "0.02")]
    rows = list(compared(*found))
    assert [(each.row.name, each.length) for each in rows] == [("rope", 16), ("rope", 32), ("rope", 64)]
    for each in rows:
        one, two = (findings.of("rope").at("windows", each.length) for findings in found)
        assert each.difference == paired(two, one)
        assert each.difference.mean == pytest.approx(two.mean - one.mean, abs=1e-6)


def test_the_difference_from_the_command_line(filled: Path, other: Path):
    found = said("diff", filled, other)
    assert found.exit_code == 0, found.stderr
    assert "recipe: rate" in found.stdout
    assert f"only in {filled}: KERPLE" in " ".join(found.stdout.split())
    same = said("diff", other, other)
    assert "both were asked for the same" in same.stdout
    assert "0.000" in same.stdout


def test_a_difference_says_which_seeds_it_is_over(filled: Path, tmp_path: Path):
    more = replace(SMALL, schemes=("rope",), seeds=(0, 1))
    work(more, tmp_path)
    store = Store(tmp_path / "lab.sqlite")
    record(store, more, "milepost compare rope --seeds 2")
    store.close()
    found = " ".join(said("diff", filled, tmp_path).stdout.split())
    assert "seeds (0,) (0, 1)" in found
    assert "It is over the seeds that both have; the columns before it are over all of each." in found
    assert f"only in {filled}: KERPLE" in found


def test_who_has_read_enough_hears_nothing(filled: Path):
    """Whether that is found out while the table is printed, or after."""
    # From its file: the package would load torch.
    refused = (
        f"import runpy\nrefuse = runpy.run_path({refusal.__file__!r})['refuse']\n"
        "try:\n    raise BrokenPipeError\nexcept OSError:\n    refuse('report')"
    )
    for words in (["-m", "milepost", "report", str(filled)], ["-c", refused]):
        reads, writes = os.pipe()
        os.close(reads)
        found = subprocess.run([sys.executable, *words], stdout=writes, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writes)
        assert (found.returncode, found.stderr) == (1, "")


# A model as a folder


def test_no_two_models_share_a_folder(tmp_path: Path):
    texts = ("[Rope(dim) + LogN(trained), Nope()]", "[Rope(dim), LogN(trained) + Nope()]", "rope")
    size = replace(SMALL.size, shape=replace(SMALL.size.shape, layers=2))
    sweep = replace(SMALL, schemes=texts, seeds=(0, 1), size=size)
    work(sweep, tmp_path)
    store = Store(tmp_path / "lab.sqlite")
    record(store, sweep, "milepost compare")
    store.close()
    for text in texts:
        for seed in (0, 1):
            export(tmp_path, text, tmp_path / "exported" / f"{texts.index(text)}-{seed}", seed)
    folders = sorted((tmp_path / "exported").iterdir())
    # The same model once more.
    export(tmp_path, "RoPE", tmp_path / "exported" / "2-1", 1)
    kept = (folders[0] / "milepost.json").read_text()
    with pytest.raises(ValueError, match=r"(?s)has another model, .*of seed \d, which differs in its scheme.*another"):
        export(tmp_path, "rope", folders[0])
    assert (folders[0] / "milepost.json").read_text() == kept
    refused = said("export", tmp_path, "rope", "--to", "milepost", "--out", folders[0])
    assert refused.exit_code == 2
    assert "this folder is not empty; name another" in refused.stderr
    # The same scheme, seed and text, trained for longer.
    longer = tmp_path / "exported" / "2-1" / "milepost.json"
    longer.write_text(re.sub(r'"steps": (\d+)', r'"steps": 1\1', longer.read_text()))
    with pytest.raises(ValueError, match="differs in its recipe"):
        export(tmp_path, "rope", longer.parent, 1)


def test_an_exported_model_computes_what_was_trained(filled: Path, tmp_path: Path):
    found = said("export", filled, "kerple", "--to", "milepost", "--out", tmp_path / "folder")
    assert found.exit_code == 0, found.stderr
    assert f'milepost.lab.exported.load("{tmp_path / "folder"}")' in found.stdout
    kerple = SMALL.cells()[1]
    tokens = torch.randint(256, (2, 20))
    with torch.no_grad():
        trained = load(kerple, filled / f"{kerple.key}.safetensors", "cpu")(tokens)
        assert torch.equal(load_folder(tmp_path / "folder")(tokens), trained)
    about = json.loads((tmp_path / "folder" / "milepost.json").read_text())
    assert about["recipe"]["steps"] == 14
    assert about["seed"] == 0
    assert {path.name for path in (tmp_path / "folder").iterdir()} == {"model.safetensors", "milepost.json"}


def test_a_model_is_found_under_every_spelling(filled: Path, tmp_path: Path):
    for number, name in enumerate(("RoPE", "Rope(dim)", "rope")):
        assert export(filled, name, tmp_path / str(number)) == filled / f"{SMALL.cells()[0].key}.safetensors"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["alibi"], "alibi: no model of that name is in {}; there are rope, kerple"),
        (["no such scheme (("], "no such scheme ((: no model of that name is in {}"),
        (["rope", "--seed", "4"], "rope, seed 4: there are the seeds 0"),
    ],
    ids=["another", "no expression", "seed"],
)
def test_a_model_that_is_not_there_is_refused(words: list[str], why: str, filled: Path):
    found = said("export", filled, *words, "--to", "milepost", "--out", filled / "new")
    assert found.exit_code == 2
    assert why.format(filled) in found.stderr


def test_a_model_that_is_not_trained_to_its_end_is_refused(tmp_path: Path):
    def stop(cell: Cell, event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(SMALL, tmp_path, stop)
    with pytest.raises(ValueError, match="rope is not trained to its end yet"):
        export(tmp_path, "rope", tmp_path / "folder")


@pytest.mark.slow
def test_a_rope_model_is_exported_to_transformers(filled: Path, tmp_path: Path):
    pytest.importorskip("transformers")
    from transformers import AutoModelForCausalLM

    found = said("export", filled, "rope", "--to", "transformers", "--out", tmp_path / "new")
    assert found.exit_code == 0, found.stderr
    rope, tokens = SMALL.cells()[0], torch.randint(256, (1, 12))
    with torch.no_grad():
        ours = load(rope, filled / f"{rope.key}.safetensors", "cpu")(tokens)
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "new")(tokens).logits
    assert torch.allclose(ours, theirs, atol=1e-4)
    refused = said("export", filled, "kerple", "--to", "transformers", "--out", tmp_path / "other")
    assert "export a model that was trained with rope" in refused.stderr
