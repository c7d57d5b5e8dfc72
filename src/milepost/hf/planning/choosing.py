"""The best way to take a model further, found by measuring the candidates of its plan on a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from milepost.hf.config.source import first_line
from milepost.hf.measuring.judged import STOCK, AsItWas, evaluating
from milepost.hf.measuring.measure import measure
from milepost.hf.measuring.measured_page import Measured
from milepost.hf.measuring.trials import doubling
from milepost.hf.model.extension import as_it_was, extended, restore
from milepost.hf.model.models import demand_causal, demand_model, device_of, same_config
from milepost.hf.planning.candidates import Candidate
from milepost.hf.planning.plan import plan
from milepost.seams.verbs import answers

LAST = 64
"""Tokens of each ending that are judged, where a window of the trained length holds them twice."""


@dataclass(frozen=True)
class Chosen:
    """The candidate that did best at the target among those that see every key, and what all of them scored."""

    best: Candidate
    measured: Measured
    target: int
    left_out: dict[str, str]
    """Candidates that this model cannot be given, and why."""

    def __str__(self) -> str:
        grown, low, high = self.measured.grown(self.best.name, self.target)
        between = f" ({low:.3f} to {high:.3f})" if math.isfinite(low) else ""
        lines = [
            str(self.measured),
            "",
            f"best that sees every key at {self.target:,}: {self.best.name}, {grown:.3f} times the perplexity at "
            f"{self.measured.trained:,}{between}",
        ]
        if self.measured.beside:
            more = self.measured.more(self.best.name, self.target)
            lines.append(f"beside {self.measured.beside}: {more} nats a token, paired")
        lines += [f"not tried: {name}, {why}" for name, why in self.left_out.items()]
        return "\n".join(lines)


def choose(
    model: Any,
    text: object,
    tokenizer: object = None,
    *,
    to: int,
    names: Sequence[str] | None = None,
    last: int | None = None,
    windows: int = 16,
    progress: bool = True,
) -> Chosen:
    """Measure the candidates of `plan(model, to)` on a text, beside stock, a window and a window with sinks.

    names: the candidates to try; by default all that can be given to this model without training. The same last tokens
    are judged at every length, by default 64, or half of the trained length where that is less. A model that is
    extended already is measured from what it was at first, and is as it was afterwards.
    """
    demand_causal("choose: this is", demand_model("choose", model))
    with evaluating([model]), as_it_was(model), same_config(model):
        planned = plan(model.config, to)
        wanted = planned.candidates if names is None else [planned[name] for name in names]
        rows: dict[str, Callable[[Tensor], Tensor]] = {STOCK: AsItWas(model)}
        left_out: dict[str, str] = {}
        for candidate in wanted:
            try:
                extended(model, candidate.parts)
            except (ValueError, TypeError) as error:
                left_out[candidate.name] = first_line(error)
            else:
                rows[candidate.name] = _under(model, candidate.parts)
            finally:
                restore(model)
        seeing = [each for each in wanted if not any(answers(part, "see") for part in each.parts)]
        able = [each for each in seeing if each.name in rows]
        if not able:
            raise ValueError(
                f"choose(to={to}): none of {', '.join(each.name for each in wanted)} sees every key and can be given "
                f"to this model: {'; '.join(left_out.values())}"
            )
        measured = measure(
            rows, text, tokenizer, lengths=[*doubling(planned.trained, to - 1), to], trained=planned.trained,
            last=min(LAST, max(1, planned.trained // 2)) if last is None else last, windows=windows,
            distances=(), needle=(), progress=progress,
        )  # fmt: skip
        best = min(able, key=lambda each: measured.nats[each.name][to].mean)
        return Chosen(best, measured, to, left_out)


def _under(model: Any, parts: tuple[object, ...]) -> Callable[[Tensor], Tensor]:
    """Run a model under some parts and restore it: one set of weights serves all rows."""

    def logits(ids: Tensor) -> Tensor:
        extended(model, parts)
        try:
            return model(input_ids=ids.to(device_of(model)), use_cache=False).logits
        finally:
            restore(model)

    return logits
