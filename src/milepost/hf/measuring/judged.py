"""What is measured: a model as it is, and beside it the trivial ways to read a long text with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost.hf.model.extension import as_it_was, changed_by, extended, restore
from milepost.hf.model.models import demand_causal, device_of, longest

STOCK, EXTENDED, WINDOW = "stock", "extended", "window"
AT_ONCE = 1 << 14
"""Tokens read in one forward pass."""
ROWS = 1 << 12
"""Rows of logits in float32 at once."""

Logits = Callable[[Tensor], Tensor]
"""Token ids [b t] to the logits of every next token, [b t vocabulary]."""


@dataclass(frozen=True)
class Row:
    """One line of the tables: a model, or a model that is given part of the text only.

    window and sinks say which part: the last tokens, and perhaps the first few besides, moved together as if the rest
    had never been there. 0 is everything. longest: how many tokens the model can read, None where it reads any number.
    """

    name: str
    model: nn.Module | Logits
    window: int = 0
    sinks: int = 0
    longest: int | None = None

    @property
    def trivial(self) -> bool:
        """Whether anybody could do this without a method."""
        return self.window > 0

    def given(self, ids: Tensor) -> Tensor:
        """The tokens that the model is given, of ids [b t]."""
        if not self.window or ids.shape[1] <= self.window:
            return ids
        return torch.cat((ids[:, : self.sinks], ids[:, ids.shape[1] - self.window + self.sinks :]), 1)

    def reads(self, ids: Tensor) -> bool:
        """Return True if the model can be judged on ids [b t], of which it is not given the last token."""
        return self.longest is None or self.given(ids[:, :-1]).shape[1] <= self.longest


@dataclass(frozen=True)
class Judged:
    """The last tokens of texts, each judged by what came before: nats, the entropy of the guess, whether it was right.

    All [b n], float32 or bool, on the CPU.
    """

    nats: Tensor
    entropy: Tensor
    right: Tensor


class AsItWas:
    """A model without its extension, as a function from token ids to logits; the model has it again afterwards."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, ids: Tensor, last: int = 0) -> Tensor:
        with as_it_was(self.model) as model:
            return _logits(model, ids, last)


class Under:
    """A model under the parts of a candidate, as a function from token ids to logits; it is restored afterwards."""

    def __init__(self, model: nn.Module, parts: tuple[object, ...]) -> None:
        self.model, self.parts = model, parts

    def __call__(self, ids: Tensor, last: int = 0) -> Tensor:
        extended(self.model, self.parts)
        try:
            return _logits(self.model, ids, last)
        finally:
            restore(self.model)


def named(models: object) -> dict[str, Any]:
    """Return causal models by their names, and where some are extended and none is called stock, the first as it was.

    One model alone is called stock, or extended where it is.
    """
    one = STOCK if changed_by(models) is None else EXTENDED
    given = dict(cast("Mapping[str, Any]", models)) if isinstance(models, Mapping) else {one: cast("Any", models)}
    if not given:
        raise ValueError("measure: no model was given; give one, or a dict of names and models")
    for name, model in given.items():
        if not callable(model):
            raise TypeError(
                f"measure: {name!r} is a {type(model).__name__}; a model of transformers or a function from token ids "
                f"[b t] to logits [b t vocabulary] can be measured"
            )
        demand_causal(f"measure: {name!r} is", model)
    found = next((each for each in given.values() if changed_by(each) is not None), None)
    return given if found is None or STOCK in given else {STOCK: AsItWas(found), **given}


def refuse_unknown(ids: Tensor, models: Mapping[str, Any]) -> None:
    """Refuse ids that a model has no embedding for, which is what another model's tokenizer gives."""
    for name, model in models.items():
        table = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
        known = getattr(table, "num_embeddings", None)
        if known is not None and len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < known:
            wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
            raise ValueError(
                f"measure: the text has the token id {wrong}, and {name!r} knows {known}; was the text made into ids "
                f"by another model's tokenizer?"
            )


