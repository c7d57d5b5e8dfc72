"""`measure`: the same tokens at every length, paired; recall, needles and sinks of models whose answers are known."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.hf import choose, extend, measure, restore
from milepost.hf.measuring.judged import Row, judge
from milepost.hf.measuring.scores import Score, perplexity_range, with_interval
from milepost.hf.measuring.trials import copies, endings, haystack, needles
from tests.hf.tiny import tiny

transformers = pytest.importorskip("transformers")
pytest.importorskip("scipy")

FOLDERS = [Path(__file__).parents[n] / "shared" / "data" for n in (3, 4)]
DATA = next((each for each in FOLDERS if each.exists()), FOLDERS[0])
VOCABULARY = 40


def llama(**settings: Any) -> Any:
    torch.manual_seed(0)
    own = {
        "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
        "num_hidden_layers": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "initializer_range": 0.4,
    }  # fmt: skip
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(own | settings))).eval()


@pytest.fixture(scope="module")
def ids() -> Tensor:
    return torch.randint(0, VOCABULARY, (600,), generator=torch.Generator().manual_seed(1))


def copier(ids: Tensor) -> Tensor:
    """A model that looks for the last three tokens and says what followed them last time; else it guesses evenly."""
    logits = torch.zeros(*ids.shape, VOCABULARY)
    for b, row in enumerate(ids.tolist()):
        seen: dict[tuple[int, ...], int] = {}
        for t in range(2, len(row)):
            three = tuple(row[t - 2 : t + 1])
            if three in seen:
                logits[b, t, row[seen[three] + 1]] = 10.0
            seen[three] = t
    return logits


QUICK: dict[str, Any] = {"last": 4, "windows": 3, "trials": 2, "passage": 8, "sinks": 2, "progress": False}


# Perplexity


def test_the_loss_is_that_of_a_loop_over_the_text(ids: Tensor):
    model = llama()
    found = measure(model, ids, lengths=[32, 64], window=0, distances=(), needle=(), **QUICK)
    double = llama().double()
    for length in (32, 64):
        room = 600 - 64 - 1
        for n in range(3):
            end = 64 + n * room // 2
            nats = 0.0
            for t in range(end - 3, end + 1):
                with torch.no_grad():
                    logits = double(input_ids=ids[end - length : t][None]).logits[0, -1]
                nats -= float(logits.log_softmax(-1)[ids[t]])
            assert found.nats["stock"][length].values[n] == pytest.approx(nats / 4, abs=1e-4)


def test_the_same_tokens_are_judged_at_every_length(ids: Tensor):
    short, long = (endings(ids, length, 64, 5, 4, None) for length in (16, 64))
    assert torch.equal(short, long[:, -17:])
    assert torch.equal(endings(ids, 16, 64, 5, 4, first=7)[:, 0], torch.full((5,), 7))


def test_windows_stand_beside_the_model_and_forget_the_rest(ids: Tensor):
    model = llama()
    found = measure({"mine": model, "twice": model}, ids, lengths=[32, 64], distances=(), needle=(), **QUICK)
    assert found.rows == ("mine", "twice", "window 32", "window 30 and 2 sinks")
    assert found.trivial == found.rows[2:]
    assert found.nats["window 32"][64].values == pytest.approx(found.nats["mine"][32].values, abs=1e-5)
    texts = endings(ids, 64, 64, 3, 4, None)
    by_hand = torch.cat((texts[:, :2], texts[:, -31:]), 1)
    given = judge(Row("", model), by_hand, 4).nats.mean(1)
    assert found.nats["window 30 and 2 sinks"][64].values == pytest.approx(given.tolist(), abs=1e-5)
    assert measure(model, ids, lengths=[32], window=0, distances=(), needle=(), **QUICK).rows == ("stock",)


def test_beside_an_extended_model_stands_the_same_without_its_extension(ids: Tensor):
    model = extend(llama(), mp.Rerope(8), mp.LogN(32))
    before, options = model(ids[None, :60]).logits, {"lengths": [32, 64], "distances": (), "needle": ()} | QUICK
    plain = measure(llama(), ids, **options)
    found = measure(model, ids, **options)
    assert found.rows == ("stock", "extended", "window 32", "window 30 and 2 sinks")
    for row in ("stock", *found.trivial):
        assert found.nats[row][64].values == pytest.approx(plain.nats[row][64].values, abs=1e-6)
    assert found.nats["extended"][64].values != pytest.approx(found.nats["stock"][64].values, abs=1e-3)
    assert found.mass["stock"] == plain.mass["stock"]
    assert torch.equal(model(ids[None, :60]).logits, before)
    assert measure({"mine": model}, ids, **options).rows[:2] == ("stock", "mine")
    assert measure({"stock": llama(), "mine": model}, ids, **options).rows[:2] == ("stock", "mine")


@pytest.mark.parametrize("kind", ["gpt2", "gptj", "mpt"])
def test_a_row_is_left_out_of_texts_that_its_model_has_no_positions_for(kind: str, ids: Tensor, tmp_path: Path):
    sizes = {"n_positions": 32, "max_position_embeddings": 32, "max_seq_len": 32}
    model = tiny(kind, vocab_size=VOCABULARY, **(sizes | ({"n_embd": 32, "n_head": 4} if kind == "gpt2" else {})))
    options = {"lengths": [32, 64], "distances": [8, 40], "needle": [32, 64]} | QUICK
    alone, left_out = measure(model, ids, **options), "stock: left out past 32 tokens"
    extend(model, **{"to": 64}) if kind == "gpt2" else extend(model, mp.LogN(32))
    found = measure(model, ids, **options)
    for each in (alone, found):
        assert list(each.nats["stock"]) == list(each.entropy["stock"]) == list(each.needle["stock"]) == [32]
        assert list(each.recall["stock"]) == [8]
        assert each.ends == {"stock": 32}
        assert left_out in str(each)
        assert left_out in each.to_html(tmp_path / "page.html").read_text()
        assert "nan" not in each.to_json()
    assert list(found.nats["extended"]) == list(found.nats["window 32"]) == [32, 64]
    assert list(found.recall["extended"]) == [8, 40]
    assert found.nats["stock"][32].values == alone.nats["stock"][32].values
    with pytest.raises(ValueError, match=r"no model here reads 64 tokens.*'stock' 32\); give shorter lengths"):
        measure({"stock": restore(model)}, ids, **(options | {"window": 0}))


def test_candidates_are_measured_where_stock_has_no_positions(ids: Tensor):
    model = tiny("gptj", vocab_size=VOCABULARY, n_positions=32, max_position_embeddings=32)
    found = choose(model, ids, to=64, names=["YaRN"], windows=3, last=4, progress=False)
    assert [each.row for each in found.standings] == ["YaRN"]
    assert list(found.measured.nats["stock"]) == [32]
    assert list(found.measured.nats["YaRN"]) == [32, 64]
    assert "stock: left out past 32 tokens" in str(found)


def test_an_interval_wider_than_its_mean_is_a_range():
    assert with_interval(3.0, 0.25) == "3.000 ±0.250"
    assert with_interval(0.1, 0.25) == "0.100 (-0.150 to 0.350)"
    assert with_interval(0.1, 0.25, signed=True) == "+0.100 ±0.250"
    assert with_interval(3.0, math.nan) == "3.000"
    # e^3, e^1 and e^5: no ± on either side of it.
    assert perplexity_range(Score(3.0, 2.0)) == "20.09 (2.718 to 148.4)"


def test_rows_that_show_no_attention_for_one_reason_are_named_together(ids: Tensor):
    found = measure({"stock": copier, "twice": copier}, ids, lengths=[32], trained=32, distances=(), needle=(), **QUICK)
    assert str(found).count("logits alone") == 1
    assert "no weights of all rows: a function returns logits alone" in str(found)


def test_entropy_and_growth(ids: Tensor):
    found = measure(llama(), ids, lengths=[32, 64], distances=(), needle=(), **QUICK)
    ratio, low, high = found.grown("stock", 64)
    nats = found.nats["stock"]
    assert ratio == pytest.approx(math.exp(nats[64].mean - nats[32].mean))
    assert low < ratio < high
    assert 0 < found.entropy["stock"][32].mean < math.log(VOCABULARY)


# Recall and needles


def test_a_passage_comes_twice_and_the_second_begins_distance_after_the_first(ids: Tensor):
    texts = copies(ids, 20, 30, 8, 3, 0, False, None)
    assert texts.shape == (3, 36)
    assert torch.equal(texts[:, 8:16], texts[:, 28:])
    assert not torch.equal(texts[0], texts[1])
    assert not torch.equal(copies(ids, 20, 30, 8, 3, 0, True, None)[:, 8:16], texts[:, 8:16])


@pytest.mark.parametrize("shuffled", [False, True])
def test_passages_are_the_same_at_every_distance(ids: Tensor, shuffled: bool):
    near, far = (copies(ids, distance, 30, 8, 3, 0, shuffled, None) for distance in (12, 30))
    assert torch.equal(near[:, :16], far[:, :16])
    assert torch.equal(near[:, -8:], far[:, -8:])


def test_recall_shows_who_looks_back(ids: Tensor):
    found = measure(copier, ids, lengths=[32], trained=32, distances=[12, 100], needle=(), shuffled=True, **QUICK)
    stock, window = found.recall["stock"], found.recall["window 32"]
    guess = math.log(VOCABULARY)
    # The first three of the eight tokens of a copy cannot be known.
    assert stock[100].second.mean < 0.5 * guess < stock[100].first.mean
    assert window[100].second.mean > 0.8 * guess
    assert window[12].second.mean < 0.5 * guess


def test_a_needle_is_found_by_who_sees_it(ids: Tensor):
    found = measure(
        copier, ids, lengths=[32], trained=32, distances=(), needle=[32, 128], depths=(0.0, 0.5, 1.0), **QUICK
    )
    assert all(share == 1 for by_depth in found.needle["stock"].values() for share in by_depth.values())
    assert found.needle["window 32"][128] == {0.0: 0.0, 0.5: 0.0, 1.0: 1.0}


def test_a_haystack_is_as_long_as_asked(ids: Tensor):
    for needle in needles(ids, None, 2, 0) + needles(ids, lambda words: [ord(c) % 40 for c in words], 2, 0):
        text = haystack(ids, needle, 200, 0.5, 0, first=3)
        assert text.shape == (1, 201)
        assert text[0, 0] == 3
        assert torch.equal(text[0, -len(needle.answer) :], needle.answer)
        tail = len(needle.asked) + len(needle.answer)
        assert torch.equal(text[0, -tail : -len(needle.answer)], needle.asked)


def test_the_pass_key_is_asked_for_in_words(ids: Tensor):
    words: list[str] = []

    def encode(text: str) -> list[int]:
        words.append(text)
        return [ord(c) % VOCABULARY for c in text]

    needle = needles(ids, encode, 1, 0)[0]
    key = re.findall(r"\d{5}", words[0])[0]
    assert needle.answer.tolist() == [ord(c) % VOCABULARY for c in f" {key}"]


# Attention


def test_the_mass_on_the_first_tokens_is_that_of_the_weights(ids: Tensor):
    model = llama()
    model.set_attn_implementation("sdpa")
    found = measure(model, ids, lengths=[32, 64], distances=(), needle=(), **QUICK)
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    text = endings(ids, 32, 64, 2, 4, None)[:, :-1]
    with torch.no_grad():
        weights = model(input_ids=text, output_attentions=True).attentions
    by_hand = [float(each[:, :, -8:, :2].sum(-1).mean()) for each in weights]
    mass = found.mass["stock"]
    assert not isinstance(mass, str)
    assert mass.mass == pytest.approx(by_hand, abs=1e-5)
    assert "on the first 2 of 32 tokens" in str(found)


def test_where_attention_cannot_be_seen_it_says_so(ids: Tensor):
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("milepost_test", sdpa_attention_forward)
    model = llama()
    model.set_attn_implementation("milepost_test")
    found = measure({"own": model, "function": copier}, ids, lengths=[32], distances=(), needle=(), **QUICK)
    assert "'milepost_test', which forms no matrix" in str(found.mass["own"])
    assert "returns logits alone" in str(found.mass["function"])
    assert "no weights of own: its attention" in str(found)


# What comes out


class Balanced(HTMLParser):
    """Counts what is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "link", "path", "use", "circle", "rect", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "circle", "rect", "use"):
            assert self.open.pop() == tag


