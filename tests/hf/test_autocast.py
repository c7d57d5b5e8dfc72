"""Under autocast, which trainers use for bf16 and fp16, an extended model rounds as stock transformers does."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import milepost as mp
from milepost.hf import extend
from tests.hf import test_buckets
from tests.hf.tiny import continued, padded, tiny, tokens

KINDS = ("llama", "qwen3", "gemma2", "gpt_oss", "deepseek_v3", "bloom", "falcon", "gptj", "mpt", "t5")
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def made(kind: str) -> Any:
    # The gradient of ReLU jumps where rounding moves a number across zero.
    return test_buckets.tiny(feed_forward_proj="gated-gelu") if kind == "t5" else tiny(kind)


def run(model: Any, dtype: torch.dtype | None) -> tuple[Tensor, Tensor, list[torch.dtype]]:
    """Logits, the gradients of all weights in one row, and the dtypes that its linear modules were given."""
    seen: list[torch.dtype] = []
    hooks = [
        each.register_forward_pre_hook(lambda module, args: seen.append(args[0].dtype))
        for each in model.modules()
        if isinstance(each, nn.Linear)
    ]
    texts = {"input_ids": tokens(), "use_cache": False}
    more = {"decoder_input_ids": tokens()} if model.config.is_encoder_decoder else {}
    with nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype):
        logits = model(**texts, **more).logits
    model.zero_grad()
    nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens().flatten()).backward()
    for hook in hooks:
        hook.remove()
    grads: list[Tensor] = [each.grad for each in model.parameters() if each.grad is not None]
    return logits.detach(), torch.cat([each.flatten() for each in grads]), seen


def apart(one: Tensor, other: Tensor) -> float:
    return (torch.dist(one.float(), other) / torch.dist(other, torch.zeros_like(other))).item()


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_as_close_to_float32_as_those_of_stock(kind: str, half: str):
    model, dtype = made(kind), HALVES[half]
    exact, exact_grads, _ = run(model, None)
    stock, stock_grads, stock_dtypes = run(model, dtype)
    ours, grads, dtypes = run(extend(model, through="attend"), dtype)
    assert ours.dtype == stock.dtype
    assert dtypes == stock_dtypes, "attention answers in another dtype"
    assert apart(ours, exact) < 1.2 * apart(stock, exact)
    assert apart(grads, exact_grads) < 1.2 * apart(stock_grads, exact_grads)


@pytest.mark.parametrize("kind", ["llama", "gptj"])
def test_generation_goes_on_as_stock_does(kind: str):
    model, (texts, mask) = tiny(kind), padded(t=14)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        _, stock = continued(model, texts, mask, n=2)
        _, ours = continued(extend(model, through="attend"), texts, mask, n=2)
    assert apart(ours[0], stock[0].float()) < 0.02
    assert apart(ours[1], stock[1].float()) < 0.02


def test_float64_stays_and_a_graph_is_the_same():
    model = extend(tiny("llama"), mp.LogN(64))
    with torch.no_grad():
        graph = torch.compile(model, fullgraph=True, backend="eager")
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(graph(tokens(), use_cache=False).logits, model(tokens(), use_cache=False).logits)
            assert model.double()(tokens(), use_cache=False).logits.dtype == torch.float64
