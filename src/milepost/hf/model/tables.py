"""Learned tables of positions, grown: n rows become as many as are asked for, up to n² (`Hierarchical`).

The rows are written out into a larger table, so that stock transformers runs, saves and loads the model by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost import Hierarchical
from milepost.configs import read
from milepost.hf.model.attention import NAME
from milepost.hf.model.models import Place, kept_in, own_config, unwrapped
from milepost.seams import demand
from milepost.seams.arguments import spell

TABLES = {
    "bert": "position_embeddings", "camembert": "position_embeddings", "electra": "position_embeddings", "gpt2": "wpe",
    "gpt_bigcode": "wpe", "roberta": "position_embeddings", "xlm-roberta": "position_embeddings",
}  # fmt: skip
"""What the table of positions is called in each model type."""
PADDED = frozenset({"camembert", "roberta", "xlm-roberta"})
"""Model types whose first rows, up to that of the padding token, are never a position."""
ASKED = SimpleNamespace(called="extend")
"""Whom errors name."""
COUNTED = ("position_ids", "token_type_ids")
"""Buffers beside a table that are as long as it is."""


@dataclass(frozen=True)
class Table:
    """A table in its place, with what is as long as it is."""

    place: Place
    rows: int
    """How many rows the config says there are."""
    buffers: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def put(self, owner: Any) -> Table:
        """Put it into a model, where the one that was there is now, and return that."""
        parent, name = self.place.parent, self.place.name
        was = Table(
            Place(parent, name, getattr(parent, name)),
            owner.config.max_position_embeddings,
            {each: getattr(parent, each) for each in self.buffers},
        )
        # The model may have been moved or cast since.
        weight = getattr(was.place.module, "weight", None)
        if isinstance(weight, Tensor) and weight.device.type != "meta":
            self.place.module.to(weight.device, weight.dtype)
        self.place.put(self.place.module)
        for each, buffer in self.buffers.items():
            parent.register_buffer(each, buffer.to(was.buffers[each].device), persistent=False)
        owner.config.max_position_embeddings = self.rows
        return was


@dataclass(frozen=True)
class Grown:
    """What was done to a model with a table, and what undoes it."""

    owner: Any
    before: Table

    def undo(self) -> Callable[[], None]:
        """Put the table back; returns what puts the grown one there again, as it is now."""
        now = self.before.put(self.owner)
        del self.owner.__dict__[NAME]

        def again() -> None:
            now.put(self.owner)
            self.owner.__dict__[NAME] = self

        return again


def table_of(model: nn.Module) -> str | None:
    """What the table of a model is called, or None where it is not one of those."""
    config = cast("Any", model).config
    return TABLES.get(getattr(config, "model_type", ""))


def grow(model: nn.Module, given: Sequence[object], to: int | None) -> None:
    """Let a table have `to` positions, from what it was at first; nothing is changed where that is refused."""
    config = cast("Any", model).config
    kind = read(config, "extend").model_type
    alpha = alpha_of(given, kind)
    done = kept_in(model, NAME, Grown)
    place = place_of(model, kind) if done is None else done.before.place
    rows = config.max_position_embeddings if done is None else done.before.rows
    table = cast("nn.Embedding", place.module)
    if rows != len(table.weight):
        raise ValueError(
            f"extend: the {kind} config says {rows} positions, and the table has {len(table.weight)} rows; the config "
            f"disagrees with the model"
        )
    skipped = 0 if kind not in PADDED else cast("Any", place.parent).padding_idx + 1
    larger = grown(table, skipped, checked(to, rows - skipped, kind), alpha)
    if done is not None:
        done.undo()
    own_config(model)
    owner, n, buffers = unwrapped(model), len(larger.weight), dict[str, Tensor]()
    for each in COUNTED:
        buffer = getattr(place.parent, each, None)
        if isinstance(buffer, Tensor):
            longer = torch.arange(n, device=buffer.device) if each == "position_ids" else 0
            buffers[each] = buffer.new_zeros(1, n) + longer
    before = Table(Place(place.parent, place.name, larger), n, buffers).put(owner)
    owner.__dict__[NAME] = Grown(owner, before)


def place_of(model: nn.Module, kind: str) -> Place:
    """Where the one table of positions stands."""
    found = [
        Place(parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if name == table_of(model) and isinstance(child, nn.Embedding)
    ]
    if len(found) != 1:
        raise ValueError(f"extend: {len(found)} tables of positions were found in this {kind} model, and one is grown")
    return found[0]


def alpha_of(given: Sequence[object], kind: str) -> float:
    """How far the first digit of a position counts."""
    own = [each for each in given if isinstance(each, Hierarchical)]
    others = [each for each in given if each not in own and each != "hierarchical"]
    if others:
        named = others[0] if isinstance(others[0], str) else spell(others[0])
        raise ValueError(
            f"extend: a {kind} model has a learned row for each position, which can be grown and nothing else: "
            f"extend(model, to=…), without {named}"
        )
    return own[0].alpha if own else 0.4


def checked(to: int | None, rows: int, kind: str) -> int:
    """The number of positions that was asked for."""
    if to is None:
        raise ValueError(f"extend: how many positions shall this {kind} model have? It has {rows}: extend(model, to=…)")
    demand.whole(ASKED, "to", to)
    if to < rows:
        raise ValueError(f"extend(to={to}): this {kind} model was trained at {rows} tokens, and reads as many already")
    if to > rows**2:
        raise ValueError(f"extend(to={to}): {rows} rows make {rows**2} positions and no more")
    return to


def grown(table: nn.Embedding, skipped: int, to: int, alpha: float) -> nn.Embedding:
    """A table with the rows of this one, and those that two of them make together; the first rows are kept."""
    old = table.weight.detach()
    made = Hierarchical(old[skipped:], alpha=alpha).embed(old.new_zeros(1, to, old.shape[1]))[0].detach()
    rows, frozen = torch.cat((old[:skipped], made)), not table.weight.requires_grad
    return nn.Embedding.from_pretrained(rows, freeze=frozen, padding_idx=table.padding_idx).train(table.training)
