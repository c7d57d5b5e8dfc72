"""`milepost compare` from end to end, and what it says to bad input: a message, an end with 2, and nothing lost."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from milepost.cli import app
from milepost.lab.cells.events import Stepped
from milepost.lab.cells.store import Score, Store
from milepost.lab.command.asked import engine_of, size_of
from milepost.lab.command.progress import Watched, Whole, duration
from milepost.lab.engines.local import fewest_parts
from milepost.lab.engines.ray_engine import Ray
from milepost.lab.judging.scoring import Judging
from milepost.lab.sweep.sweep import Local, Sweep, run
from milepost.lab.text import corpus
from milepost.lab.training.recipe import SIZES, Recipe

SMALL = {"width": 16, "layers": 1, "heads": 2, "length": 16, "steps": 15, "longest": 32}
TINY = {"width": 16, "layers": 1, "heads": 2, "batch": 2, "steps": 5, "judge": 256, "length": 64, "longest": 128}


def tiny(*words: str) -> list[str]:
    """The options of a tiny size, less what the words set: nothing may be set twice."""
    sets = [word for before, word in pairwise(words) if before == "--set"]
    own = {each.partition("=")[0].strip() for word in sets for each in word.split(",")}
    left = ",".join(f"{name}={value}" for name, value in TINY.items() if name not in own)
    return ["--threads", "1", "--no-free", "--set", left]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(("every", "good", "boy", "does", "fine")[n * n % 5] for n in range(2000)))
    return path


def asked(text: Path, out: Path, *words: str) -> Result:
    """Run the command; words win over the tiny size."""
    command = ["compare", "--text", str(text), "--out", str(out), *tiny(*words), *words]
    return CliRunner().invoke(app(), command, env={"COLUMNS": "120"})


def done(text: Path, out: Path, *words: str) -> Result:
    found = asked(text, out, *words)
    assert found.exit_code == 0, found.stderr + repr(found.exception)
    return found


def refused(text: Path, out: Path, *words: str) -> str:
    """What the command says where it ends with 2."""
    found = asked(text, out, *words)
    assert found.exit_code == 2, repr(found.exception)
    assert found.stdout == ""
    assert "Traceback" not in found.stderr
    return " ".join(found.stderr.split())


# A run


def test_a_run_prints_the_table_and_writes_the_report_the_json_and_the_csv(text: Path, tmp_path: Path):
    files = ["--json", str(tmp_path / "new" / "all.json"), "--csv", str(tmp_path / "new" / "table.csv")]
    first = done(text, tmp_path, "rope", "alibi", *files)
    lines = first.stdout.splitlines()
    assert lines[0].split()[:4] == ["scheme", "reach", "64", "128"]
    assert {line.split()[0] for line in lines[1:3]} == {"RoPE", "ALiBi"}
    assert lines[-1] == f"report: {tmp_path / 'report.html'}"
    assert "train rope: step 5 of 5" in first.stderr
    assert "ALiBi" in (tmp_path / "report.html").read_text()
    assert len(list(csv.reader(io.StringIO((tmp_path / "new" / "table.csv").read_text())))) >= 3
    assert json.loads((tmp_path / "new" / "all.json").read_text())
    assert not list(tmp_path.glob("*-wal")), "the store was not closed"
    again = done(text, tmp_path, "rope", "alibi")
    assert again.stdout == first.stdout
    assert again.stderr == f"milepost: compare: 2 of 2 models are done already, in {tmp_path}\n"


def test_the_report_says_how_to_run_it_again(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    words = ["compare", "Rope(dim, theta=5.0)", "--set", "steps=5,rate=1e-3"]
    monkeypatch.setattr(sys, "argv", ["/somewhere/milepost", *words])
    done(text, tmp_path, "nope")
    page = html.unescape((tmp_path / "report.html").read_text())
    assert "milepost compare 'Rope(dim, theta=5.0)' --set steps=5,rate=1e-3" in page


def scores(out: Path) -> dict[tuple, tuple]:
    store = Store(out / "lab.sqlite")
    found = {row[:4]: row[4:6] for row in store.db.execute("SELECT * FROM scores")}
    store.close()
    return found


def test_without_training_the_trivial_baselines_stand_beside_every_row(text: Path, tmp_path: Path):
    found = done(text, tmp_path, "alibi", "--free").stdout
    for label in ("window *", "window and sinks *", "dynamic NTK", "log-n"):
        assert f"ALiBi: {label}" in found
    assert "ALiBi: window *" not in done(text, tmp_path, "alibi").stdout


@pytest.mark.slow
def test_every_row_there_is_and_rows_of_ones_own_are_judged(text: Path, tmp_path: Path):
    own = "T5Bias(heads) + LogN(trained)"
    found = done(text, tmp_path, "rope", "t5", "--free", "--every", "--row", f"t5: {own}").stdout
    for label in (f"T5: {own}", "T5: window *", "RoPE: Llama 3", "RoPE: YaRN", "RoPE: dynamic YaRN"):
        assert label in found
    # Asked for alone, it is judged on the checkpoint that is there, beside what is trivial.
    words = ["t5", "--row", f"t5: {own}", "--row", "t5: Nope()", "--row", "t5: blind, sharp = Nope() + LogN(trained)"]
    again = done(text, tmp_path, *words)
    assert "train t5: step" not in again.stderr
    for label in ("T5: Nope()", "T5: blind, sharp", "T5: blind, sharp: Nope() + LogN(trained)"):
        assert [line for line in again.stdout.splitlines() if label in line]
    # Scores are kept by expression: another name needs none, and a name goes from one expression to another and back.
    for row in ("dull = Nope() + LogN(trained)", "dull = Nope()", "dull = T5Bias(heads) + LogN(trained)"):
        renamed = done(text, tmp_path, "t5", "--row", f"t5: {row}")
        assert renamed.stderr == f"milepost: compare: 1 of 1 models are done already, in {tmp_path}\n"
        assert f"T5: {row.replace(' =', ':')}" in renamed.stdout


@pytest.mark.slow
def test_names_are_taken_as_people_write_them(text: Path, tmp_path: Path):
    first = done(text, tmp_path, "RoPE", "ALiBi", "T5", "--row", "Rope: RoPE(dim) + rerope(8)")
    labels = {line.split("  ")[0].strip() for line in first.stdout.splitlines()}
    assert {"RoPE", "ALiBi", "T5"} <= labels
    assert "RoPE: RoPE(dim) + rerope(8) " in first.stdout
    again = done(text, tmp_path, "rope", "alibi(heads)", "t5", "--row", "rope: RoPE(dim) + rerope(8)")
    assert again.stderr == f"milepost: compare: 3 of 3 models are done already, in {tmp_path}\n"
    assert again.stdout == first.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["rope", "--set", "length=16,longest=64"],
        ["learned", "--set", "longest=64"],
        ["learned", "--set", "longest=256"],
        ["rope", "--free", "--set", "length=24", "--set", "longest=96"],
        ["rope", "--set", "rate=1e30"],
        ["t5", "--set", "key-heads=1,accumulate=2", "--train-bytes", "1000", "--seeds", "2"],
    ],
    ids=" ".join,
)
def test_unusual_sizes_end_with_a_table(words: list[str], text: Path, tmp_path: Path):
    assert "report: " in done(text, tmp_path, *words).stdout


def test_the_dial_scales_with_what_overrides_it():
    size = size_of("base", {"width": 96, "length": 32, "steps": 50}, "cpu")
    assert size.shape == replace(SIZES["base"].shape, width=96)
    assert size.longest == 32 * 16384 // 512
    # A tenth of the steps at most; and on a CPU bfloat16 would only be slow.
    assert (size.recipe.warmup, size.recipe.precision) == (5, "float32")
    compiled = replace(SIZES["base"].recipe, compiled=True)
    assert size_of("base", {}, "cuda") == replace(SIZES["base"], recipe=compiled)
    assert size_of("demo", {"longest": 300}, "cpu").longest == 300


# Bad input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rope", "alibbi"], "the scheme 'alibbi' is not known; did you mean"),
        (["__import__('os')"], "is not known"),
        (["Rope(dim // 0)"], "the scheme 'Rope(dim // 0)'"),
        (["rope", "Alibi(3)"], "Alibi(3)"),
        (["rope", "--size", "larg"], "--size larg: there are demo, small, base, large; did you mean large?"),
        (["rope", "--set", "longest=4096"], "bytes to judge on, but 4,097 are needed to train at 64 and judge at 4096"),
        (["rope", "--train-bytes", "0"], "--train-bytes 0: give at least 1"),
        (["rope", "--train-bytes", "-5"], "--train-bytes -5: give at least 1"),
        (["rope", "--train-bytes", "100"], "100 bytes to train on, but 128 are needed"),
        (["Learned(trained, width)", "rope"], "index 127 is past the table"),
        (["rope", "--set", "heads=3"], "Shape(width=16, heads=3): heads must divide the width"),
        (["rope", "--set", "accumulate=3"], "Recipe(batch=2, accumulate=3): parts must be of one size"),
        (["rope", "--set", "steps=0"], "compare: --set steps=0: give a whole number of at least 1"),
        (["rope", "--seeds", "0"], "--seeds 0"),
        (["rope", "--jobs", "0"], "--jobs 0: give at least 1"),
        (["rope", "--jobs", "2", "--engine", "ray"], "--jobs 2: only the local engine takes it"),
        (["rope", "--gpus-per-cell", "0.5"], "--gpus-per-cell 0.5: only --engine ray takes it; leave it out"),
        (["rope", "--checkpoints", "there"], "--checkpoints there: only --engine ray takes it; leave it out"),
        (
            ["rope", "--engine", "ray", "--device", "cuda", "--gpus-per-cell", "2"],
            "--gpus-per-cell 2: a model has one GPU, or a share of one such as 0.25",
        ),
        (
            ["rope", "--engine", "ray", "--device", "cpu", "--gpus-per-cell", "0.5"],
            "--gpus-per-cell 0.5: these models are trained on cpu; add --device cuda",
        ),
        (["rope", "--set", "longest=32"], "--set longest=32: less than the 64 trained at; raise it"),
        (["rope", "--recall", "far"], "--recall far: give whole numbers with commas between them, such as 256,3072"),
        (["rope", "--recall", "8"], "copies of 16 bytes cannot stand 8 apart"),
        (["rope", "--recall", "128,200"], "--recall 200: the second copy would end past the longest length, 128"),
        (["rope", "--threads", "0"], "threads"),
        (["rope", "--engine", "slurm"], "--engine slurm: there are local, ray, torchrun"),
        (["rope", "--device", "tpuu"], "--device tpuu"),
        (["rope", "--row", "Rope(dim) + Rerope(8)"], "name the scheme it is judged on, then a colon: 'rope: Rope(dim)"),
        (["rope", "--row", "alibi: Alibi(heads)"], "is on 'alibi', which is not trained; there are rope"),
        (
            ["rope", "--row", "rope: Rope(dim) + T5Bias(heads)"],
            "the row 'Rope(dim) + T5Bias(heads)': its layer 0 is Scheme(",
        ),
        (["rope", "--row", "rope: Rope(dim) + Rerop(8)"], "did you mean Rerope or"),
        (["causal & window(9)", "--tasks", "parity-check"], "on parity-check, where tokens look ahead: it hides them"),
        (["rope", "--every"], "--every --no-free: all the training-free rows, or none; leave one out"),
        (["rope", "--dataset", "books"], "--text and --dataset: one text at a time; leave one out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused_before_anything_is_trained(words: list[str], message: str, text: Path, tmp_path: Path):
    said = refused(text, tmp_path, *words)
    assert message in said
    assert said.startswith("milepost: compare")
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(text: Path, tmp_path: Path):
    said = refused(text, tmp_path, "rope", "--device", "cuda")
    assert said.endswith("compare: --device cuda: torch sees no GPU here; leave --device out to use the CPU")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_only_a_cluster_has_is_looked_for_there(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nodes = [{"Alive": True, "Resources": {"CPU": 4.0}}]
    errors = SimpleNamespace(RayError=RuntimeError)
    ray = SimpleNamespace(is_initialized=lambda: True, nodes=lambda: nodes, exceptions=errors)
    monkeypatch.setitem(sys.modules, "ray", ray)
    words = ["rope", "--engine", "ray", "--device", "cuda"]
    none = "GPUs of one node, but the nodes of this cluster have 4 and 0"
    assert f"a cell asks for 1 CPUs and 1 {none}" in refused(text, tmp_path, *words)
    assert f"a cell asks for 1 CPUs and 0.5 {none}" in refused(text, tmp_path, *words, "--gpus-per-cell", "0.5")


def test_where_checkpoints_travel_is_for_the_engine_to_know(tmp_path: Path):
    asked_for = engine_of("ray", tmp_path, "cuda", 1, 0.25, "s3://bucket")
    assert asked_for == Ray(tmp_path, "cuda", gpus=0.25, checkpoints="s3://bucket")
    assert engine_of("ray", tmp_path, "cpu", 1) == Ray(tmp_path)


def test_a_text_that_cannot_be_read_is_named(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert f"--text {tmp_path}/no.txt: no such file or folder" in refused(tmp_path / "no.txt", tmp_path, "rope")
    (tmp_path / "short.txt").write_text("too short")
    assert "9 bytes to train on, but 128 are needed" in refused(tmp_path / "short.txt", tmp_path, "rope")
    monkeypatch.setitem(sys.modules, "datasets", None)
    found = CliRunner().invoke(app(), ["compare", "--dataset", "books", "--out", str(tmp_path)])
    assert (found.exit_code, found.stdout) == (2, "")
    assert "pip install 'milepost[datasets]'" in found.stderr


def test_places_that_cannot_be_written_to_are_named_before_anything_is_trained(text: Path, tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    assert str(tmp_path / "file") in refused(text, tmp_path / "file", "rope")
    for option in ("--json", "--csv", "--markdown"):
        assert str(tmp_path) in refused(text, tmp_path / option, "rope", option, str(tmp_path))
        assert not list((tmp_path / option).glob("*.safetensors"))


def test_without_tensorboard_it_says_what_to_install(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    said = refused(text, tmp_path, "rope", "--tensorboard", str(tmp_path / "logs"))
    assert "--tensorboard needs tensorboard, which is not installed: pip install 'milepost[lab]'" in said


# Nothing lost


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_processes_that_a_launcher_started_are_told_which_engine_is_theirs(
    engine: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = refused(text, tmp_path, "rope", "--engine", engine)
    assert said == "milepost: compare: 2 processes were started together (WORLD_SIZE); add --engine torchrun"


def test_what_a_run_writes_among_its_texts_is_not_read_by_the_next(text: Path, tmp_path: Path):
    """Under another name the same folder would be another corpus, and everything would be trained again."""
    texts, out = tmp_path / "texts", tmp_path / "texts" / "out" / "compare"
    texts.mkdir()
    (texts / "words.txt").write_text(text.read_text())
    files = ["--json", str(texts / "all.json"), "--csv", str(texts / "sub" / "table.csv")]
    first = done(texts, out, "rope", *files)
    again = done(texts, out, "rope", *files)
    assert again.stdout == first.stdout
    assert "1 of 1 models are done already" in again.stderr
    assert len(list(out.glob("*.safetensors"))) == 1
    assert "give --out a folder of its own" in refused(texts, texts, "rope")


def test_a_row_on_a_scheme_that_is_only_what_it_sees(text: Path, tmp_path: Path):
    scheme = "causal & window(trained // 4)"
    found = done(text, tmp_path, scheme, "--row", f"{scheme}: Nope()", "--tasks", "copy").stdout
    assert "Nope()" in found


def test_a_damaged_checkpoint_is_named_and_without_it_the_numbers_are_the_same(text: Path, tmp_path: Path):
    done(text, tmp_path, "rope")
    before, (path,) = scores(tmp_path), tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:50_000])
    # Everything is known already, so nobody looks at it.
    done(text, tmp_path, "rope")
    for harm in ("cut off", "another model's"):
        if harm != "cut off":
            save_file({"other": torch.zeros(3)}, path, metadata={"step": "5"})
        said = refused(text, tmp_path, "rope", "--set", "longest=256")
        assert f"the checkpoint {path} is damaged (" in said
        assert said.endswith("delete it, and its model will be trained again")
        assert scores(tmp_path).items() >= before.items()
    path.unlink()
    done(text, tmp_path, "rope", "--set", "longest=256")
    assert all(scores(tmp_path)[key] == value for key, value in before.items() if key[2] == "windows")


@pytest.mark.parametrize("from_byte", [0, 4096])
def test_a_damaged_store_is_named_and_moved_away_the_checkpoints_are_used(from_byte: int, text: Path, tmp_path: Path):
    done(text, tmp_path, "rope")
    before, path = scores(tmp_path), tmp_path / "lab.sqlite"
    whole = path.read_bytes()
    path.write_bytes(whole[:from_byte] + b"?" * (len(whole) - from_byte))
    assert f"the store {path} is damaged (" in refused(text, tmp_path, "rope")
    path.rename(tmp_path / "old")
    assert "train rope: step" not in done(text, tmp_path, "rope").stderr
    assert scores(tmp_path) == before


@pytest.mark.slow
def test_a_full_disk_is_told_and_the_same_command_goes_on(text: Path, tmp_path: Path):
    limited = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (10**5,) * 2); from milepost.cli import main; main()"
    words = ["compare", "rope", "--text", str(text), "--out", str(tmp_path), *tiny()]
    found = subprocess.run([sys.executable, "-c", limited, *words], capture_output=True, text=True)
    assert "Traceback" not in found.stderr
    assert found.returncode == 2
    assert "no disk space left for" in found.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"lab.sqlite", ".locks"}
    done(text, tmp_path, "rope")


def test_stopped_by_hand_it_says_that_nothing_is_lost(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stop(*event: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Watched, "__call__", stop)
        found = asked(text, tmp_path, "rope")
    assert found.exit_code == 130
    message = f"stopped; rerun the command to resume from {tmp_path}, each model from its last checkpoint"
    assert found.stderr == f"milepost: compare: {message}\n"
    assert "done already" not in done(text, tmp_path, "rope").stderr
    said = done(text, tmp_path, "rope", "nope").stderr
    assert said.startswith(f"milepost: compare: 1 of 2 models are done already, in {tmp_path}\n")


@pytest.mark.slow
def test_jobs_that_crowd_the_cores_are_noted(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    said = done(text, tmp_path, "rope", "--jobs", "2").stderr
    assert "milepost: compare: 2 jobs of 1 threads each on 1 cores" in said


def test_a_model_that_goes_on_says_from_where(tmp_path: Path):
    size = size_of("demo", SMALL, "cpu")
    here = corpus.of_bytes(b"round and round " * 300, "here")
    cell = Sweep(("rope",), size, here, judging=Judging(32, total=64), threads=1, free=False).cells()[0]
    screen = io.StringIO()
    watched = Watched([cell], Console(file=screen, width=100))
    for step, losses in ((0, []), (10, []), (15, [(14, 1.0)])):
        watched(cell, Stepped(step, losses, 1.0, 10, step == 15))
    lines = screen.getvalue().splitlines()
    assert lines[0] == "train rope: resumes at step 10 of 15"
    assert lines[1].startswith("train rope: step 15 of 15")


# What is seen on the way, and what fits


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5940, "99 min"), (6000, "1 h 40 min")]
)
def test_a_time_is_said_as_people_say_it(seconds: float, words: str):
    assert duration(seconds) == words


def test_the_time_left_is_that_of_the_models_done_for_as_many_as_are_left(monkeypatch: pytest.MonkeyPatch):
    size = size_of("demo", SMALL, "cpu")
    here = corpus.of_bytes(b"round and round " * 300, "here")
    judging = Judging(32, total=64, protocols=("windows",))
    cells = Sweep(("rope", "alibi", "nope", "t5"), size, here, judging=judging, threads=1, free=False).cells()
    screen, now = io.StringIO(), [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    # Of four, one is done already, and one lacks a score alone.
    left = {cells[0].key: 2, cells[1].key: 1, cells[2].key: 2}
    watched = Watched(cells, Console(file=screen, width=100), left)
    now[0] += 60
    for cell, length in ((cells[1], 32), (cells[0], 16), (cells[0], 32), (cells[2], 16), (cells[2], 32)):
        watched(cell, Score(cell.key, "", "windows", length, 1.0, None, 1, {}))
    said = [line for line in screen.getvalue().splitlines() if "models done" in line]
    assert said == ["1 of 3 models done, about 2 min left", "2 of 3 models done, about 30 s left"]
    # A bar is as long as what was left.
    assert all(bar.finished for bar in watched.bars.tasks)


def test_a_stage_counts_the_models_of_those_before_and_after_it(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    whole = Whole()
    said: list[str] = []
    for open_, later in ((3, 5), (5, 0)):
        whole.later = later
        whole.begin(open_)
        whole.done, now[0] = whole.done + 2, now[0] + 20
        said.append(str(whole))
        whole.done += open_ - 2
    assert said == ["2 of 8 models done, about 60 s left", "5 of 8 models done, about 24 s left"]
    assert whole.left == 0


def test_a_terminal_sees_bars_and_the_table_so_far(tmp_path: Path):
    size = size_of("demo", SMALL, "cpu")
    here = corpus.of_bytes(b"round and round " * 300, "here")
    sweep = Sweep(("rope",), size, here, judging=Judging(32, total=64), threads=1, free=False)
    screen, store = io.StringIO(), Store(tmp_path / "lab.sqlite")
    with Watched(sweep.cells(), Console(file=screen, force_terminal=True, width=100)) as watched:
        # Drawn after every event, not four times a second.
        run(sweep, store, Local(tmp_path), lambda *event: (watched(*event), watched._live.refresh()))
    shown = screen.getvalue()
    bits = {score.length: score.mean for score in store.scores(sweep.cells()[0].key) if score.protocol == "windows"}
    store.close()
    assert re.search(r"train rope .* bits .* bytes/s", shown)
    assert re.search(rf"judge rope .* as trained: {bits[16]:.3f} at 16", shown)
    assert re.search(rf"^rope +{bits[16]:.3f} +{bits[32]:.3f}$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("batch", "parts", "least", "message"),
    [
        (64, 1, 4, "--set accumulate=4 fits"),
        (64, 4, 4, "--set accumulate=8 fits"),
        (64, 1, 64, "--set accumulate=64 fits"),
        (6, 1, 3, "--set accumulate=3 fits"),
        (6, 1, 6, "--set accumulate=6 fits"),
        (12, 2, 5, "--set accumulate=6 fits"),
        (1, 1, 2, "not even one text of 512 bytes fits; try a smaller --size, or a shorter --set length=…"),
        (6, 6, 7, "not even one text of 512 bytes fits"),
    ],
)
def test_out_of_memory_the_fewest_parts_that_fit_are_advised(batch: int, parts: int, least: int, message: str):
    tried: list[int] = []

    def fits(recipe: Recipe) -> bool:
        tried.append(recipe.accumulate)
        return recipe.accumulate >= least

    assert fewest_parts(Recipe(batch=batch, accumulate=parts), fits).startswith(message)
    assert all(each > parts and batch % each == 0 for each in tried)
