"""Training one model: steps that can be stopped anywhere and gone on with, to the same numbers."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from milepost.lab.model import Model
from milepost.lab.recipe import Recipe

Batches = Callable[[int], tuple[Tensor, Tensor]]
"""The inputs and targets of a step, [batch, length] each; targets of −100 are not counted."""


class Trainer:
    """A model, its optimiser, and how far they have come."""

    def __init__(self, model: Model, recipe: Recipe, batches: Batches, device: torch.device | str = "cpu") -> None:
        self.model, self.recipe, self.batches = model.to(device), recipe, batches
        self.device = torch.device(device)
        self.step = 0
        self.optimiser = torch.optim.AdamW(
            _groups(self.model, recipe.decay), lr=recipe.rate, betas=recipe.betas, fused=self.device.type == "cuda"
        )
        self._loss = torch.compile(self._loss_of, fullgraph=True) if recipe.compiled else self._loss_of

    @property
    def done(self) -> bool:
        """Whether every step has been made."""
        return self.step >= self.recipe.steps

    def advance(self) -> Tensor:
        """Make one step; returns its loss in nats, still on the device."""
        self.model.train()
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate_at(self.step)
        total = torch.zeros((), device=self.device)
        inputs, targets = (each.to(self.device, non_blocking=True) for each in self.batches(self.step))
        counted = (targets >= 0).sum()
        parts = zip(inputs.chunk(self.recipe.accumulate), targets.chunk(self.recipe.accumulate), strict=True)
        for inputs_, targets_ in parts:
            loss = self._loss(inputs_, targets_) / counted
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        return total

    def _loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The summed loss of a part of a batch."""
        with precision(self.recipe, self.device):
            logits = self.model(inputs)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum", ignore_index=-100)

    def save(self, path: Path) -> None:
        """Weights, optimiser and step in one safetensors file, there wholly or not at all."""
        from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

        names = {id(weight): name for name, weight in self.model.named_parameters()}
        tensors = {f"model.{name}": weight.detach() for name, weight in self.model.named_parameters()}
        for weight, state in self.optimiser.state.items():
            for kind, value in state.items():
                tensors[f"optimiser.{kind}.{names[id(weight)]}"] = value
        told = {"step": str(self.step), "recipe": json.dumps(asdict(self.recipe))}
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, beside, metadata=told)
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        beside.replace(path)

    def load(self, path: Path) -> None:
        """Go on from where a file left off."""
        tensors, told = read_checkpoint(path)
        weights = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(tensors[f"model.{name}"])
        for name, weight in weights.items():
            kinds = {key.split(".")[1] for key in tensors if key.startswith("optimiser.") and key.endswith(f".{name}")}
            state: dict[str, Any] = {kind: tensors[f"optimiser.{kind}.{name}"] for kind in sorted(kinds)}
            if state:
                self.optimiser.state[weight] = {
                    kind: value if kind == "step" and self.device.type == "cpu" else value.to(self.device)
                    for kind, value in state.items()
                }
        self.step = int(told["step"])


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the notes of a checkpoint; a damaged one is named."""
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(path, framework="pt")
        with opened as file:
            return {str(name): file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"the checkpoint {path} is damaged ({error}); delete it, and its model will be trained again"
        ) from error


def precision(recipe: Recipe, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Autocast to bfloat16 where the recipe says so."""
    if recipe.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def _groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Matrices decay; gains, biases and what schemes learn do not."""
    learned = {id(weight) for weight in model.schedule.parameters()}  # pyright: ignore
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    decayed = [weight for weight in weights if weight.dim() > 1 and id(weight) not in learned]
    others = [weight for weight in weights if weight.dim() <= 1 or id(weight) in learned]
    return [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
