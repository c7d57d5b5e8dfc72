"""Quantised checkpoints: attention is what it was, so extend serves them, and stays as close to stock as without.

Each case needs a package that the dev extra lacks, and is skipped without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import milepost as mp
from milepost.hf import extend, measure, restore
from tests.hf.tiny import continued, padded, tiny, tokens

WIDE = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
"""Blocks of weights are 64 or 128 wide."""


def eight_bits() -> Any:
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_8bit=True)


def four_bits() -> Any:
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)


def torchao() -> Any:
    pytest.importorskip("torchao")
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


def quanto() -> Any:
    pytest.importorskip("optimum.quanto")
    from transformers import QuantoConfig

    return QuantoConfig(weights="int8")


def hqq() -> Any:
    pytest.importorskip("hqq")
    from transformers import HqqConfig

    return HqqConfig(nbits=8, group_size=64)


CASES = {"bitsandbytes, 8 bits": eight_bits, "bitsandbytes, 4 bits": four_bits, "torchao": torchao, "quanto": quanto,
         "hqq": hqq}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("case", CASES)
def test_a_quantised_model_is_extended_as_it_is_run(case: str, kind: str, tmp_path: Path):
    how = CASES[case]()
    tiny(kind, **WIDE, **({"head_dim": 32} if kind == "qwen3" else {})).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=how, dtype=torch.float32).eval()
    assert "Linear" in type(model.model.layers[0].self_attn.q_proj).__name__
    texts, mask = padded()
    with torch.no_grad():
        stock = model(texts, attention_mask=mask).logits[mask.bool()]
        written = continued(model, texts, mask)[0]
        for through in ("rotary", "attend"):
            extend(model, through=through)
            ours = model(texts, attention_mask=mask).logits[mask.bool()]
            # Activations are rounded as well, by some: a last bit of one may be another.
            assert (ours - stock).abs().max() < 1e-3 * stock.abs().max()
            assert torch.equal(continued(model, texts, mask)[0], written)
        long = tokens(1, 150)
        extend(model, mp.Rerope(16), mp.LogN(64))
        steps = model(long[:, :140]).past_key_values
        later = model(long[:, 140:], past_key_values=steps).logits
        whole = model(long).logits
        assert (later - whole[:, 140:]).abs().max() < 2e-2 * whole.abs().max()
        assert (whole - restore(model)(long).logits).abs().max() > 1e-3
    assert measure(model, tokens(1, 600)[0], lengths=[64], window=0, distances=(), needle=(), windows=2, last=16)
