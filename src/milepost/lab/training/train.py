"""Training one model: steps that can be stopped anywhere and gone on with, to the same numbers."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from milepost.lab.training.reader import Reader
from milepost.lab.training.recipe import Recipe
from milepost.lab.training.whole import FULL as FULL
from milepost.lab.training.whole import whole

Batches = Callable[[int], tuple[Tensor, Tensor]]
"""The inputs and targets of a step, [batch, length] each; targets of −100 are not counted."""
Loss = Callable[[Tensor, Tensor], Tensor]

# What torch says on a GPU about choices that are ours: gains in float32, products of float32 in full precision, and
# how a softmax is split. Once in every process, it would tear up the display.
KNOWN = (
    "Mismatch dtype between input and weight",
    "TensorFloat32 tensor cores for float32 matrix multiplication",
    r"\s*Online softmax is disabled on the fly",
)


class Alone:
    """A run in one process, which has the whole model and the whole batch. `parallel` has the others."""

    first = True
    """Whether this process is the one that reads, writes and tells."""

    def wrapped(self, model: Reader, recipe: Recipe) -> nn.Module:
        """Return the module that is called in the model's place."""
        return model

    def compiled(self, loss: Loss, model: Reader) -> Loss:
        """Return the loss, compiled."""
        return torch.compile(loss, fullgraph=True)

    def share(self, rows: Tensor) -> Tensor:
        """Return the rows of a batch that are worked on here."""
        return rows

    def part(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around one part of a batch, forward and backward; after the last one gradients are needed whole."""
        return contextlib.nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss that is a sum over the rows here."""
        loss.backward()

    def clip(self, model: Reader, most: float) -> None:
        """Scale all gradients so that their norm is at most `most`."""
        nn.utils.clip_grad_norm_(model.parameters(), most)

    def total(self, loss: Tensor) -> Tensor:
        """Return the loss of all rows, from that of the rows here."""
        return loss

    def agreed(self, answer: bool) -> bool:
        """Return what the first process answers, for what no two of them may answer differently."""
        return answer

    def gathered(self, tensor: Tensor) -> Tensor:
        """Return a weight or a state of the optimiser, whole."""
        return tensor

    def read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The tensors and the notes of a checkpoint; where this is not the first process, tensors of that shape."""
        return read_checkpoint(path)

    def placed(self, tensor: Tensor, like: Tensor) -> Tensor:
        """A whole tensor that was read, as it is kept here: on the device, and sharded if the weight `like` is."""
        return tensor.to(like.device)


class Trainer:
    """A model, its optimiser, and how far they have come."""

    def __init__(
        self,
        model: Reader,
        recipe: Recipe,
        batches: Batches,
        device: torch.device | str = "cpu",
        spread: Alone | None = None,
    ) -> None:
        self.model, self.recipe, self.batches = model.to(device), recipe, batches
        self.device = torch.device(device)
        self.spread = Alone() if spread is None else spread
        self.step = 0
        for message in KNOWN:
            warnings.filterwarnings("ignore", message, UserWarning)
        self._called = self.spread.wrapped(self.model, recipe)
        self.optimiser = torch.optim.AdamW(
            _groups(self.model, recipe), lr=recipe.rate, betas=recipe.betas, fused=self.device.type == "cuda"
        )
        # A bound method kept here would keep the optimiser's state on the device until the next garbage collection.
        self._compiled = self.spread.compiled(self._loss_of, self.model) if recipe.compiled else None

    @property
    def done(self) -> bool:
        """True if every step has been made."""
        return self.step >= self.recipe.steps

    def advance(self) -> Tensor:
        """Make one step; returns its loss in nats, still on the device."""
        self.model.train()
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate_at(self.step) * group["times"]
        total = torch.zeros((), device=self.device)
        inputs, targets = (each.to(self.device, non_blocking=True) for each in self.batches(self.step))
        counted = (targets >= 0).sum()
        parts = (self.spread.share(each).chunk(self.recipe.accumulate) for each in (inputs, targets))
        for number, (inputs_, targets_) in enumerate(zip(*parts, strict=True), 1):
            with self.spread.part(last=number == self.recipe.accumulate):
                loss = (self._compiled or self._loss_of)(inputs_, targets_) / counted
                self.spread.backward(loss)
            total += loss.detach()
        self.spread.clip(self.model, self.recipe.clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        return self.spread.total(total)

    def _loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the summed loss of a part of a batch."""
        with precision(self.recipe, self.device):
            logits = self._called(inputs)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum", ignore_index=-100)

    def save(self, path: Path) -> None:
        """Weights, optimiser and step in one safetensors file, there wholly or not at all."""
        tensors: dict[str, Tensor] = {}
        for name, tensor in self._state():
            whole = self.spread.gathered(tensor)
            if self.spread.first:
                tensors[name] = whole
        if self.spread.first:
            notes = {"step": str(self.step), "recipe": json.dumps(asdict(self.recipe))}
            write_checkpoint(path, tensors, notes)

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight and every state of the optimiser, by the name it has in a checkpoint."""
        names = {id(weight): name for name, weight in self.model.named_parameters()}
        for name, weight in self.model.named_parameters():
            yield f"model.{name}", weight.detach()
        for weight, state in self.optimiser.state.items():
            for kind, value in state.items():
                yield f"optimiser.{kind}.{names[id(weight)]}", value

    def load(self, path: Path) -> None:
        """Go on from where a file left off."""
        tensors, notes = self.spread.read(path)
        weights = dict(self.model.named_parameters())
        if missing := next((name for name in weights if f"model.{name}" not in tensors), None):
            raise damaged(path, f"no {missing}")
        kinds = sorted({name.split(".")[1] for name in tensors if name.startswith("optimiser.")})
        for name, weight in weights.items():
            with torch.no_grad():
                weight.copy_(self.spread.placed(tensors[f"model.{name}"], weight))
            found = {kind: tensors.get(f"optimiser.{kind}.{name}") for kind in kinds}
            state = {kind: self.spread.placed(each, weight) for kind, each in found.items() if each is not None}
            if state:
                self.optimiser.state[weight] = state
        self.step = int(notes["step"])


def write_checkpoint(path: Path, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
    """Tensors and notes in one safetensors file, there wholly or not at all."""
    from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

    with whole(path) as half:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, half, metadata=notes)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the notes of a checkpoint; a damaged one is named."""
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(path, framework="pt")
        with opened as file:
            return {str(name): file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, why: str) -> ValueError:
    """Return the error to raise of a checkpoint that cannot be read."""
    return ValueError(f"the checkpoint {path} is damaged ({why}); delete it, and its model will be trained again")


def precision(recipe: Recipe, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Autocast to bfloat16 where the recipe says so."""
    if recipe.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def _groups(model: Reader, recipe: Recipe) -> list[dict[str, Any]]:
    """Matrices decay; gains and biases do not, nor what schemes learn, which is never sharded and so stays apart.

    What schemes learn has rates of its own: one for the biases of scores, and one for all else.
    """
    learned = {id(weight) for weight in model.learned()}
    biases = {id(weight) for weight in model.biases()}
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    own = [weight for weight in weights if id(weight) not in learned]
    others = [weight for weight in weights if id(weight) in learned - biases]
    bending = [weight for weight in weights if id(weight) in biases]
    return [
        {"params": [weight for weight in own if weight.dim() > 1], "weight_decay": recipe.decay, "times": 1.0},
        {"params": [weight for weight in own if weight.dim() <= 1], "weight_decay": 0.0, "times": 1.0},
        {"params": others, "weight_decay": 0.0, "times": recipe.learned_rate},
        {"params": bending, "weight_decay": 0.0, "times": recipe.bias_rate},
    ]
