"""`milepost extend`: candidates measured, the best kept, saved and read again."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2VLConfig
from typer.testing import CliRunner

import milepost as mp
from milepost.cli import app
from milepost.hf import choose, extend, load, plan, save
from milepost.hf.choosing import choose as choosing
from milepost.hf.choosing.command import digest_of
from milepost.hf.choosing.kept import NAME, Kept
from milepost.hf.choosing.rule import MARGIN, Difference, chosen, ranked, standing
from milepost.hf.choosing.trial import Result
from milepost.hf.files import small
from milepost.hf.files.read import read_model
from milepost.hf.measuring.judged import Judged, Row
from milepost.hf.model.extension import extension_of
from milepost.lab.statistics.intervals import one_sided
from milepost.lab.text.corpus import of_bytes
from milepost.lab.training.model import Shape
from milepost.lab.training.recipe import Recipe, Size

LETTERS = string.ascii_lowercase + " ."
WORDS = "the cat sat on a mat and saw that the rat ran far. " * 40


def llama(**options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, max_position_embeddings=32, **sizes, **options)).eval()


def ids() -> torch.Tensor:
    return torch.tensor([LETTERS.index(letter) for letter in WORDS])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer of letters, as users have one on a disk."""
    path = tmp_path_factory.mktemp("model")
    llama().save_pretrained(path)
    tokenizer = Tokenizer(models.WordLevel({letter: n for n, letter in enumerate(LETTERS)}, unk_token="."))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    return path


