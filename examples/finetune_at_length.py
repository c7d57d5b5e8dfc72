"""Fine-tune a model at a longer length by the recipes of LongChat and MPT-StoryWriter.

    python examples/finetune_at_length.py                                   # a small model, trained on the spot
    python examples/finetune_at_length.py MODEL --text FILE --to 16384 --out DIR

LongChat: positions are squeezed into the trained range (position interpolation), then the model is tuned at length.
StoryWriter: ALiBi, whose penalties are defined at every distance; it replaces the rotation of a RoPE model.
Low-rank weights are trained (LoRA; --rank 0: all weights), with peft where it is installed, and merged at the end. The
printed loss is that of the same last tokens of passages that were not trained on, before and after.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import milepost as mp
from milepost.hf import extend, plan, restore, save
from milepost.hf.files.small import FAR, train_small
from milepost.lab.text.corpus import Corpus, of_path

RECIPES = ("longchat", "storywriter")
READ = 1 << 20
"""Bytes of the text that are tokenized, for training and for judging."""


class Lora(nn.Module):
    """A frozen linear layer plus a product of two thin matrices: y = W x + B A x."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features, device=base.weight.device) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        """x: [… in], returns [… out]."""
        return self.base(x) + (x @ self.down.T @ self.up.T).to(x.dtype)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One linear layer that does the same."""
        self.base.weight += (self.up @ self.down).to(self.base.weight.dtype)
        return self.base


def linears(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Return the linear layers inside the layers, each with its parent module; the output layer is left out."""
    for path, parent in list(model.named_modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear) and any(word.isdigit() for word in path.split(".")):
                yield parent, name, child


def adapted(model: Any, rank: int) -> Any:
    """The model with low-rank weights to train and all others frozen; as it is for rank 0."""
    if rank == 0:
        return model
    if importlib.util.find_spec("peft") is not None:
        peft: Any = importlib.import_module("peft")
        return peft.get_peft_model(model, peft.LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear"))
    model.requires_grad_(False)
    for parent, name, child in list(linears(model)):
        setattr(parent, name, Lora(child, rank))
    return model


def merged(model: Any) -> Any:
    """The model with what was trained in its own weights."""
    if hasattr(model, "merge_and_unload"):
        return model.merge_and_unload()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Lora):
                setattr(parent, name, child.merged())
    return model.requires_grad_(True)


def parts_of(recipe: str, model: Any, to: int) -> list[Any]:
    """What a recipe puts into a model before it is tuned."""
    found = plan(model.config, to)
    factor = to / found.reached
    if recipe == "longchat":
        return [mp.AlibiInterpolate(factor) if found.kind == "ALiBi" else mp.Interpolate(factor)]
    if found.kind == "ALiBi":
        return []
    return [mp.Scheme(mp.Alibi(model.config.num_attention_heads), mp.causal)]


def passages(ids: Tensor, length: int, count: int, seed: int) -> Tensor:
    """[count length] of a text, from anywhere in it."""
    if len(ids) <= length:
        raise SystemExit(f"the text has {len(ids):,} tokens, and {length:,} are read at once: give a longer one")
    starts = torch.randint(0, len(ids) - length, (count,), generator=torch.Generator().manual_seed(seed))
    return ids[starts[:, None] + torch.arange(length)]


def loss_of(model: Any, rows: Tensor, last: int) -> Tensor:
    """Nats a token, over the last tokens of each row."""
    logits = model(input_ids=rows, use_cache=False).logits[:, -last - 1 : -1]
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, -last:].flatten())


@torch.no_grad()
def judged(model: Any, rows: Tensor, length: int, last: int) -> float:
    """The loss of the last tokens of passages, of which the model is shown `length`."""
    model.eval()
    return float(torch.stack([loss_of(model, row[None, -length:].to(model.device), last) for row in rows]).mean())


def tune(model: Any, ids: Tensor, asked: argparse.Namespace) -> None:
    """Train at length, with a rate that falls to nothing."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=asked.rate, weight_decay=0.0)
    begun = time.monotonic()
    model.train()
    for step in range(asked.steps):
        for group in optimiser.param_groups:
            group["lr"] = asked.rate * min(1.0, (step + 1) / 10) * (1 - step / asked.steps)
        loss = loss_of(model, passages(ids, asked.to, asked.batch, 2 + step).to(model.device), asked.to - 1)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if (step + 1) % max(1, asked.steps // 10) == 0:
            seconds = time.monotonic() - begun
            print(f"  step {step + 1:4}: loss {float(loss.detach()):.3f}, {seconds:.0f} s", file=sys.stderr)


def read(asked: argparse.Namespace) -> tuple[Any, Tensor, Tensor]:
    """The model, and the tokens to train on and to judge on."""
    with TemporaryDirectory() as folder:
        corpus: Corpus = train_small(folder) if asked.model is None else of_path(asked.text)
        name = folder if asked.model is None else asked.model
        model = AutoModelForCausalLM.from_pretrained(name, use_safetensors=True).to(asked.device)
        tokenizer: Any = cast("Any", AutoTokenizer).from_pretrained(name)
    if asked.text is not None:
        corpus = of_path(asked.text)
    words = (bytes(part[:READ].tolist()).decode(errors="ignore") for part in (corpus.train, corpus.test))
    train, test = (torch.tensor(tokenizer(each, add_special_tokens=False)["input_ids"]) for each in words)
    return model, train, test


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a folder of transformers, or a name of the hub")
    parser.add_argument("--text", help="a file or folder to train and judge on")
    parser.add_argument("--to", type=int, default=FAR, help="the length to reach")
    parser.add_argument("--recipe", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--rank", type=int, default=16, help="of the low-rank weights; 0: all weights are trained")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--judged", type=int, default=16, help="passages that are judged")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="a folder for the tuned models, one for each recipe")
    found = parser.parse_args(arguments)
    if found.model is not None and found.text is None:
        parser.error("give --text FILE: what the model is trained and judged on")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Tune by each recipe, from the same model, and print the losses."""
    asked = options_of(arguments)
    torch.manual_seed(0)
    model, train, test = read(asked)
    short = plan(model.config, asked.to).reached
    rows = passages(test, asked.to, asked.judged, 1)
    start = {name: weight.clone() for name, weight in model.state_dict().items()}

    def line(name: str) -> None:
        losses = (judged(model, rows, length, short // 2) for length in (short, asked.to))
        print(f"{name:32}" + "".join(f"{loss:12.3f}" for loss in losses), flush=True)

    print(f"{'nats a token':32}{f'at {short:,}':>12}{f'at {asked.to:,}':>12}")
    line("as it was")
    for recipe in asked.recipe:
        restore(model).load_state_dict(start)
        extend(model, *parts_of(recipe, model, asked.to))
        line(f"{recipe}, before tuning")
        tuned = adapted(model, asked.rank)
        tune(tuned, train, asked)
        model = merged(tuned)
        line(f"{recipe}, after {asked.steps} steps")
        if asked.out is not None:
            save(model, asked.out / recipe)


if __name__ == "__main__":
    main()