def rows_of(models: Mapping[str, Any], window: int, sinks: int) -> list[Row]:
    """Return a row for each model, and the trivial ones of the model called stock or else the first."""
    rows = [Row(name, model, longest=reach(model)) for name, model in models.items()]
    if window <= 0:
        return rows
    if window <= sinks + 1:
        raise ValueError(f"measure(window={window}, sinks={sinks}): the window must be larger than its sinks")
    plain = next((row for row in rows if row.name == STOCK), rows[0])
    trivial = [replace(plain, name=f"{WINDOW} {window:,}", window=window)]
    if sinks:
        trivial.append(replace(trivial[0], name=f"{WINDOW} {window - sinks:,} and {sinks} sinks", sinks=sinks))
    return rows + [row for row in trivial if row.name not in models]


def reach(model: nn.Module | Logits) -> int | None:
    """Return how many tokens a model of a row can read; None where nothing ends, or nobody knows."""
    if isinstance(model, AsItWas):
        with as_it_was(model.model) as plain:
            return longest(plain)
    return longest(model) if isinstance(model, nn.Module) else None


@contextmanager
def evaluating(models: Iterable[object]) -> Generator[None]:
    """Run models without dropout for a while; then every module is in the mode that it was in."""
    own = [each for each in models if isinstance(each, nn.Module)]
    kept = [[module.training for module in each.modules()] for each in own]
    try:
        for model in own:
            model.eval()
        yield
    finally:
        for model, modes in zip(own, kept, strict=True):
            # A module may be another one by now, where an extension was taken off and put on again.
            for module, mode in zip(model.modules(), modes, strict=False):
                module.training = mode


@torch.no_grad()
def judge(row: Row, ids: Tensor, last: int) -> Judged:
    """Judge the last tokens of every text in ids [b t]; the model is given all tokens but the very last."""
    given = row.given(ids[:, :-1])
    if given.shape[1] < last:
        raise ValueError(f"{row.name}: {last} tokens are to be judged, and the model is given {given.shape[1]}")
    targets = ids[:, -last:]
    step = max(1, AT_ONCE // given.shape[1])
    parts = [_judged(row, given[n : n + step], targets[n : n + step]) for n in range(0, len(ids), step)]
    return Judged(*(torch.cat([getattr(part, name) for part in parts]) for name in ("nats", "entropy", "right")))


def _judged(row: Row, given: Tensor, targets: Tensor) -> Judged:
    last = targets.shape[1]
    logits = _logits(row.model, given, last)
    if logits.dim() != 3 or logits.shape[:1] != given.shape[:1] or logits.shape[1] < last:
        raise ValueError(
            f"{row.name}: given ids {list(given.shape)}, the model returned logits {list(logits.shape)}; they must be "
            f"[{given.shape[0]}, {given.shape[1]}, vocabulary]"
        )
    flat, wanted = logits[:, -last:].flatten(0, 1), targets.to(logits.device).flatten()
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for n in range(0, len(flat), ROWS):
        scores, right = flat[n : n + ROWS].float(), wanted[n : n + ROWS]
        logs = scores.log_softmax(-1)
        entropy = -(logs.exp() * logs.clamp(min=-100)).sum(-1)
        found.append((-logs.gather(-1, right[:, None])[:, 0], entropy, scores.argmax(-1) == right))
    return Judged(*(torch.cat(each).view(targets.shape).cpu() for each in zip(*found, strict=True)))


def _logits(model: nn.Module | Logits, ids: Tensor, last: int) -> Tensor:
    """The logits of the next tokens at the last places, or at all."""
    if isinstance(model, (AsItWas, Under)):
        return model(ids, last)
    if not isinstance(model, nn.Module) or getattr(model, "config", None) is None:
        return model(ids)
    options: dict[str, Any] = {"use_cache": False}
    if last and "logits_to_keep" in inspect.signature(cast("Any", model.forward)).parameters:
        options["logits_to_keep"] = last
    device = device_of(model)
    return model(input_ids=ids.to(device), **options).logits
