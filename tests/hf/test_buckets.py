"""T5: how far its buckets reach, in the encoder and in the decoder, with its own table."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSeq2SeqLM, T5EncoderModel

import milepost as mp
from milepost.hf import extend, restore
from milepost.hf.model.extension import as_it_was

HEADS, BUCKETS, LENGTH = 4, 16, 90
SMALL: dict[str, Any] = {
    "vocab_size": 48, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": HEADS,
    "relative_attention_num_buckets": BUCKETS, "relative_attention_max_distance": 32, "decoder_start_token_id": 0,
}  # fmt: skip
TEXTS = torch.randint(2, 48, (2, LENGTH), generator=torch.Generator().manual_seed(1))
FURTHER = mp.T5Bias(HEADS, buckets=BUCKETS, reach=80)


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


def tiny(kind: str = "t5", **more: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **(SMALL | more))).eval()
    for name, weight in model.named_parameters():
        if "relative_attention_bias" in name:
            weight.data.normal_()
    if kind == "umt5" and not model.decoder.block[0].layer[0].SelfAttention.is_causal:
        pytest.skip("the decoder of UMT5 sees what comes next in this transformers (5.17 does it): nothing to equal")
    return model


def logits(model: Any) -> Tensor:
    return model(input_ids=TEXTS, decoder_input_ids=TEXTS.flip(1)).logits


def bucket(distance: int, reach: int, both_ways: bool) -> int:
    """Raffel et al.: half of the buckets of a side hold one distance each, the others grow with its logarithm."""
    side = BUCKETS // 2 if both_ways else BUCKETS
    ahead = side if both_ways and distance < 0 else 0
    far, exact = abs(distance) if both_ways else max(distance, 0), side // 2
    if far < exact:
        return ahead + far
    grown = exact + int(math.log(far / exact) / math.log(reach / exact) * (side - exact))
    return ahead + min(grown, side - 1)


@pytest.mark.parametrize("kind", ["mt5", "t5", "umt5"])
def test_with_its_own_parts_a_model_is_as_it_was(kind: str):
    model = tiny(kind).double()
    stock = logits(model)
    assert torch.allclose(logits(extend(model, through="attend")), stock, rtol=0, atol=1e-12)
    assert torch.equal(logits(extend(model, mp.T5Bias(HEADS, buckets=BUCKETS, reach=32, bidirectional=True))), stock)
    assert not torch.allclose(logits(extend(model, FURTHER)), stock, atol=1e-3)
    assert torch.equal(logits(restore(model)), stock)
    assert model.config.relative_attention_max_distance == 32


@pytest.mark.parametrize("reach", [32, 80])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_distances_are_looked_up_by_the_papers_buckets(stack: str, reach: int):
    model = extend(tiny(), mp.T5Bias(HEADS, buckets=BUCKETS, reach=reach))
    own = getattr(model, stack).block[0].layer[0].SelfAttention
    bias, table = own.compute_bias(LENGTH, LENGTH)[0], own.relative_attention_bias.weight
    for i in range(0, LENGTH, 7):
        for j in range(LENGTH if stack == "encoder" else i + 1):
            assert torch.equal(bias[:, i, j], table[bucket(i - j, reach, stack == "encoder")]), (i, j)


@pytest.mark.parametrize("kind", ["mt5", "t5", "umt5"])
def test_stock_transformers_runs_saves_and_loads_it(kind: str, tmp_path: Path):
    model = tiny(kind)
    other = tiny(kind, relative_attention_max_distance=80)
    other.load_state_dict(model.state_dict())
    extend(model, FURTHER)
    assert torch.equal(logits(model), logits(other))
    made = [each.generate(TEXTS, max_new_tokens=40, min_new_tokens=40, num_beams=2) for each in (model, other)]
    assert torch.equal(*made)
    model.save_pretrained(tmp_path)
    assert (logits(AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()) - logits(model)).abs().max() < 1e-6


def test_only_the_model_at_hand_changes_and_from_what_it_was():
    config = AutoConfig.for_model("t5", **SMALL)
    one, other = (T5EncoderModel(config).eval() for _ in range(2))
    stock = other(TEXTS).last_hidden_state
    extend(one, FURTHER)
    extend(one, mp.T5Bias(HEADS, buckets=BUCKETS, reach=50))
    assert torch.equal(other(TEXTS).last_hidden_state, stock)
    assert (config.relative_attention_max_distance, one.config.relative_attention_max_distance) == (32, 50)
    assert restore(one).config.relative_attention_max_distance == 32


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (("YaRN",), {}, "so it takes parts and not 'YaRN': extend(model, T5Bias(4, reach=…), LogN(512))"),
        ((mp.Scheme(FURTHER),), {}, "so it takes parts and not a Scheme"),
        ((FURTHER, mp.Rerope(8)), {}, "no layer of this t5 model turns queries and keys"),
        ((mp.Yarn(4, trained=64),), {}, "or has slopes that Yarn(4, 64) could change"),
        ((mp.Kerple(HEADS),), {}, "Kerple(4) learns, and nothing in this checkpoint was trained for it"),
        ((mp.causal & mp.window(8),), {}, "the encoder of this t5 model sees keys ahead"),
        ((FURTHER, FURTHER), {}, "2 times T5Bias"),
        ((mp.T5Bias(HEADS, buckets=32, reach=80),), {}, "has trained 16 buckets for 4 heads"),
        ((mp.T5Bias(8, buckets=BUCKETS, reach=80),), {}, "has 16 for 8"),
        (
            (mp.T5Bias(HEADS, buckets=BUCKETS, reach=8, bidirectional=True),),
            {},
            "the first 8 distances have a bucket each",
        ),
        ((), {"to": 1024}, "extend(to=…): the buckets of a t5 model take any distance already"),
        ((FURTHER,), {"through": "rotary"}, "extend(through='rotary'): a t5 model turns nothing"),
        ((), {"to": 99, "text": "a"}, "change in one way; nothing is measured"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_and_nothing_is_changed(
    given: tuple[Any, ...], options: dict[str, Any], message: str
):
    model = tiny()
    for _ in range(2):
        before, stock = model.config.to_dict(), logits(model)
        with pytest.raises(ValueError, match=re.escape(message)):
            extend(model, *given, **options)
        assert model.config.to_dict() == before
        assert torch.equal(logits(model), stock)
        extend(model, mp.T5Bias(HEADS, buckets=BUCKETS, reach=50), mp.LogN(8))


@pytest.mark.parametrize("parts", [(FURTHER,), (FURTHER, mp.LogN(8))], ids=["buckets", "through attend"])
def test_stretched_buckets_are_taken_off_for_a_while(parts: tuple[object, ...]):
    model = tiny()
    stock = logits(model)
    extend(model, *parts)
    ours, config, modules = logits(model), model.config.to_dict(), list(model.modules())
    with as_it_was(model):
        assert torch.equal(logits(model), stock)
        assert model.config.to_dict() == tiny().config.to_dict()
    assert torch.equal(logits(model), ours)
    assert model.config.to_dict() == config
    assert list(model.modules()) == modules
    assert torch.equal(logits(restore(model)), stock)
