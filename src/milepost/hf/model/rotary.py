"""What stands in the place of a model's rotary module: one that answers our cosines and sines, or none at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from milepost import Partial, Rope, Scheme
from milepost.hf.model.models import Layers, Turner
from milepost.seams.verbs import answers

Form = Literal["once", "halves", "neighbours"]
"""How a model lays cosines out: one a pair, all of them twice in a row, or each of them twice."""
CLOSE = 0.02
"""How far a model's cosines may lie from ours: `.bfloat16()` rounds the frequencies that transformers keeps."""


class Turned(nn.Module):
    """Answers the cosines and sines of a rotation of ours in the form that the model wants; None turns nothing.

    Angles are float64, whatever the model is cast to. The model's own module is kept inside, so that it moves with the
    model until it is put back.
    """

    def __init__(self, original: nn.Module, turns: Mapping[str | None, Any], form: Form, width: int) -> None:
        super().__init__()
        self.original = original
        self.turns, self.width = dict(turns), width
        self.form: Form = form

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [b|1 t channels]; x gives the device and the dtype, position_ids is [b|1 t]."""
        turn = self.turns[layer_type]
        if turn is None:
            cos = x.new_ones(*x.shape[:2], self.width)
            return cos, torch.zeros_like(cos)
        cos, sin = (laid_out(each, self.form) for each in turn.cos_sin(position_ids.to(x.device)))
        return cos.to(x.dtype), sin.to(x.dtype)

    def extra_repr(self) -> str:
        """What it turns by."""
        return ", ".join(str(each) for each in self.turns.values())


def laid_out(table: Tensor, form: Form) -> Tensor:
    """A number for each pair [… n] as the model wants it."""
    if form == "once":
        return table
    return torch.cat((table, table), -1) if form == "halves" else table.repeat_interleave(2, -1)


def turn_of(scheme: Scheme) -> Any:
    """The part of a scheme that turns pairs of channels, or None."""
    return next((part for part in scheme.parts if getattr(part, "rotary", False)), None)


def same_beside(one: Scheme, other: Scheme) -> bool:
    """Whether two schemes agree in everything but the rotation; of sinks there is one kind, the model's own."""
    ours, theirs = ([part for part in each.parts if part is not turn_of(each)] for each in (one, other))
    return len(ours) == len(theirs) and all(
        part == its or (answers(part, "rest") and answers(its, "rest")) for part, its in zip(ours, theirs, strict=True)
    )


def plain(turn: object) -> bool:
    """Whether cosines and sines by position say all of a rotation, and every key may be turned when it comes."""
    if isinstance(turn, Partial):
        return turn.temperature == "rotary" and plain(turn.method)
    return isinstance(turn, Rope) and not turn.by_length


def turns_by_type(layers: Layers, schedule: list[Scheme] | Any, turner: Turner) -> dict[str | None, Any] | None:
    """The one rotation of each type of layers, or None where layers that share the cosines turn differently."""
    found: dict[str | None, Any] = {}
    for layer, scheme in enumerate(schedule):
        turn = turn_of(scheme)
        kind = layers.layer_type(layer) if turner.by_type else None
        # Layers that do not turn at all do not ask for cosines (SmolLM3, Cohere 2).
        if turn is not None and found.setdefault(kind, turn) != turn:
            return None
    return found


def form_of(layers: Layers, turner: Turner) -> tuple[Form, int]:
    """How the model's own module lays cosines out, and in how many channels.

    It is asked for three positions, and must answer what the config says: what could be read wrongly is found here.
    """
    turns = turns_by_type(layers, layers.own, turner)
    if not turns:
        raise ValueError(f"extend: layers of this {layers.model_type} model turn differently, with one rotary module")
    buffer = next(turner.module.buffers(), None)
    device = torch.device("cpu") if buffer is None else buffer.device
    if device.type == "meta":
        raise ValueError(
            f"extend: {type(turner.module).__name__} of this {layers.model_type} model is on the meta device, so it "
            f"cannot be asked how it turns; load the weights first, then extend"
        )
    position = torch.arange(3, device=device)[None]
    kind, turn = next(iter(turns.items()))
    given = (torch.zeros(1, 3, 1, device=device), position, *(() if kind is None else (kind,)))
    theirs: tuple[Tensor, Tensor] = turner.module(*given)
    ours: tuple[Tensor, Tensor] = turn.cos_sin(position)
    forms: tuple[Form, ...] = ("once", "halves", "neighbours")
    for form in forms:
        wanted = [laid_out(each, form) for each in ours]
        if wanted[0].shape == theirs[0].shape and all(map(_near, wanted, theirs)):
            return form, theirs[0].shape[-1]
    raise ValueError(
        f"extend: {type(turner.module).__name__} of this {layers.model_type} model turns otherwise than its config "
        f"says: {turn!r}; nothing was changed"
    )


def _near(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() < CLOSE)
