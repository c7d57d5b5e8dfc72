"""How fast one token comes: a model of SmolLM2-135M's shape with random weights, stock and extended, in turns.

    python examples/step_speed.py --context 8192 --batch 1 16

What a step costs does not depend on what the weights are, so none are needed. Each figure is the best of some rounds,
in which all rows take turns; a round reads the context into a fresh cache and then makes tokens one by one.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import milepost as mp
from milepost.hf import extend, restore

TRAINED = 8192
ROWS: dict[str, tuple[Any, ...]] = {
    "stock": (),
    "YaRN": (mp.Yarn(4, trained=TRAINED),),
    "ReRoPE": (mp.Rerope(TRAINED // 2),),
    "Self-Extend": (mp.SelfExtend(8, TRAINED // 8),),
    "ReRoPE with Pivot": (mp.Pivot(mp.Rerope(TRAINED // 2), TRAINED),),
}


def built(device: str) -> Any:
    """The model."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, head_dim=64, max_position_embeddings=TRAINED, rope_theta=100000.0,
        tie_word_embeddings=True, attn_implementation="sdpa",
    )  # fmt: skip
    return LlamaForCausalLM(config).to(device, torch.bfloat16 if device == "cuda" else torch.float32).eval()


@torch.no_grad()
def step_seconds(model: Any, ids: torch.Tensor, steps: int) -> float:
    """Seconds a step, after the context was read in parts."""
    wait = torch.cuda.synchronize if ids.is_cuda else (lambda: None)
    cache, token = DynamicCache(config=model.config), ids[:, -1:]
    for part in ids.split(2048, 1):
        model.model(part, past_key_values=cache)
    for number in range(8 + steps):
        if number == 8:
            wait()
            start = time.perf_counter()
        token = model(token, past_key_values=cache).logits[:, -1:].argmax(-1)
    wait()
    return (time.perf_counter() - start) / steps


def main() -> None:
    """Print a table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--context", type=int, default=8192, help="tokens in the cache before the first step")
    asked.add_argument("--batch", type=int, nargs="+", default=[1, 16], help="rows of a batch")
    asked.add_argument("--steps", type=int, default=40, help="tokens that are made in a round")
    asked.add_argument("--rounds", type=int, default=3, help="rounds, of which the best counts")
    told = asked.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = built(device)
    for batch in told.batch:
        ids = torch.randint(0, 49152, (batch, told.context), device=device)
        found: dict[str, list[float]] = {name: [] for name in ROWS}
        for _ in range(told.rounds):
            for name, parts in ROWS.items():
                found[name].append(step_seconds(extend(model, *parts) if parts else model, ids, told.steps))
                restore(model)
        stock = min(found["stock"])
        for name, seconds in found.items():
            best = min(seconds)
            print(f"batch {batch:3}  {name:18} {batch / best:8.1f} tokens/s  {stock / best:.2f} of stock", flush=True)


if __name__ == "__main__":
    main()
