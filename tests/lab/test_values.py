"""What the lab decides by is a value, never the words in which somebody would say it."""

from __future__ import annotations

import contextlib
import errno
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

import milepost as mp
from milepost.attend import Explanation, explain
from milepost.catalogue.find import find
from milepost.catalogue.page import facts
from milepost.catalogue.sheet import sheets
from milepost.lab.cells.store import Store
from milepost.lab.report import gather, page, views
from milepost.lab.statistics.findings import Equation, Findings, Term
from milepost.lab.tasks import DEPTHS, PROTOCOLS, TASKS, Needle, Passkey, protocols
from milepost.lab.training import model as models
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.train import write_checkpoint
from tests.lab.test_report import scored, sweep
from tests.lab.test_table import RAN, anchors, row

SHAPE = Shape(width=16, layers=1, heads=2)


# Backends


@pytest.mark.parametrize("scheme", [mp.Scheme(mp.Rope(8), mp.causal), mp.Scheme(mp.Alibi(2), mp.causal)])
def test_an_explanation_names_every_backend_that_could_run_the_call(scheme: mp.Scheme):
    q = torch.zeros(1, 2, 4, 8)
    found = explain(q, q, q, scheme)
    assert found.backend in found.able
    for name in (*found.able, *found.reasons):
        with contextlib.nullcontext() if name in found.able else pytest.raises(mp.CannotRun):
            mp.attend(q, q, q, scheme, backend=name)


@pytest.mark.parametrize(("able", "chosen"), [(("sdpa", "chunked"), "sdpa"), (("flex", "chunked"), "chunked")])
def test_which_backend_a_model_takes_does_not_hang_on_wording(
    able: tuple[str, ...], chosen: str, monkeypatch: pytest.MonkeyPatch
):
    found = Explanation("flex", dict.fromkeys(able, 1.0), {"sdpa": "could not care less"})
    monkeypatch.setattr(models, "explain", lambda *call: found)
    assert Model(SHAPE, mp.Scheme(mp.causal)).uncompiled().backends == [chosen]


@pytest.mark.parametrize(("backend", "chosen"), [("triton", None), ("sdpa", None), ("flex", "chunked")])
def test_on_a_gpu_a_model_leaves_the_choice_to_attend_unless_that_compiles(
    backend: str, chosen: str | None, monkeypatch: pytest.MonkeyPatch
):
    found = Explanation(backend, {backend: 1.0, "chunked": 2.0}, {})
    monkeypatch.setattr(models, "explain", lambda *call: found)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert Model(SHAPE, mp.Scheme(mp.causal)).uncompiled().backends == [chosen]


# Equations


def test_an_equation_is_drawn_from_its_parts(tmp_path: Path):
    store, asked = Store(tmp_path / "lab.sqlite"), sweep("alibi-rope", "hwfa")
    for cell in asked.cells():
        scored(store, cell, 2.0)
    both, layered = gather(store, asked).rows
    store.close()
    (whole,) = both.equations
    assert whole.layers == ""
    assert [(each.verb, each.part) for each in whole.terms] == [
        ("turn", "Rope(8)"), ("bend", "Alibi(2)"), ("see", "causal"),
    ]  # fmt: skip
    assert whole.terms[0].formula.startswith("turn(x, p)[n]")
    assert whole.terms[2].formula == ""
    assert [each.layers for each in layered.equations] == ["layer 0 of 0–1", "layer 1 of 0–1"]
    assert [each.terms[0].part for each in layered.equations] == ["Rope(8)", "Nope()"]
    assert layered.equations[1].terms[0].verb == ""


def test_what_is_printed_of_a_scheme_is_not_read_again():
    """A formula with what used to part names from formulas stays whole."""
    terms = (Term("bend", "Odd(a:  b)", "score_i:  x  ←  y"), Term("", "Nope()", ""))
    odd = replace(
        row("rope", "", (2.0, 2.0, 2.0, 2.0)), equation="?", equations=(Equation("layer 2 of 0–2", "out_i", terms),)
    )
    drawn = page(Findings((odd,), RAN))
    assert '<p class="sum">layer 2 of 0–2: out<sub>i</sub></p>' in drawn
    assert '<b>bend</b><code>Odd(a:  b)</code><span class="does">score<sub>i</sub>:  x  ←  y</span>' in drawn
    assert '<b></b><code>Nope()</code><span class="does"></span>' in drawn


def test_pictures_are_counted_and_not_their_tags():
    found = anchors()
    assert [len(each) for each in (views.by_length(found, "windows"), views.by_distance(found, "recall"))] == [2, 2]
    rows = [replace(each, variant="<figure") if each.variant == "dynamic NTK" else each for each in found.rows]
    named = replace(found, rows=tuple(rows))
    assert page(named).count('class="panels odd"') == page(found).count('class="panels odd"')


# Tasks


@pytest.mark.parametrize("name", TASKS)
def test_a_protocol_knows_its_task_and_its_depth(name: str):
    own = [PROTOCOLS[key] for key in protocols(name)]
    assert {each.name for each in own} == {name}
    hides = isinstance(TASKS[name], (Needle, Passkey))
    assert [each.depth for each in own] == (list(DEPTHS) if hides else [None])
    for each in own:
        assert each.task == (replace(TASKS[name], depth=each.depth) if hides else TASKS[name])
    # What scores have been kept under so far.
    assert protocols(name) == ([f"task:{name}, depth {depth:g}" for depth in DEPTHS] if hides else [f"task:{name}"])


# Disks


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "Auf dem Gerät ist kein Speicherplatz mehr verfügbar"), True),
        (SafetensorError("Erreur: plus d'espace (os error 28)"), True),
        (SafetensorError("I/O error: File too large (os error 27)"), True),
        (OSError(errno.EACCES, "No space left for strangers"), False),
        (SafetensorError("I/O error: Permission denied (os error 13)"), False),
    ],
)
def test_a_full_disk_is_known_by_its_number(error: Exception, full: bool, tmp_path: Path, monkeypatch):
    def fail(*given: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    with pytest.raises(OSError, match="no disk space left for" if full else "cannot be written"):
        write_checkpoint(tmp_path / "cell.safetensors", {"weight": torch.ones(2)}, {})


# The catalogue


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Rope", "yes: shifting all positions changes nothing"),
        ("Learned", "no: absolute positions matter"),
        ("Partial", "depends on its arguments"),
        ("Pose", None),
        ("attend", None),
    ],
)
def test_a_page_reads_what_is_relative_from_the_sheet(name: str, said: str | None):
    found = dict(facts(find(name, sheets())))
    assert found.get("relative") == (None if said is None else [said])
    assert ("backends" in found) == (said is not None)
