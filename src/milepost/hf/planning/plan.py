"""`plan`: how to extend a model, from its configuration alone; what it has seen, and what each method would set."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any, cast

import milepost as mp
from milepost.configs import read
from milepost.configs.layer_types import FULL, layer_type
from milepost.configs.reader import Reader
from milepost.configs.rope_types import trained_length
from milepost.configs.rotation import family_of
from milepost.configs.stored import stored_in
from milepost.hf.config.far_layers import reach, sees
from milepost.hf.config.rope_parameters import frequencies, has_types, numbers
from milepost.hf.config.source import config_of
from milepost.hf.model.extension import as_it_was, changed_by
from milepost.hf.planning import candidates as of
from milepost.hf.planning.candidates import Candidate, joined
from milepost.hf.wrapped import said, wrapped
from milepost.schedule import stock_schedule
from milepost.seams import demand
from milepost.seams.arguments import spell

TWO_COORDINATES = "turns by several coordinates at once, for which no stretch is known here"
LEFT_ALONE = ", and a stretch leaves them alone"
STRETCHED_TOO = "; one rope setting serves all layers, so they are stretched with the others"
FEW = ("self-extend", "dual chunk", "YaRN", "the same, further", "ReRoPE, sinks kept")
"""The candidates of a quick choice: one setting of each method, from the two lengths alone."""
DIFFERS = (
    "which method is best differs from model to model and shows on a text alone (docs/extended.md): milepost extend "
    "measures them"
)
"""Why a plan names several."""


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

    trained is the length before any stretch, reached the one that the config promises now. extension is the schedule of
    a model that milepost extended, empty for others. measure names the candidates that `extend` measures, first the
    first of them, served the first of all that plain transformers and vLLM run.
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
    extension: str = ""
    stretched: bool = False
    served: str | None = None
    tuning: str = ""
    facts: Facts | None = None
    notes: tuple[str, ...] = field(default_factory=tuple[str, ...])
    measure: tuple[str, ...] = ()

    @property
    def factor(self) -> float:
        """How many times as far as it reaches now."""
        return self.target / self.reached

    def __getitem__(self, name: str) -> Candidate:
        """The candidate of a name."""
        for each in self.candidates:
            if each.name.lower() == name.lower():
                return each
        raise KeyError(f"no candidate is called {name!r}; there are {joined(each.name for each in self.candidates)}")

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        plain = asdict(replace(self, candidates=()))
        return plain | {"factor": self.factor, "candidates": [each.to_dict() for each in self.candidates]}

    def __str__(self) -> str:
        asked = f"asked for {self.target:,}, {self.factor:g} times as far"
        lines = [f"{self.model_type}: reads {self.reached:,} tokens, {asked}", *said("layers", self.layers)]
        if self.reached != self.trained:
            lines += said("trained", f"at {self.trained:,} tokens before it was stretched")
        if self.extension:
            start = "what the config says" if self.stretched else "the checkpoint"
            lines += said("extended", f"{self.extension}. What follows starts from {start}, as extend does")
        if self.facts is not None:
            lines += _seen(self.facts, self.reached, self.target)
        for note in self.notes:
            lines += said("note", note)
        several = len(self.measure) > 1
        named = joined(self.measure) if several else self.first
        lines += said("measure" if several else "try", f"{named}: {self.why}" if named else self.why)
        if self.served is not None:
            lines += said("to serve", f"{self.served}: plain transformers runs it from the config alone")
        if self.tuning:
            lines += said("to tune", self.tuning)
        if self.candidates:
            lines += ["", *(_table if self.kind == "rotary" else _short)(self)]
        return "\n".join([*lines, *_settings(self)])


def plan(model: object, to: int, trained: int | None = None) -> Plan:
    """Return what to set so that a model reads `to` tokens, from its configuration alone; nothing is loaded or changed.

    model: a model or a config of transformers, a folder with a config.json, that file, its dict, or a name of the hub.
    trained: the trained length, where the config does not name it. Of a model that milepost extended the plan shows
    what it does now, and candidates that would replace it, since `extend` starts from the checkpoint. A config that
    transformers reads as extended is a stretched checkpoint, and the plan goes on from there.

        print(plan("path/to/model", to=32768))
    """
    demand.whole(plan, "to", to)
    if trained is not None:
        demand.whole(plan, "trained", trained)
    config = config_of(model, "plan")
    stored = stored_in(read(config, "plan").source)
    extension = repr(mp.Schedule.of(config)) if stored else ""
    stretched = stored is not None and changed_by(model) is None and bool(stored.get("transformers_reads_it"))
    with as_it_was(model):
        # `extend` starts from there, whatever the config says meanwhile.
        reader = read(copy.deepcopy(config_of(model, "plan")), "plan")
    schedule = stock_schedule(reader)
    original = trained or trained_length(reader, next(iter(schedule)).parts)
    if not isinstance(original, int):
        raise ValueError(
            f"{reader.called}: the config does not say at which length the model was trained; pass trained=2048"
        )
    reached = trained or reach(reader, schedule, original)
    if to <= reached:
        raise ValueError(
            f"plan(to={to}): {reader.model_type} reads {reached:,} tokens as it is; ask for more than that, or use the "
            f"model unchanged"
        )
    return replace(_planned(reader, schedule, original, reached, to), extension=extension, stretched=stretched)


def _planned(reader: Reader, schedule: mp.Schedule, original: int, reached: int, target: int) -> Plan:
    far = [layer for layer, scheme in schedule.items() if sees(scheme) > reached]
    head: dict[str, Any] = {"model_type": reader.model_type, "trained": original, "reached": reached, "target": target}
    head["layers"] = _counted(schedule, far, reader.layers)
    if not far:
        return Plan(**head, kind="windowed", candidates=(), first="", why=(
            f"no layer sees further than {max(sees(scheme) for scheme in schedule):,.0f} keys, so longer texts bring "
            f"nothing it has not seen: use it as it is"))  # fmt: skip
    parts = [part for layer in far for part in schedule[layer].parts]
    causal = all(scheme.is_causal for scheme in schedule)
    turns = list(dict.fromkeys(part for part in parts if getattr(part, "rotary", False)))
    if turns:
        by_type = has_types(reader)
        head["layers"] = _counted(schedule, far, reader.layers, LEFT_ALONE if by_type else STRETCHED_TOO)
        kinds = {layer_type(reader, layer, family_of(reader).rule) for layer in far} if by_type else {FULL}
        temperature = next((part for part in parts if isinstance(part, mp.DeepseekScale)), None)
        return _rotary(reader, head, turns, sorted(kinds), causal, temperature)
    alibi = next((part for part in parts if isinstance(part, mp.Alibi)), None)
    if alibi is not None:
        return _alibi(head, alibi, reached)
    table = next((part for part in parts if isinstance(part, mp.Learned)), None)
    if table is not None:
        found = of.rows(table, target)
        why = "the table has no row for later positions, and the square of its rows is the only reach it has untrained"
        return Plan(
            **head,
            kind="learned table",
            candidates=tuple(found),
            first=found[0].name,
            why=why,
            measure=(found[0].name,),
        )
    note = "distances are looked up in buckets or clipped, or there are none: every length has its encoding already"
    found = [of.log_n(reached, causal, note)]
    why = "no distance is new to it; with more keys the softmax blurs, and log-n sharpens it"
    return Plan(**head, kind="relative", candidates=tuple(found), first="log-n", why=why, measure=("log-n",))


def _counted(schedule: mp.Schedule, far: Sequence[int], layers: int, after: str = "") -> str:
    attending = f"{layers} layers" if len(schedule) == layers else f"{len(schedule)} layers that attend (of {layers})"
    if len(far) == len(schedule):
        return f"all {attending} see every key"
    return f"{len(far)} of {attending} see every key; the others see a window or a chunk{after}"


# RoPE


def _rotary(
    reader: Reader,
    head: dict[str, Any],
    turns: Sequence[object],
    kinds: Sequence[str],
    causal: bool,
    temperature: mp.DeepseekScale | None,
) -> Plan:
    """A model whose far-seeing layers turn queries and keys. kinds: the types of layers that a config stretches."""
    if len(turns) > 1:
        listed = ", ".join(spell(turn) for turn in turns)
        raise ValueError(
            f"{reader.called}: its far-seeing layers turn differently ({listed}); plan each by its own config"
        )
    turn = turns[0]
    rope = turn.method if isinstance(turn, mp.Partial) else turn
    if not isinstance(rope, (mp.Rope, mp.AxialRope)) or getattr(rope, "own", False):
        raise ValueError(f"{reader.called}: {spell(turn)} {TWO_COORDINATES}")
    reached, target = head["reached"], head["target"]
    whole = cast("of.Turn", turn)
    rope = of.rope_of(whole)
    facts = _facts(turn, rope, head["trained"], reached, target)
    if rope.stretch is None:
        found = of.stretches(reader, whole, kinds, reached, target)
    else:
        found = of.grown(reader, whole, kinds, reached, target, temperature)
    found += of.places(rope, reached, target, causal)
    found.append(of.log_n(reached, causal, "sharpens the softmax by the number of keys; goes with any of the above"))
    measure, why = _measure(facts, head, causal, found)
    served = next((each.name for each in _by_merit(found) if each.config is not None), None)
    return Plan(**head, kind="rotary", candidates=tuple(found), first=measure[0], why=why, served=served,
                tuning=_tuning(facts, rope, target), facts=facts,
                notes=(*_notes(reader, found), *_on_axes(whole)), measure=measure)  # fmt: skip


def _facts(turn: object, rope: mp.Rope, trained: int, reached: int, target: int) -> Facts:
    turns = numbers(reached * frequencies(rope, reached) / (2 * math.pi))
    whole = sum(each >= 1 for each in turns)
    least = max(7, trained)
    critical = mp.critical_dimension(rope.head_dim, least, theta=rope.theta)
    base = mp.critical_base(least, max(least, target), theta=rope.theta)
    return Facts(spell(turn), rope.head_dim // 2, rope.theta, turns, whole, critical, base)


def _measure(
    facts: Facts, head: dict[str, Any], causal: bool, found: Sequence[Candidate]
) -> tuple[tuple[str, ...], str]:
    """Return the candidates to measure, as they are measured, and why these."""
    new = facts.pairs - facts.whole
    if not new:
        return ("log-n",), (
            f"all {facts.pairs} pairs have made a whole turn within {head['reached']:,} tokens, so longer texts show "
            f"no new angle; what is left is that more keys blur the softmax"
        )
    seen = f"{new} of {facts.pairs} pairs have not made a whole turn within {head['reached']:,} tokens, so longer " \
           f"texts would show angles they never met"  # fmt: skip
    names = [each.name for each in found]
    if not causal:
        few = ("self-extend", "YaRN", "the same, further", "ReRoPE, log-n")
        return tuple(each for each in few if each in names), f"{seen}. Which is best shows on a task alone"
    return tuple(each for each in FEW if each in names), f"{seen}; {DIFFERS}"


MERIT = ("the same, further", "YaRN", "dynamic NTK", "NTK", "Llama 3", "by parts")


def _by_merit(found: Sequence[Candidate]) -> list[Candidate]:
    return sorted(found, key=lambda each: MERIT.index(each.name) if each.name in MERIT else len(MERIT))


def _tuning(facts: Facts, rope: mp.Rope, target: int) -> str:
    """What fine-tuning at length would use."""
    larger = f"a base above {facts.critical_base:,.0f} (the critical base)" if rope.stretch is None else ""
    other = "YaRN" if rope.stretch is None else "the same stretch, further"
    return f"fine-tune at {target:,} tokens with {' or '.join(each for each in (other, larger) if each)}"


def _notes(reader: Reader, found: Sequence[Candidate]) -> tuple[str, ...]:
    if any(each.config is not None for each in found):
        return ()
    why = next((each.note.rpartition("; ")[2] for each in found if each.note), "")
    return (f"nothing of this can be written into a config: {why}",) if why else ()


def _on_axes(turn: of.Turn) -> tuple[str, ...]:
    """What to know where tokens of images stand on several axes."""
    if getattr(turn, "axes", None) is None:
        return ()
    return (
        "what gives tokens other distances (Self-Extend, ReRoPE, dual chunk) reads text alone here: tokens of images "
        "have several positions; stretches, log-n and windows read images too",
    )


# ALiBi


def _alibi(head: dict[str, Any], alibi: mp.Alibi, reached: int) -> Plan:
    found = of.slopes(alibi, reached, head["target"])
    slopes = cast("Any", alibi.slopes()).behind
    notes = (
        f"slopes now run from {float(slopes.max()):.4g} to {float(slopes.min()):.4g}: the flattest head lowers a key "
        f"{reached:,} tokens back by {float(slopes.min()) * reached:.1f}",
    )
    names = tuple(each.name for each in found)
    why = f"ALiBi reads any length, but its penalties hide what is far: these flatten them; {DIFFERS}"
    return Plan(**head, kind="ALiBi", candidates=tuple(found), first=names[0], why=why, notes=notes, measure=names)


# Printed


def _seen(facts: Facts, reached: int, target: int) -> list[str]:
    lines = said("rotation", f"{facts.rotation}: {facts.pairs} pairs of channels")
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
    lines += said("turned", text)
    return lines + said(
        "critical",
        f"dimension {facts.critical_dimension} of {2 * facts.pairs}; base {facts.critical_base:,.0f} for {target:,} "
        f"tokens (the model has {facts.theta:,.10g})",
    )


def _table(plan: Plan) -> list[str]:
    """A line for each candidate with its numbers and what the config would say, then one with the call, whole."""
    rows: list[tuple[str, ...]] = [("method", "factor", "base", "magnitude", "slowest pair", "rope_type")]
    forms = {"factor": "g", "base": ",.0f", "magnitude": ".4f"}
    for each in plan.candidates:
        settings = each.rope_parameters or {}
        cells = (f"{each.sets[name]:{form}}" if name in each.sets else "" for name, form in forms.items())
        slowest = f"÷ {_slowest(each.frequencies, plan.facts):.4g}" if each.sets and plan.facts else ""
        rows.append((each.name, *cells, slowest, settings.get(FULL, settings).get("rope_type", "–")))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return [*lines, "", *chain.from_iterable(_call(plan, each, widths[0]) for each in plan.candidates)]


def _call(plan: Plan, each: Candidate, width: int) -> list[str]:
    """Return the call as it can be pasted: parts too long to be written are taken from the plan."""
    short = each.call == ", ".join(spell(part, whole=True) for part in each.parts)
    parts = each.call if short else f'*plan(model, to={plan.target})["{each.name}"].parts'
    return wrapped(f"extend(model, {parts})", f"  {each.name:<{width}}  ", width + 8)


def _slowest(found: tuple[float, ...], facts: Facts) -> float:
    """Return by how much the slowest pair that turns at all is slowed."""
    before = facts.theta ** (1 / facts.pairs - 1)
    return before / found[-1] if found[-1] else float("inf")


def _short(plan: Plan) -> list[str]:
    lines: list[str] = []
    for each in plan.candidates:
        sets = ", ".join(f"{name} {value:.6g}" for name, value in each.sets.items())
        words = f"{each.name}: {each.call}" + (f" ({sets})" if sets else "") + (f"; {each.note}" if each.note else "")
        lines += said("", words)
    return lines


def _settings(plan: Plan) -> list[str]:
    """The exact settings of what can be served."""
    if plan.served is None:
        return []
    chosen = plan[plan.served]
    lines = ["", f"config.json, for {chosen.name}" + (" (vLLM reads the same)" if chosen.vllm == chosen.config else "")]
    lines += wrapped(json.dumps(chosen.config))
    if chosen.vllm is not None and chosen.vllm != chosen.config:
        lines += ["for vLLM (--hf-overrides)", *wrapped(json.dumps(chosen.vllm))]
    if chosen.note:
        lines += said("note", chosen.note)
    return lines