LOSS = {"stock": 9.0, "self-extend": 2.0, "dual chunk": 2.0, "YaRN": 2.3, "ReRoPE, sinks kept": 1.99}
"""Nats of each row at the target; the window has 2, and so has every row within its length."""
COPY = {"self-extend": 0.5, "dual chunk": 1.0, "ReRoPE, sinks kept": 1.2}
"""Nats on passages that come again; 5 where they are not seen."""


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Rows whose scores are made up: the name, the tokens that are given and how many texts, of every pass."""
    calls: list[tuple[str, int, int]] = []

    def judge(row: Row, ids: torch.Tensor, last: int) -> Judged:
        calls.append((row.name, row.given(ids[:, :-1]).shape[1], len(ids)))
        nats = torch.full((len(ids), last), 2.0 if row.window else LOSS[row.name])
        # What is judged is as hard as its text; what comes again is behind it, 8 tokens at 4 depths of 2 tokens.
        nats += 0.001 * ids[:, -last:] % 7
        nats[:, -8:] = 5.0 if row.window else COPY.get(row.name, 5.0)
        return Judged(nats, nats, torch.zeros_like(nats, dtype=torch.bool))

    monkeypatch.setattr(choosing, "judge", judge)
    monkeypatch.setattr(choosing, "seconds_of", lambda row, ids, last: 1.0)
    return calls


Calls = list[tuple[str, int, int]]
QUIET: dict[str, Any] = {"to": 64, "windows": 3, "last": 8, "progress": False}


def test_of_the_rows_that_read_as_well_as_the_window_the_one_that_recalls_best_is_chosen(judged: Calls):
    found = choose(llama(), ids(), **QUIET)
    assert found.best is not None
    assert found.best.name == "self-extend"
    by_row = {each.row: each for each in found.standings}
    assert {row: each.verdict for row, each in by_row.items() if each.texts == 3} == {"self-extend": "within"}
    assert by_row["stock"].verdict == by_row["YaRN"].verdict == "above"
    assert by_row["self-extend"].recalled == pytest.approx(4.5)
    assert "chosen at 64: self-extend" in str(found)
    assert json.loads(found.to_json())["chosen"] == "self-extend"


def test_a_quick_choice_makes_eight_long_passes(judged: Calls):
    choose(llama(), ids(), **QUIET)
    long = [row for row, given, _ in judged if given == 64]
    assert long == ["stock", "self-extend", "dual chunk", "YaRN", "ReRoPE, sinks kept", "self-extend", "dual chunk",
                    "self-extend"]  # fmt: skip
    # Beside them the window, and what it costs within the trained length.
    assert {(row, given) for row, given, _ in judged if given != 64} == {("stock", 32), ("self-extend", 32)}


def test_a_thorough_one_reads_every_ending_with_every_candidate(judged: Calls, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choosing, "THOROUGH", 4)
    names = [each.name for each in plan(llama().config, 64).candidates]
    for name in names:
        monkeypatch.setitem(LOSS, name, LOSS.get(name, 2.5))
    found = choose(llama(), ids(), to=64, last=8, progress=False, thorough=True)
    assert {each.texts for each in found.standings} == {4}
    assert {each.row for each in found.standings} | set(found.left_out) == {"stock", *names}
    assert list(found.left_out) == ["streaming"]


def test_where_none_reads_as_well_none_is_chosen_and_the_price_is_said(judged: Calls, monkeypatch: pytest.MonkeyPatch):
    for row in ("self-extend", "dual chunk", "ReRoPE, sinks kept"):
        monkeypatch.setitem(LOSS, row, 2.1)
    found = choose(llama(), ids(), **QUIET)
    assert found.best is None
    assert "none: at 64 no row is shown to read within 0.02 nats of the window with sinks. Of those that" in str(found)
    with pytest.raises(ValueError, match=r'none: at 64 no row.*extend\(model, \*plan\(model, to=64\)\["self-extend"\]'):
        extend(llama(), to=64, text=ids(), windows=3, last=8, progress=False)


def test_a_row_that_was_given_up_is_not_denied_to_read_as_well(judged: Calls, monkeypatch: pytest.MonkeyPatch):
    for row, (loss, copies) in {"YaRN": (2.0, 3.0), "self-extend": (2.0, 0.2), "dual chunk": (2.0, 0.1)}.items():
        monkeypatch.setitem(LOSS, row, loss)
        monkeypatch.setitem(COPY, row, copies)
    found = choose(llama(), ids(), **QUIET)
    kept, given_up = found.standings[0], next(each for each in found.standings if each.row == "YaRN")
    assert (kept.texts, given_up.texts, given_up.verdict) == (3, 1, "within")
    dear = [replace(each, more=Difference(0.1, 0.09, 0.11, 3)) if each.texts == 3 else each for each in found.standings]
    said = replace(found, best=None, standings=tuple(dear)).verdict()
    assert "no row that read all endings" in said
    assert "--thorough, gives up none" in said


def test_a_model_that_needs_nothing_is_told_so(judged: Calls, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(LOSS, "stock", 2.0)
    monkeypatch.setitem(COPY, "stock", 0.1)
    found = choose(llama(), ids(), **QUIET)
    assert found.stock
    assert found.best is None
    assert "nothing needs to be changed" in found.verdict()


def results(*blocks: float, copy: float = 1.0) -> dict[int, Result]:
    return {n: Result((each, each + 0.001), (copy,), None) for n, each in enumerate(blocks)}


def test_the_verdict_is_by_one_sided_intervals():
    window = results(*[2.0] * 12, copy=5.0)
    alike, worse = (standing(name, results(*[nats] * 12), window) for name, nats in (("one", 2.0), ("two", 2.1)))
    assert (alike.verdict, worse.verdict) == ("within", "above")
    unsure = standing("three", results(*[1.9, 2.15] * 6, copy=0.5), window)
    assert unsure.more.mean == pytest.approx(0.025)
    assert unsure.verdict == "undecided"
    # One that may be too dear is not chosen, however well it recalls; of those that are, the cheapest goes on.
    assert [each.row for each in ranked([worse, unsure, alike])] == ["one", "three", "two"]
    assert chosen([alike, worse, unsure]) is alike
    assert chosen([worse, unsure]) is None
    cheap = standing("four", results(*[1.9, 2.13] * 6, copy=0.5), window)
    assert cheap.more.mean < MARGIN
    assert [each.row for each in ranked([alike, cheap])] == ["four", "one"]


def test_an_interval_to_one_side_is_students():
    # 0.95 and 0.975 points of Student's t with 5 degrees of freedom, from a printed table.
    assert one_sided(2.571, 5) == pytest.approx(2.015, abs=1e-3)


def test_choosing_leaves_the_model_as_it_was():
    model = llama()
    before, config, state = model(ids()[None, :50]).logits, model.config, torch.get_rng_state()
    found = choose(model, ids(), to=64, windows=4, last=8, progress=False)
    assert all(each.config is config for each in model.modules() if hasattr(each, "config"))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model(ids()[None, :50]).logits, before)
    assert extension_of(model) is None
    assert len(found.standings) == 5


# Kept and resumed


def stopped_after(calls: Calls, count: int) -> Callable[..., Judged]:
    """The judge of the fixture, which is interrupted after so many passes."""
    judge: Any = choosing.judge

    def interrupted(*given: Any) -> Judged:
        if len(calls) >= count:
            raise KeyboardInterrupt
        return judge(*given)

    return interrupted


@pytest.mark.parametrize("count", [1, 4, 9])
def test_a_choice_that_was_stopped_goes_on_and_measures_nothing_twice(
    count: int, judged: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = json.loads(choose(llama(), ids(), **QUIET).to_json())
    passes = len(judged)
    judged.clear()
    judge = choosing.judge
    monkeypatch.setattr(choosing, "judge", stopped_after(judged, count))
    kept = Kept(tmp_path / "out", {"--to": 64})
    with pytest.raises(KeyboardInterrupt):
        choose(llama(), ids(), **QUIET, kept=kept)
    kept.close()
    monkeypatch.setattr(choosing, "judge", judge)
    kept = Kept(tmp_path / "out", {"--to": 64})
    again = json.loads(choose(llama(), ids(), **QUIET, kept=kept).to_json())
    kept.close()
    assert len(judged) == passes
    assert again.pop("times")["took"] > 0
    assert again == {name: each for name, each in whole.items() if name != "times"}


def test_a_folder_of_another_command_or_of_a_stranger_is_refused(tmp_path: Path):
    kept = Kept(tmp_path / "out", {"--to": 64, "--text": "a"})
    assert not (tmp_path / "out").exists()
    kept.note("forecast", {"said": 1.0})
    kept.close()
    with pytest.raises(ValueError, match=r"of another command: --to is 128 now and was 64; give the same command to"):
        Kept(tmp_path / "out", {"--to": 128, "--text": "a"})
    with pytest.raises(ValueError, match="--text is left out now and was a"):
        Kept(tmp_path / "out", {"--to": 64})
    held = Kept(tmp_path / "out", {"--to": 64, "--text": "a"})
    with pytest.raises(ValueError, match="another process is at work in this folder"):
        Kept(tmp_path / "out", {"--to": 64, "--text": "a"})
    held.close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(ValueError, match="this folder is not empty; name another"):
        Kept(tmp_path / "other", {})


# The command


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_model_with_one_byte_changed_is_another_model(name: str, tmp_path: Path):
    for each in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / each).write_bytes(bytes(1 << 18))
    (tmp_path / "report.html").write_bytes(b"")
    before = digest_of(tmp_path)
    with (tmp_path / name).open("r+b") as file:
        file.seek(1 << 17)
        file.write(b"1")
    assert digest_of(tmp_path) != before


def test_one_command_measures_saves_and_reports(folder: Path, tmp_path: Path):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(WORDS)
    command = ["extend", str(folder), "--to", "64", "--text", str(text), "--out", str(out)]
    command += ["--windows", "3", "--last", "8", "--try", "YaRN", "--method", "ReRoPE, pivot"]
    done = CliRunner().invoke(app(), command)
    assert done.exit_code == 0, done.output
    assert f"saved: {out}" in done.output
    # Lines where nobody watches a bar, and the time first.
    assert re.search(r"extend: will take about \d+ s\n", done.output)
    assert "extend: timing window" in done.output
    assert {"report.html", "report.json", "config.json", NAME} <= {each.name for each in out.iterdir()}
    kept = extension_of(load(out))
    assert kept is not None
    assert any(isinstance(part, mp.Pivot) for part in kept.schedule[0].parts)
    before = (out / "report.html").read_text()
    again = CliRunner().invoke(app(), command)
    assert again.exit_code == 0, again.output
    assert "kept from before" in again.output
    assert (out / "report.html").read_text() == before
    other = CliRunner().invoke(app(), [*command, "--windows", "4"])
    assert other.exit_code == 2
    assert "--windows is 4 now and was 3" in other.output


def test_the_page_alone_says_what_why_at_which_price_and_how_to_serve_it(folder: Path, tmp_path: Path, judged: Calls):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_bytes(WORDS.encode() + b"\xff\xfe")
    command = ["extend", str(folder), "--to", "64", "--text", str(text), "--out", str(out), "--windows", "3"]
    done = CliRunner().invoke(app(), [*command, "--last", "8"])
    assert done.exit_code == 0, done.output
    page = (out / "report.html").read_text()
    for said in (
        "<h1>Self-extend</h1>", "Chosen at 64: self-extend", "Within the trained length, 32 tokens, it costs",
        "keep their exact distances.", f"model = load(&#34;{out}&#34;)", "nearest that vLLM serves", "sha256",
        "could not be decoded as UTF-8", "The rule: of the rows that see every token", "llama", "milepost 0",
    ):  # fmt: skip
        assert said in page, said
    assert "nan" not in re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.DOTALL)


def test_where_the_rule_chooses_none_nothing_is_saved_until_one_is_named(
    folder: Path, tmp_path: Path, judged: Calls, monkeypatch: pytest.MonkeyPatch
):
    for row in LOSS:
        monkeypatch.setitem(LOSS, row, 2.5)
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(WORDS)
    command = ["extend", str(folder), "--to", "64", "--text", str(text), "--out", str(out), "--windows", "3"]
    done = CliRunner().invoke(app(), [*command, "--last", "8"])
    assert done.exit_code == 1, done.output
    assert "nothing is saved" in done.output
    assert "--method 'self-extend'" in done.output
    assert not (out / "config.json").exists()
    passes = len(judged)
    done = CliRunner().invoke(app(), [*command, "--last", "8", "--method", "self-extend"])
    assert done.exit_code == 0, done.output
    assert len(judged) == passes
    assert extension_of(load(out)) is not None


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_learned_table_is_grown_from_the_command_line(kind: str, folder: Path, tmp_path: Path):
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    own, out = tmp_path / "model", tmp_path / "out"
    if kind == "gpt2":
        made: Any = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=32, vocab_size=40))
    else:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        made = BertForMaskedLM(BertConfig(max_position_embeddings=32, vocab_size=40, **sizes))
    made.eval().save_pretrained(own)
    AutoTokenizer.from_pretrained(folder).save_pretrained(own)
    done = CliRunner().invoke(app(), ["extend", str(own), "--to", "80", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "Grown from 32 to 80 positions" in done.output
    grown = type(made).from_pretrained(out).eval()
    assert grown.config.max_position_embeddings == 80
    text = ids()[None, :80]
    assert torch.allclose(grown(text[:, :32]).logits, made(text[:, :32]).logits, atol=1e-5)
    assert torch.isfinite(grown(text).logits).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"--to": "16"}, "plan(to=16): llama reads"),
        ({"--try": "Yarm"}, "no candidate is called 'Yarm'; there are"),
        ({"--to": "100000"}, "tokens"),
        ({"--text": "."}, "is a directory"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    change: dict[str, str], says: str, folder: Path, tmp_path: Path
):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(WORDS)
    options = {"--to": "64", "--text": str(text), "--out": str(out), "--windows": "3", "--last": "8"} | change
    done = CliRunner().invoke(app(), ["extend", str(folder), *(each for pair in options.items() for each in pair)])
    assert done.exit_code != 0
    assert says in done.output + str(done.exception)
    assert not out.exists()


def test_a_folder_that_is_extended_already_is_no_model_of_a_command(folder: Path, tmp_path: Path):
    save(extend(LlamaForCausalLM.from_pretrained(folder), mp.Rerope(8)), tmp_path)
    with pytest.raises(ValueError, match=r"tune .*: this folder is extended already; give the folder that it was made"):
        read_model(str(tmp_path), "tune")


@pytest.mark.parametrize("command", ["extend", "export"])
def test_a_model_of_images_and_text_is_refused_in_a_sentence(command: str, tmp_path: Path):
    Qwen2VLConfig().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "text.txt").write_text(WORDS)
    how = ["--to", "99999", "--text", str(tmp_path / "text.txt")] if command == "extend" else ["--to", "vllm"]
    done = CliRunner().invoke(app(), [command, str(tmp_path), *how, "--out", str(tmp_path / "out")])
    said = done.output + str(done.exception)
    assert done.exit_code == 2
    assert "AutoModelForCausalLM has no class for a qwen2_vl model" in said
    assert "export: export" not in said
    assert len(said) < 1000


def test_extend_chooses_by_measuring(judged: Calls):
    model = llama()
    extend(model, mp.Yarn(2, trained=32))
    assert extend(model, to=64, text=ids(), windows=3, last=8, progress=False) is model
    best = choose(llama(), ids(), **QUIET).best
    assert best is not None
    assert extension_of(model).schedule.same_as(extension_of(extend(llama(), *best.parts)).schedule)


def test_measuring_leaves_an_extended_model_as_it_was():
    model = extend(llama(), mp.Yarn(2, trained=32), mp.LogN(32))
    before = model(ids()[None, :50]).logits
    names = ["YaRN", "ReRoPE, pivot"]
    found = choose(model, ids(), to=64, names=names, windows=4, last=8, progress=False)
    alone = choose(llama(), ids(), to=64, names=names, windows=4, last=8, progress=False)
    one, two = ({each.row: each.nats for each in side.standings} for side in (found, alone))
    assert one == pytest.approx(two)
    assert torch.equal(model(ids()[None, :50]).logits, before)
    with pytest.raises(ValueError, match="tokens"):
        choose(model, ids()[:70], to=64, windows=9, last=8, progress=False)
    assert torch.equal(model(ids()[None, :50]).logits, before)


def test_dropout_is_off_while_choosing_and_back_after():
    model = llama(attention_dropout=0.5).train()
    model.model.layers[0].eval()
    one, two = (choose(model, ids(), to=64, names=["YaRN"], windows=4, last=8, progress=False) for _ in range(2))
    assert one.standings == two.standings
    assert [each.training for each in model.model.layers] == [False, True]
    assert model.training


def test_without_a_model_one_is_trained_on_the_spot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    size = Size(Shape(width=16, layers=1, heads=2, hidden=16), Recipe(length=16, batch=2, steps=3), longest=64)
    monkeypatch.setitem(small.SIZES, small.SMALL, size)
    monkeypatch.setattr(small, "of_python", lambda: of_bytes(WORDS.encode() * 4, "forty cats"))
    command = ["extend", "--to", "64", "--out", str(tmp_path / "out"), "--windows", "3", "--try", "YaRN"]
    done = CliRunner().invoke(app(), [*command, "--method", "YaRN"])
    assert done.exit_code == 0, done.output
    # What the command judges by itself fits into the window of however short a model.
    assert json.loads((tmp_path / "out" / "report.json").read_text())["last"] == 4
    assert "trained a small model of bytes on forty cats" in done.output
    model = load(tmp_path / "out")
    assert extension_of(model).schedule[0].parts[0] == mp.Rope(8, stretch=mp.Yarn(4.0, 16))


def test_a_model_without_a_text_or_a_length_is_asked_for_both(folder: Path, tmp_path: Path):
    done = CliRunner().invoke(app(), ["extend", str(folder), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "give --to N and --text FILE as well" in done.output


@pytest.mark.parametrize("option", ["--method", "--try"])
def test_a_method_that_is_none_is_said_before_the_weights_are_read(option: str, tmp_path: Path):
    llama().config.save_pretrained(tmp_path / "config alone")
    (tmp_path / "text").write_text(WORDS)
    command = ["extend", str(tmp_path / "config alone"), "--to", "64", "--text", str(tmp_path / "text")]
    done = CliRunner().invoke(app(), [*command, "--out", str(tmp_path / "out"), option, "nonsense"])
    assert done.exit_code == 2
    assert "no candidate is called 'nonsense'; there are " in " ".join(done.output.split())