def test_the_page_needs_nothing_but_itself(ids: Tensor, tmp_path: Path):
    found = measure({"stock": llama(), "<b>mine</b>": llama()}, ids, lengths=[32, 64], **QUICK)
    path = found.to_html(tmp_path / "inner" / "report.html")
    text = path.read_text(encoding="utf-8")
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert all(link.startswith(("data:", "#")) for link in parser.links)
    assert "<b>mine</b>" not in text
    assert "&lt;b&gt;mine&lt;/b&gt;" in text
    assert "window 30 and 2 sinks" in text
    assert "nan" not in re.sub(r"<style>.*?</style>|<script>.*?</script>", "", text, flags=re.DOTALL)
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]


def test_a_single_window_has_no_interval(ids: Tensor, tmp_path: Path):
    found = measure(llama(), ids, lengths=[32, 64], needle=(), **(QUICK | {"windows": 1, "trials": 1}))
    page = found.to_html(tmp_path / "report.html").read_text(encoding="utf-8")
    for text in (str(found), re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.DOTALL)):
        assert "nan" not in text
        assert "±" not in text.replace("Bars", "")
    assert '"half": null' in found.to_json()


def test_json_keeps_every_window(ids: Tensor):
    found = measure(llama(), ids, lengths=[32], **QUICK)
    read = json.loads(found.to_json())
    assert read["nats"]["stock"]["32"]["values"] == pytest.approx(list(found.nats["stock"][32].values))
    assert read["needle"]["stock"]["32"]["0.5"] in (0.0, 0.5, 1.0)


