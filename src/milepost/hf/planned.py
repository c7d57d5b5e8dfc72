"""A plan, and how it is printed: what the model has seen, what to try first, and what each method would set."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass, field
from typing import Any

from milepost.hf.candidates import Candidate

WIDTH = 118


@dataclass(frozen=True)
class Facts:
    """What a rotation has seen within the length that the model serves today.

    turns are those that each pair makes; whole is how many pairs make one at least. critical_base is the base above
    which fine-tuning at the target reaches further than the target (Liu et al., arXiv:2310.05209).
    """

    rotation: str
    pairs: int
    theta: float
    turns: tuple[float, ...]
    whole: int
    critical_dimension: int
    critical_base: float


@dataclass(frozen=True)
class Plan:
    """What to do with a model that is asked for longer texts; `print(plan)` shows it, `to_dict()` is JSON.

    trained is the length before any stretch, reached the one that the config promises now. first names the candidate to
    try first without training, served the first that plain transformers and vLLM run.
    """

    model_type: str
    trained: int
    reached: int
    target: int
    kind: str
    layers: str
    candidates: tuple[Candidate, ...]
    first: str
    why: str
    served: str | None = None
    tuning: str = ""
    facts: Facts | None = None
    notes: tuple[str, ...] = field(default_factory=tuple[str, ...])

    @property
    def factor(self) -> float:
        """How many times as far as it reaches now."""
        return self.target / self.reached

    def __getitem__(self, name: str) -> Candidate:
        """The candidate of a name."""
        for each in self.candidates:
            if each.name.lower() == name.lower():
                return each
        raise KeyError(f"no candidate is called {name!r}; there are {', '.join(each.name for each in self.candidates)}")

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain["facts"] = None if self.facts is None else dict(self.facts.__dict__)
        return plain | {"factor": self.factor, "candidates": [each.to_dict() for each in self.candidates]}

    def __str__(self) -> str:
        return printed(self)


def printed(plan: Plan) -> str:
    """The plan in lines of at most 118 columns."""
    lines = [
        f"{plan.model_type}: reads {plan.reached:,} tokens, asked for {plan.target:,}, {plan.factor:g} times as far",
        *_said("layers", plan.layers),
    ]
    if plan.reached != plan.trained:
        lines += _said("trained", f"at {plan.trained:,} tokens before it was stretched")
    if plan.facts is not None:
        lines += _seen(plan.facts, plan.reached, plan.target)
    for note in plan.notes:
        lines += _said("note", note)
    lines += _said("try first", f"{plan.first}: {plan.why}" if plan.first else plan.why)
    if plan.served is not None:
        lines += _said("to serve", f"{plan.served}: plain transformers runs it from the config alone")
    if plan.tuning:
        lines += _said("to tune", plan.tuning)
    if plan.candidates:
        lines += ["", *_table(plan)]
    lines += _settings(plan)
    return "\n".join(lines)


def _said(name: str, text: str) -> list[str]:
    first, *rest = textwrap.wrap(text, WIDTH - 12, break_long_words=False) or [""]
    return [f"  {name:<10}{first}", *(f"{'':12}{line}" for line in rest)]


def _seen(facts: Facts, reached: int, target: int) -> list[str]:
    lines = _said("rotation", f"{facts.rotation}: {facts.pairs} pairs of channels")
    seen = f"within {reached:,} tokens"
    if facts.whole == facts.pairs:
        text = f"every pair makes a whole turn {seen}"
    elif facts.whole:
        text = (
            f"pairs 0 … {facts.whole - 1} make a whole turn {seen}; pairs {facts.whole} … {facts.pairs - 1} make less "
            f"(the slowest {facts.turns[-1]:.3g} of one)"
        )
    else:
        text = f"no pair makes a whole turn {seen}"
    lines += _said("turned", text)
    return lines + _said(
        "critical",
        f"dimension {facts.critical_dimension} of {2 * facts.pairs}; base {facts.critical_base:,.0f} for {target:,} "
        f"tokens (the model has {facts.theta:,.10g})",
    )


def _table(plan: Plan) -> list[str]:
    """A line for each candidate: its numbers, what the config would say, and the call."""
    head = ("method", "factor", "base", "magnitude", "slowest pair", "rope_type", "extend(model, …)")
    if plan.kind != "rotary":
        return _short(plan)
    rows: list[tuple[str, ...]] = [head]
    plain = plan.facts
    for each in plan.candidates:
        settings = each.rope_parameters or {}
        inner = settings.get("full_attention", settings)
        slowest = f"÷ {_slowest(each.frequencies, plain):.4g}" if each.sets and plain else ""
        rows.append((
            each.name,
            f"{each.sets['factor']:g}" if "factor" in each.sets else "",
            f"{each.sets['base']:,.0f}" if "base" in each.sets else "",
            f"{each.sets['magnitude']:.4f}" if "magnitude" in each.sets else "",
            slowest,
            inner.get("rope_type", "–"),
            textwrap.shorten(each.call, 37, placeholder=" …"),
        ))  # fmt: skip
    widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _slowest(found: tuple[float, ...], facts: Facts) -> float:
    """By how much the slowest pair that turns at all is slowed."""
    before = facts.theta ** (-2 * (facts.pairs - 1) / (2 * facts.pairs))
    return before / found[-1] if found[-1] else float("inf")


def _short(plan: Plan) -> list[str]:
    lines: list[str] = []
    for each in plan.candidates:
        sets = ", ".join(f"{name} {value:.6g}" for name, value in each.sets.items())
        lines += _said(
            "", f"{each.name}: {each.call}" + (f" ({sets})" if sets else "") + (f"; {each.note}" if each.note else "")
        )
    return lines


def _settings(plan: Plan) -> list[str]:
    """The exact settings of what can be served."""
    if plan.served is None:
        return []
    chosen = plan[plan.served]
    lines = ["", f"config.json, for {chosen.name}" + (" (vLLM reads the same)" if chosen.vllm == chosen.config else "")]
    lines.append(json.dumps(chosen.config))
    if chosen.vllm is not None and chosen.vllm != chosen.config:
        lines += ["for vLLM (--hf-overrides)", json.dumps(chosen.vllm)]
    if chosen.note:
        lines += _said("note", chosen.note)
    return lines
