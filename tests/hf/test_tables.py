"""Learned tables of positions, grown: the rows there were stay, and stock transformers runs the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

import milepost as mp
from milepost.hf import choose, extend, measure, restore, save
from milepost.hf.model.extension import as_it_was
from milepost.hf.model.tables import TABLES
from tests.hf.tiny import SMALL, continued, tokens

DECODERS = ("gpt2", "gpt_bigcode")
ROWS = 10


def made(kind: str) -> Any:
    first = 2 if kind in ("roberta", "camembert", "xlm-roberta") else 0
    small = SMALL | {"max_position_embeddings": ROWS + first, "pad_token_id": 1 if first else 0, "embedding_size": 32}
    names = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": ROWS}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(SMALL | names if kind in DECODERS else small))
    if kind in DECODERS:
        config.max_position_embeddings = ROWS
    return (AutoModelForCausalLM if kind in DECODERS else AutoModelForMaskedLM).from_config(config).eval()


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


def table(model: Any, kind: str) -> Any:
    return next(child for name, child in model.named_modules() if name.endswith(TABLES[kind]))


@pytest.mark.parametrize("kind", sorted(TABLES))
def test_short_texts_stay_and_long_ones_have_two_digits(kind: str, tmp_path: Path):
    model, text = made(kind), tokens(2, ROWS)
    stock, old = model(text).logits, table(model, kind).weight.clone()
    first = len(old) - ROWS
    extend(model, to=4 * ROWS)
    assert torch.equal(model(text).logits, stock)
    rows, alpha = table(model, kind).weight, 0.4
    assert len(rows) == 4 * ROWS + first == model.config.max_position_embeddings
    base = (old[first:] - alpha * old[first]) / (1 - alpha)
    for i in (0, 9, 10, 23, 39):
        wanted = alpha * base[i // ROWS] + (1 - alpha) * base[i % ROWS]
        assert (rows[first + i] - wanted).abs().max() < 1e-6
    long = model(tokens(2, 3 * ROWS)).logits
    model.save_pretrained(tmp_path)
    kind_of = AutoModelForCausalLM if kind in DECODERS else AutoModelForMaskedLM
    assert (kind_of.from_pretrained(tmp_path).eval()(tokens(2, 3 * ROWS)).logits - long).abs().max() < 1e-5
    restore(model)
    assert torch.equal(model(text).logits, stock)
    assert model.config.max_position_embeddings == len(old)
    assert torch.equal(table(model, kind).weight, old)


def test_gpt2_goes_on_past_its_table():
    model, text = made("gpt2"), tokens(2, 8)
    extend(model, mp.Hierarchical((2, 2), alpha=0.3), to=20)
    said, logits = continued(model, text, torch.ones_like(text))
    fresh = model(torch.cat((text, said[:, :-1]), 1)).logits[:, -1]
    assert (fresh - logits[-1]).abs().max() < 1e-5


def test_a_table_is_grown_from_what_it_was():
    model = made("gpt2")
    extend(model, to=20)
    once = table(model, "gpt2").weight.clone()
    extend(model, "hierarchical", to=30)
    assert torch.equal(table(model, "gpt2").weight[:20], once)
    assert len(table(model, "gpt2").weight) == 30
    with pytest.raises(ValueError, match=r"10 rows make 100 positions and no more"):
        extend(model, to=101)
    assert len(table(model, "gpt2").weight) == 30


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((), {}, r"how many positions shall this gpt2 model have\? It has 10"),
        ((), {"to": 4}, "was trained at 10 tokens, and reads as many already"),
        (
            (mp.Rerope(4),),
            {"to": 20},
            r"which can be grown and nothing else: extend\(model, to=…\), without Rerope\(4\)",
        ),
    ],
)
def test_what_a_table_cannot_do_is_refused(given: tuple[object, ...], options: dict[str, int], message: str):
    model = made("gpt2")
    with pytest.raises(ValueError, match=message):
        extend(model, *given, **options)
    assert len(table(model, "gpt2").weight) == ROWS


def test_a_grown_table_needs_no_file_of_ours(tmp_path: Path):
    with pytest.raises(ValueError, match=r"transformers says all of it: model\.save_pretrained\(path\)"):
        save(extend(made("gpt2"), to=20), tmp_path)


def test_a_grown_table_is_taken_off_for_a_while_and_is_as_it_was_tuned():
    model, text = made("gpt2"), tokens(2, ROWS)
    before = model(text).logits
    extend(model, to=20)
    model.transformer.wpe.weight.mul_(1.5)
    grown, far = model.transformer.wpe, model(tokens(2, 20)).logits
    with as_it_was(model):
        assert torch.equal(model(text).logits, before)
        assert model.config.max_position_embeddings == ROWS
    assert model.transformer.wpe is grown
    assert model.config.max_position_embeddings == 20
    assert torch.equal(model(tokens(2, 20)).logits, far)
    restore(model)
    assert torch.equal(model(text).logits, before)


def test_stock_beside_a_grown_table_is_the_model_without_its_growth():
    torch.manual_seed(0)
    model, ids = made("gpt2"), tokens(1, 300)[0]
    quick: dict[str, Any] = {"last": 4, "windows": 3, "passage": 4, "sinks": 2, "progress": False}
    quick |= {"lengths": [ROWS], "distances": (), "needle": (), "trials": 2}
    plain = measure(model, ids, **quick)
    extend(model, to=20)
    model.transformer.wpe.weight.mul_(1.5)
    far = model(tokens(2, 20)).logits
    found = measure(model, ids, **quick)
    assert found.rows == ("stock", "extended", f"window {ROWS}", f"window {ROWS - 2} and 2 sinks")
    assert found.nats["stock"][ROWS].values == plain.nats["stock"][ROWS].values
    assert found.nats["extended"][ROWS].values != pytest.approx(plain.nats["stock"][ROWS].values, abs=1e-3)
    with pytest.raises(ValueError, match="none of hierarchical"):
        choose(model, ids, to=40, windows=3, last=4, progress=False)
    assert torch.equal(model(tokens(2, 20)).logits, far)


def test_a_table_that_is_put_back_is_cast_with_the_model():
    model, text = made("gpt2"), tokens(2, ROWS)
    extend(model, to=20).to(torch.bfloat16)
    wanted = made("gpt2").to(torch.bfloat16)(text).logits
    with as_it_was(model):
        assert torch.equal(model(text).logits, wanted)
    assert model.transformer.wpe.weight.dtype == torch.bfloat16
    assert torch.equal(restore(model)(text).logits, wanted)


@pytest.mark.parametrize("pad", [None, 0, 5])
def test_the_rows_of_padding_are_those_that_the_module_skips(pad: int | None):
    model, other = made("roberta"), made("roberta")
    model.config.pad_token_id = pad
    text = tokens(2, 3 * ROWS)
    assert torch.equal(extend(model, to=4 * ROWS)(text).logits, extend(other, to=4 * ROWS)(text).logits)