def test_dropout_is_off_while_measuring_and_back_after(ids: Tensor):
    model = llama(attention_dropout=0.5).train()
    one, two = (measure(model, ids, lengths=[32], distances=(), needle=(), **QUICK) for _ in range(2))
    assert model.training
    assert one.nats["stock"][32].values == two.nats["stock"][32].values


@pytest.mark.parametrize("kind", ["gpt2", "gpt_bigcode"])
def test_measuring_draws_nothing_from_the_users_generator(kind: str, ids: Tensor):
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": VOCABULARY}
    none = {"bos_token_id": None, "eos_token_id": None}
    config = transformers.AutoConfig.for_model(kind, **sizes, **none)
    model, state = transformers.AutoModelForCausalLM.from_config(config).eval(), torch.get_rng_state()
    measure(model, ids, lengths=[32], distances=(), needle=(), **QUICK)
    assert torch.equal(torch.get_rng_state(), state)


def test_lengths_by_default_double_as_far_as_the_text_goes(ids: Tensor):
    assert measure(llama(), ids, distances=(), needle=(), **QUICK).lengths == [32, 64, 128, 256]
    assert measure(llama(), ids[:100], distances=(), needle=(), **QUICK).lengths == [32, 64]


def test_a_model_of_a_type_that_is_not_read_is_measured_all_the_same(ids: Tensor):
    own = {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": VOCABULARY, "pad_token_id": 0, "state_size": 4}
    made = transformers.MambaForCausalLM(transformers.MambaConfig(**own)).eval()
    with pytest.raises(ValueError, match="pass trained=2048"):
        measure(made, ids, **QUICK)
    found = measure(made, ids, trained=32, lengths=[32], distances=(), needle=(), **QUICK)
    assert "gives no attention weights" in str(found.mass["stock"])


def test_progress_goes_to_stderr(ids: Tensor, capsys: pytest.CaptureFixture[str]):
    measure(llama(), ids, lengths=[32], distances=(), needle=(), **(QUICK | {"progress": True}))
    assert capsys.readouterr().out == ""


# What is refused


def test_a_text_too_short_says_how_many_tokens_are_needed(ids: Tensor):
    with pytest.raises(ValueError, match=r"has 600 tokens, and 3 windows at 600 tokens needs 609; give a longer text"):
        measure(llama(), ids, lengths=[600], **QUICK)
    with pytest.raises(ValueError, match=r"recall over 599 tokens needs 607"):
        measure(llama(), ids, lengths=[32], distances=[599], **QUICK)
    with pytest.raises(ValueError, match=r"a needle in 700 tokens needs 700"):
        measure(llama(), ids, lengths=[32], distances=(), needle=[700], **QUICK)
    with pytest.raises(ValueError, match=r"has 5 tokens, and 3 windows at 32 tokens needs 41"):
        measure(llama(), ids[:5], **QUICK)


def test_what_cannot_be_measured_is_refused(ids: Tensor):
    with pytest.raises(TypeError, match="'stock' is a int; a model of transformers or a function"):
        measure(3, ids, trained=32)
    with pytest.raises(ValueError, match=r"no model was given"):
        measure({}, ids, trained=32)
    with pytest.raises(ValueError, match="pass trained=2048"):
        measure(copier, ids)
    with pytest.raises(ValueError, match="a text needs a tokenizer"):
        measure(llama(), "some words")
    with pytest.raises(ValueError, match=r"token ids are integers \[n\]; given torch.float32"):
        measure(llama(), torch.ones(3))
    with pytest.raises(TypeError, match="a tokenizer is one of transformers, or a function"):
        measure(llama(), "some words", tokenizer=5)
    with pytest.raises(ValueError, match=r"the model returned logits \[3, 2\]; they must be \[3, 32, vocabulary\]"):
        measure(lambda given: torch.zeros(len(given), 2), ids, trained=32, lengths=[32], **QUICK)
    with pytest.raises(ValueError, match=r"must hold the 8 tokens that are judged; pass last=3"):
        measure(llama(), ids, window=7, **QUICK)
    with pytest.raises(ValueError, match=r"copies of 8 tokens cannot stand 3 apart"):
        measure(llama(), ids, lengths=[32], distances=[3], **QUICK)


# A real checkpoint


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "stories260K.bin").exists(), reason="stories260K.bin is not in ../shared/data")
def test_stories260k_breaks_past_512_and_a_window_repairs_it():
    spec = importlib.util.spec_from_file_location("load_llama2c", DATA / "load_llama2c.py")
    assert spec is not None
    assert spec.loader is not None
    loader: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    model, config, _ = loader.build_hf(str(DATA / "stories260K.bin"), attn="sdpa")
    tok = loader.Tok(str(DATA / "tok512.bin"), config["vocab_size"])

    def encode(text: str) -> list[int]:
        return [each for word in re.findall(r"\S+", text) for each in tok.encode(word, bos=False)]

    text = (DATA / "tinystories.txt").read_text(encoding="utf-8")[:20000]
    found = measure(
        model, text, encode, lengths=[512, 2048], windows=8, first=1, distances=(), needle=(), progress=False
    )
    assert found.trained == 512
    assert 3 < found.nats["stock"][512].perplexity < 8
    assert found.nats["stock"][2048].perplexity > 1.5 * found.nats["stock"][512].perplexity
    more = found.against("stock", "window 512", 2048)
    assert more.mean - more.half > 0
