"""Time one token of decoding: a model of SmolLM2-135M's shape with random weights, stock and extended, in turns.

    python examples/step_speed.py --context 8192 --batch 1 16

The cost of a step does not depend on the weights, so none are needed. Every row reads the context into a cache
of its own; then rows take turns, a few tokens each, because a machine's speed drifts. A row is compared with stock
transformers in the same round, and the figure is the middle of all rounds.

Where torch uses cuDNN for attention, every number of keys that a process has not seen yet needs a new plan, which takes
longer than the step. So no row meets a number that another one has planned: the lengths of their contexts differ by a
little. With --no-cudnn torch uses its other kernels, which need no plan.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import milepost as mp
from milepost.hf import extend

TRAINED = 8192
WARM = 8
"""Steps of each row that are not counted."""
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


class Reader:
    """A model that has read a context, and makes one token after another."""

    def __init__(self, model: Any, ids: torch.Tensor) -> None:
        self.model, self.cache, self.token = model, DynamicCache(config=model.config), ids[:, -1:]
        for part in ids.split(2048, 1):
            model.model(part, past_key_values=self.cache)

    def seconds(self, steps: int) -> float:
        """Seconds a token takes, over some."""
        wait = torch.cuda.synchronize if self.token.is_cuda else (lambda: None)
        wait()
        start = time.perf_counter()
        for _ in range(steps):
            self.token = self.model(self.token, past_key_values=self.cache).logits[:, -1:].argmax(-1)
        wait()
        return (time.perf_counter() - start) / steps


@torch.no_grad()
def main() -> None:
    """Print a table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--context", type=int, default=8192, help="tokens in the cache before the first step")
    asked.add_argument("--batch", type=int, nargs="+", default=[1, 16], help="rows of a batch")
    asked.add_argument("--steps", type=int, default=4, help="tokens that a row makes in its turn")
    asked.add_argument("--rounds", type=int, default=20, help="turns of each row")
    asked.add_argument("--no-cudnn", action="store_true", help="keep torch from attending by cuDNN")
    options = asked.parse_args()
    torch.backends.cuda.enable_cudnn_sdp(not options.no_cudnn)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    own = built(device)
    models = {name: extend(copy.deepcopy(own), *parts) if parts else own for name, parts in ROWS.items()}
    for batch in options.batch:
        apart = WARM + options.steps * options.rounds
        ids = torch.randint(0, 49152, (batch, options.context + apart * len(models)), device=device)
        readers = {
            name: Reader(model, ids[:, : options.context + apart * number])
            for number, (name, model) in enumerate(models.items())
        }
        for reader in readers.values():
            reader.seconds(WARM)
        # Another row begins each round: the first pays for the memory that all of them grow into.
        names = list(readers)
        turns = [names[n % len(names) :] + names[: n % len(names)] for n in range(options.rounds)]
        rounds = [{name: readers[name].seconds(options.steps) for name in turn} for turn in turns]
        for name in readers:
            seconds = statistics.median(each[name] for each in rounds)
            ratios = sorted(each["stock"] / each[name] for each in rounds)
            low, middle, high = (ratios[len(ratios) * n // 8] for n in (1, 4, 7))
            print(
                f"batch {batch:3}  {name:18} {batch / seconds:8.1f} tokens/s  {middle:.2f} of stock in the same round "
                f"(three quarters of them {low:.2f} to {high:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
