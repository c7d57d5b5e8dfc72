"""Training small language models: the lab, x-transformers, and the lab's own loop written by hand.

python -m benchmarks.training_speed        tokens a second, compared with x-transformers
python -m benchmarks.training_speed loop   the cost of the lab's events, store and checkpoints
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from examples.beside_x_transformers import PEERS
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from milepost.bench.harness.clock import Stopwatch
from milepost.lab.cells.cell import Cell, make
from milepost.lab.cells.events import Stepped
from milepost.lab.cells.store import Store
from milepost.lab.cells.work import work
from milepost.lab.judging.scoring import Judging
from milepost.lab.sweep.sweep import keep
from milepost.lab.text.corpus import Corpus, of_python
from milepost.lab.training.recipe import SIZES, Size
from milepost.lab.training.train import Trainer, precision

Step = Callable[[int], Tensor]
# Steps before the clock starts, and while it runs.
WARM, TIMED = 10, 60
# Of the loop: where the clock starts, when everything is compiled.
BEGUN = 20


@dataclass(frozen=True)
class Race:
    """The shape, recipe, text and device of both sides."""

    size: Size
    corpus: Corpus
    device: str

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step, cut out on the device."""
        return self.corpus.batches(0, self.size.recipe.batch, self.size.recipe.length)(step)

    def cell(self, name: str) -> Cell:
        """Return the lab's cell for a scheme, trained and not judged."""
        judging = Judging(self.size.longest, protocols=())
        return Cell(name, 0, self.size.shape, self.size.recipe, judging, "benchmark")

    def rate(self, step: Step) -> float:
        """Return tokens a second, after some steps to warm up."""
        for n in range(WARM):
            step(n)
        watch = Stopwatch(self.device)
        for n in range(TIMED):
            step(n)
        return TIMED * self.size.recipe.batch * self.size.recipe.length / watch.seconds()


def main() -> None:
    """Print the race with x-transformers."""
    race = _race()
    where = torch.cuda.get_device_name() if race.device == "cuda" else "CPU"
    shape, recipe = race.size.shape, race.size.recipe
    print(
        f"\ntraining on one {where}: width {shape.width}, {shape.layers} layers, {shape.heads} heads, length "
        f"{recipe.length}, batch {recipe.batch}, {recipe.precision}; thousand tokens a second"
    )
    print(f"  {'':<8} {'milepost':>10}   {'x-transformers':>14} {'how':<16}   {'ratio':>6}")
    for name in PEERS:
        torch.compiler.reset()
        ours = race.rate(_ours(race, name))
        theirs = _theirs(race, name)
        how = max(theirs, key=lambda way: theirs[way])
        others = ", ".join(f"{way} {rate / 1e3:.0f}" for way, rate in theirs.items() if way != how)
        ratio = ours / theirs[how]
        print(f"  {name:<8} {ours / 1e3:>10.0f}   {theirs[how] / 1e3:>14.0f} {how:<16}   {ratio:>5.2f} ×   ({others})")


def _race() -> Race:
    """Return the recipe of `--size base` on a GPU, the demo's on a CPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = SIZES["base" if device == "cuda" else "demo"]
    recipe = replace(size.recipe, compiled=device == "cuda")
    return Race(replace(size, recipe=recipe), of_python().on(device), device)


def _ours(race: Race, name: str) -> Step:
    trainer = Trainer(make(race.cell(name)), race.size.recipe, race.batch, race.device)
    return lambda step: trainer.advance()


def _theirs(race: Race, name: str) -> dict[str, float]:
    """Return tokens a second of x-transformers in every mode: flash or not, compiled or not."""
    rates: dict[str, float] = {}
    for flash in (False, True):
        for compiled in (False, True) if race.size.recipe.compiled else (False,):
            way = " ".join(("flash" if flash else "plain", "compiled" if compiled else "eager"))
            torch.compiler.reset()
            try:
                rates[way] = race.rate(_peer(race, name, flash, compiled))
            except Exception as error:
                print(f"  x-transformers, {name}, {way}: {type(error).__name__}")
    return rates


def _peer(race: Race, name: str, flash: bool, compiled: bool) -> Step:
    from x_transformers import Decoder, TransformerWrapper

    shape, recipe = race.size.shape, race.size.recipe
    torch.manual_seed(0)
    layers: Any = Decoder(
        dim=shape.width, depth=shape.layers, heads=shape.heads, attn_dim_head=shape.dim, attn_flash=flash,
        ff_glu=True, ff_swish=True, ff_mult=shape.inner / shape.width, attn_qk_norm=False, **PEERS[name],
    )  # fmt: skip
    wrapper: Any = TransformerWrapper
    model: nn.Module = wrapper(
        num_tokens=shape.vocabulary, max_seq_len=recipe.length, attn_layers=layers, use_abs_pos_emb=False,
        tie_embedding=True,
    ).to(race.device)  # fmt: skip

    return _loop(race, model, compiled)


def _loop(race: Race, model: nn.Module, compiled: bool, **options: Any) -> Step:
    """Return a training step written by hand. options: of torch.compile."""
    recipe = race.size.recipe

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        with precision(recipe, torch.device(race.device)):
            logits = model(inputs)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    measured = torch.compile(loss, **options) if compiled else loss
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": recipe.decay}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=recipe.rate, betas=recipe.betas, fused=race.device == "cuda")

    def step(number: int) -> Tensor:
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate_at(number)
        found = measured(*race.batch(number))
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return found.detach()

    return step


def loop() -> None:
    """Print the cost of the lab over a loop written by hand: its events, its store, its checkpoints."""
    race = _race()
    ways: dict[str, Callable[[Race], float]] = {"by hand": _by_hand, "the lab": _by_lab}
    seconds = {name: min(way(race) for _ in range(2)) for name, way in ways.items()}
    cost = seconds["the lab"] / seconds["by hand"] - 1
    steps = race.size.recipe.steps - BEGUN
    both = f"by hand {seconds['by hand']:.2f} s, in the lab {seconds['the lab']:.2f} s"
    print(f"\nthe same {steps} steps of rope: {both}: {cost:+.1%}, losses and checkpoints stored, best of two")


def _by_hand(race: Race) -> float:
    torch.compiler.reset()
    recipe = race.size.recipe
    step = _loop(race, make(race.cell("rope")).to(race.device), recipe.compiled, fullgraph=True)
    for number in range(BEGUN):
        step(number)
    watch = Stopwatch(race.device)
    for number in range(BEGUN, recipe.steps):
        step(number)
    return watch.seconds()


def _by_lab(race: Race) -> float:
    cell, watch = race.cell("rope"), Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "lab.sqlite")
        store.add(cell.key, cell.settings())
        for event in work(cell, race.corpus, Path(folder), race.device, set()):
            keep(store, cell, event)
            if isinstance(event, Stepped) and event.step == BEGUN:
                watch = Stopwatch(race.device)
        taken = watch.seconds()
        store.close()
    return taken


if __name__ == "__main__":
    loop() if sys.argv[1:] == ["loop"] else main()
