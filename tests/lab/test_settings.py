"""`milepost compare --set`: every setting reaches the sweep, and what cannot be set is refused at once."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from milepost.cli import app
from milepost.lab.cells.store import Store
from milepost.lab.command.asked import judging_of, size_of
from milepost.lab.command.settings import SETTINGS, check_words, settings_of
from milepost.lab.sweep.recorded import recorded
from milepost.lab.sweep.sweep import Sweep
from milepost.lab.training.model import Shape
from milepost.lab.training.recipe import SIZES, Recipe
from tests.lab.test_compare import done, refused, tiny
from tests.lab.test_compare import text as text

# What is taken


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ([], {}),
        (["steps=3000,width=256"], {"steps": 3000, "width": 256}),
        (["steps=3000", "width=256"], {"steps": 3000, "width": 256}),
        ([" steps = 3000 ,\twidth=256 "], {"steps": 3000, "width": 256}),
        (["rate=1e-3"], {"rate": 0.001}),
        (["rate=0.001"], {"rate": 0.001}),
        (["rate=2"], {"rate": 2.0}),
        (["judge=1_000_000"], {"judge": 1000000}),
        (["judge=1000000"], {"judge": 1000000}),
        (["key-heads=1"], {"key_heads": 1}),
        (["key_heads=1"], {"key_heads": 1}),
        *(([f"compile={word}"], {"compile": True}) for word in ("on", "yes", "true", "On")),
        *(([f"compile={word}"], {"compile": False}) for word in ("off", "no", "false", "OFF")),
    ],
)
def test_settings_are_read_as_people_write_them(texts: list[str], found: dict[str, object]):
    assert settings_of(texts) == found


@pytest.mark.parametrize("name", SIZES)
def test_where_nothing_is_set_a_size_is_what_it_is(name: str):
    size = SIZES[name]
    for device in ("cpu", "cuda"):
        precision = "float32" if device == "cpu" else size.recipe.precision
        recipe = replace(size.recipe, compiled=device == "cuda", precision=precision)
        assert size_of(name, settings_of([]), device) == replace(size, recipe=recipe)
    assert judging_of(size, None, None).total == size.judged


REACHES: dict[str, tuple[str, Callable[[Sweep], object], object]] = {
    "length": ("32", lambda sweep: sweep.size.recipe.length, 32),
    "longest": ("256", lambda sweep: sweep.size.longest, 256),
    "steps": ("7", lambda sweep: sweep.size.recipe.steps, 7),
    "batch": ("6", lambda sweep: sweep.size.recipe.batch, 6),
    "rate": ("3e-4", lambda sweep: sweep.size.recipe.rate, 3e-4),
    "width": ("24", lambda sweep: sweep.size.shape.width, 24),
    "layers": ("3", lambda sweep: sweep.size.shape.layers, 3),
    "heads": ("4", lambda sweep: sweep.size.shape.heads, 4),
    "key-heads": ("1", lambda sweep: sweep.size.shape.key_heads, 1),
    "accumulate": ("2", lambda sweep: sweep.size.recipe.accumulate, 2),
    "compile": ("on", lambda sweep: sweep.size.recipe.compiled, True),
    "judge": ("512", lambda sweep: sweep.judging and sweep.judging.total, 512),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_reaches_the_sweep(name: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kept: list[Sweep] = []

    def keep(sweep: Sweep, store: Store, *rest: object) -> None:
        kept.append(sweep)
        store.close()

    monkeypatch.setattr("milepost.lab.command.compare._work", keep)
    value, read, found = REACHES[name]
    done(text, tmp_path, "rope", "--device", "cpu")
    done(text, tmp_path, "rope", "--device", "cpu", "--set", f"{name}={value}")
    before, after = kept
    assert read(before) != found
    assert read(after) == found
    assert before.cells() != after.cells(), "it is in no cell"


def test_the_longest_follows_the_length_unless_it_is_set():
    assert size_of("demo", settings_of(["length=32"]), "cpu").longest == 512
    assert size_of("demo", settings_of(["length=32,longest=64"]), "cpu").longest == 64


def test_the_command_that_is_recorded_runs_again(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    words = ["compare", "nope", "--text", str(text), "--out", str(tmp_path), *tiny(), "--set", " rate = 1e-3"]
    monkeypatch.setattr(sys, "argv", ["/somewhere/milepost", *words])
    assert CliRunner().invoke(app(), words).exit_code == 0
    store = Store(tmp_path / "lab.sqlite")
    command = recorded(store)[1]
    store.close()
    assert shlex.split(command) == ["milepost", *words]
    assert "1 of 1 models are done already" in CliRunner().invoke(app(), shlex.split(command)[1:]).stderr


# What is refused

ALL = "length, longest, steps, batch, rate, width, layers, heads, key-heads, accumulate, compile, judge"
COMMAS = "an empty setting; give some with commas between them, such as steps=3000,width=256"
ABOVE = "give a number above 0, such as 0.001 or 1e-3"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["step=3"], f"--set step=3: no setting is called 'step'; there are {ALL}; did you mean steps?"),
        (["zzz=3"], f"--set zzz=3: no setting is called 'zzz'; there are {ALL}"),
        (["steps=3,speed"], f"--set speed: no setting is called 'speed'; there are {ALL}"),
        (["=3"], f"--set =3: no setting is called ''; there are {ALL}"),
        ([""], f"--set '': {COMMAS}"),
        ([" "], f"--set ' ': {COMMAS}"),
        (["steps=3,"], f"--set 'steps=3,': {COMMAS}"),
        (["steps=3,,width=8"], f"--set 'steps=3,,width=8': {COMMAS}"),
        (["steps"], "--set steps: it has no value; write steps=…"),
        (["steps= "], "--set steps=: it has no value; write steps=…"),
        (["steps=3,steps=4"], "--set steps=4: steps is set twice; leave one out"),
        (["steps=3", "steps=3"], "--set steps=3: steps is set twice; leave one out"),
        (["key-heads=1", "key_heads=2"], "--set key_heads=2: key-heads is set twice; leave one out"),
        *(
            ([f"{name}={value}"], f"--set {name}={value}: give a whole number of at least {least}")
            for name, least in {
                "length": 2, "longest": 2, "steps": 1, "batch": 1, "width": 1, "layers": 1, "heads": 1, "key-heads": 1,
                "accumulate": 1, "judge": 1,
            }.items()
            for value in (str(least - 1), "-5", "many", "2.5", "1e3", "nan")
        ),
        *(([f"rate={value}"], f"--set rate={value}: {ABOVE}") for value in ("0", "-1", "nan", "inf", "1e999", "fast")),
        *(([f"compile={value}"], f"--set compile={value}: give on or off") for value in ("maybe", "2", "onn")),
    ],
)  # fmt: skip
def test_what_cannot_be_set_is_refused(texts: list[str], message: str):
    with pytest.raises(ValueError) as raised:
        settings_of(texts)
    assert str(raised.value) == message


def test_a_refusal_comes_before_anything_else_is_looked_at(tmp_path: Path):
    said = refused(tmp_path / "no such text", tmp_path / "out", "rope", "--set", "step=3")
    assert said.startswith("milepost: compare: --set step=3: no setting is called 'step'")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recipe(length=1), r"^Recipe\(length=1\): length must be at least 2$"),
        (lambda: Recipe(steps=0), r"^Recipe\(steps=0\): steps must be at least 1$"),
        (lambda: Recipe(rate=float("nan")), r"^Recipe\(rate=nan\): rate must be finite$"),
        (lambda: Shape(key_heads=0), r"^Shape\(key_heads=0\): key_heads must be at least 1$"),
    ],
)
def test_sizes_made_in_python_are_checked_too(make: Callable[[], object], message: str):
    with pytest.raises(ValueError, match=message):
        make()


# Settings written as options of their own, as they once were


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rope --steps 3000", "--steps 3000: write --set steps=3000"),
        ("--steps=3000 rope", "--steps=3000: write --set steps=3000"),
        ("rope --width 96 --seeds 2 --key-heads 3", "--width 96 --key-heads 3: write --set width=96,key-heads=3"),
        ("rope --compile", "--compile: write --set compile=on"),
        ("--no-compile rope", "--no-compile: write --set compile=off"),
        ("--compile=off rope", "--compile=off: write --set compile=off"),
        ("rope --rate", "--rate: write --set rate=…"),
        ("rope --rate --every", "--rate: write --set rate=…"),
    ],
)
def test_whoever_writes_a_setting_as_an_option_is_told_how_it_is_written(words: str, message: str, tmp_path: Path):
    found = CliRunner().invoke(app(), ["compare", "--out", str(tmp_path / "out"), *shlex.split(words)])
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == f"milepost: compare: {message}\n"


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "compile"])
def test_no_setting_is_an_option(name: str):
    with pytest.raises(ValueError, match=f"^--{name} 7: write --set {name}=7$"):
        check_words(["rope", f"--{name}", "7"])


def test_other_words_are_left_to_the_command(tmp_path: Path):
    check_words(["steps", "rope", "--set", "steps=3", "--row", "steps: Rope(dim)", "-steps", "--stepss", "3"])
    found = CliRunner().invoke(app(), ["compare", "rope", "--stepss", "3", "--out", str(tmp_path / "out")])
    assert found.exit_code == 2
    assert "No such option: --stepss" in found.stderr
