"""How to take a model further, read from its configuration alone: what it has seen, what each method would set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from milepost.configs import read, schedule_of
from milepost.configs.lengths import trained_length
from milepost.configs.reader import LENGTH, Reader
from milepost.hf import candidates as of
from milepost.hf.candidates import Candidate
from milepost.hf.planned import Facts, Plan
from milepost.hf.rope_settings import frequencies, numbers
from milepost.hf.source import config_of
from milepost.methods.alibi import Alibi
from milepost.methods.learned import Learned
from milepost.methods.llama3 import Llama3
from milepost.methods.long_rope import LongRope
from milepost.methods.partial import Partial
from milepost.methods.rope import Rope
from milepost.methods.yarn import Yarn
from milepost.schedule import Schedule
from milepost.scheme import Scheme
from milepost.seams import demand
from milepost.seams.arguments import spell
from milepost.theory.scaling import critical_base, critical_dimension

TWO_COORDINATES = "turns by several coordinates at once, for which no stretch is known here"


def plan(model: object, to: int, trained: int | None = None) -> Plan:
    """What to set so that a model reads `to` tokens, from its configuration alone; nothing is loaded or changed.

    model: a model or a config of transformers, a folder with a config.json, that file, its dict, or a name of the hub.
    trained: the trained length, where the config does not say it.

        print(plan("path/to/model", to=32768))
    """
    demand.whole(plan, "to", to)
    config = config_of(model, "plan")
    reader = read(config, "plan")
    schedule = schedule_of(config)
    original = trained or trained_length(reader, schedule[0].parts)
    if not isinstance(original, int):
        raise ValueError(
            f"{reader.called}: the config does not say at which length the model was trained; pass trained=2048"
        )
    reached = trained or _reached(reader, schedule, original)
    if to <= reached:
        raise ValueError(
            f"plan(to={to}): {reader.model_type} reads {reached:,} tokens as it is; ask for more than that, or use the "
            f"model unchanged"
        )
    return _planned(reader, schedule, original, reached, to)


def _reached(reader: Reader, schedule: Schedule, original: int) -> int:
    """The length that the config promises: its longest, or the trained one times the factor of a stretch."""
    parts = [part for scheme in schedule for part in scheme.parts]
    if any(isinstance(part, Learned) for part in parts):
        # RoBERTa's longest length counts two rows that no token uses.
        return original
    ropes = [part.method if isinstance(part, Partial) else part for part in parts]
    stretches = [rope.stretch for rope in ropes if isinstance(rope, Rope)]
    factors = [each.factor for each in stretches if isinstance(each, (LongRope, Llama3, Yarn))]
    return max(original, int(reader.get(*LENGTH) or 0), *(int(original * factor) for factor in factors))


def _planned(reader: Reader, schedule: Schedule, original: int, reached: int, target: int) -> Plan:
    far = [scheme for scheme in schedule if _sees(scheme) > reached]
    head: dict[str, Any] = {"model_type": reader.model_type, "trained": original, "reached": reached, "target": target}
    head["layers"] = _counted(schedule, far)
    if not far:
        return Plan(**head, kind="windowed", candidates=(), first="", why=(
            f"no layer sees further than {max(_sees(scheme) for scheme in schedule):,.0f} keys, so longer texts bring "
            f"nothing it has not seen: use it as it is"))  # fmt: skip
    parts = [part for scheme in far for part in scheme.parts]
    causal = all(scheme.is_causal for scheme in schedule)
    turns = list(dict.fromkeys(part for part in parts if getattr(part, "rotary", False)))
    if turns:
        return _rotary(reader, head, turns, causal)
    alibi = next((part for part in parts if isinstance(part, Alibi)), None)
    if alibi is not None:
        return _alibi(head, alibi, reached)
    table = next((part for part in parts if isinstance(part, Learned)), None)
    if table is not None:
        found = of.rows(table, target)
        why = "the table has no row for later positions, and the square of its rows is the only reach it has untrained"
        return Plan(**head, kind="learned table", candidates=tuple(found), first=found[0].name, why=why)
    note = "distances are looked up in buckets or clipped, or there are none: every length has its encoding already"
    found = [of.log_n(reached, causal, note)]
    why = "no distance is new to it; with more keys the softmax blurs, and log-n sharpens it"
    return Plan(**head, kind="relative", candidates=tuple(found), first="log-n", why=why)


def _sees(scheme: Scheme) -> float:
    """How far back a layer looks."""
    band = scheme.band()
    if band is None or band.sinks:
        return math.inf
    return min(band.behind, math.inf if band.chunk is None else band.chunk)


def _counted(schedule: Schedule, far: Sequence[Scheme]) -> str:
    if len(far) == len(schedule):
        return f"all {len(schedule)} layers see every key"
    return f"{len(far)} of {len(schedule)} layers see every key; the others see a window or a chunk and are left alone"


# RoPE


def _rotary(reader: Reader, head: dict[str, Any], turns: Sequence[object], causal: bool) -> Plan:
    """A model whose far-seeing layers turn queries and keys."""
    if len(turns) > 1:
        listed = ", ".join(spell(turn) for turn in turns)
        raise ValueError(
            f"{reader.called}: its far-seeing layers turn differently ({listed}); plan each by its own config"
        )
    turn = turns[0]
    rope = turn.method if isinstance(turn, Partial) else turn
    if not isinstance(rope, Rope):
        raise ValueError(f"{reader.called}: {spell(turn)} {TWO_COORDINATES}")
    reached, target = head["reached"], head["target"]
    width = turn.of if isinstance(turn, Partial) else rope.dim
    facts = _facts(turn, rope, head["trained"], reached, target)
    if rope.stretch is None:
        found = of.stretches(reader, rope, width, reached, target)
    else:
        found = of.grown(reader, rope, width, reached, target)
    found += of.places(rope, reached, target, causal)
    found.append(of.log_n(reached, causal, "sharpens the softmax by the number of keys; goes with any of the above"))
    first, why = _first(facts, head, causal, rope)
    served = next((each.name for each in _by_merit(found) if each.config is not None), None)
    return Plan(**head, kind="rotary", candidates=tuple(found), first=first, why=why, served=served,
                tuning=_tuning(facts, rope, target), facts=facts, notes=_notes(reader, found))  # fmt: skip


def _facts(turn: object, rope: Rope, trained: int, reached: int, target: int) -> Facts:
    turns = numbers(reached * frequencies(rope, reached) / (2 * math.pi))
    whole = sum(each >= 1 for each in turns)
    least = max(7, trained)
    return Facts(spell(turn), rope.dim // 2, rope.theta, turns, whole, critical_dimension(rope.dim, least, rope.theta),
                 critical_base(least, max(least, target), rope.theta))  # fmt: skip


def _first(facts: Facts, head: dict[str, Any], causal: bool, rope: Rope) -> tuple[str, str]:
    """The candidate to try first without training, and why."""
    new = facts.pairs - facts.whole
    if not new:
        return "log-n", (
            f"all {facts.pairs} pairs have made a whole turn within {head['reached']:,} tokens, so longer texts show "
            f"no new angle; what is left is that more keys blur the softmax"
        )
    seen = f"{new} of {facts.pairs} pairs have not made a whole turn within {head['reached']:,} tokens, so longer " \
           f"texts would show angles they never met"  # fmt: skip
    if not causal:
        return ("YaRN" if rope.stretch is None else "ReRoPE, log-n"), f"{seen}; this slows exactly those"
    return "ReRoPE, pivot", (
        f"{seen}; this keeps every distance within the trained ones, sees every key, and led the training-free rows of "
        f"milepost's measurements"
    )


MERIT = ("the same, further", "YaRN", "dynamic NTK", "NTK", "Llama 3", "by parts")


def _by_merit(found: Sequence[Candidate]) -> list[Candidate]:
    return sorted(found, key=lambda each: MERIT.index(each.name) if each.name in MERIT else len(MERIT))


def _tuning(facts: Facts, rope: Rope, target: int) -> str:
    """What fine-tuning at length would use."""
    larger = f"a base above {facts.critical_base:,.0f} (the critical base)" if rope.stretch is None else ""
    other = "YaRN" if rope.stretch is None else "the same stretch, further"
    return f"fine-tune at {target:,} tokens with {' or '.join(each for each in (other, larger) if each)}"


def _notes(reader: Reader, found: Sequence[Candidate]) -> tuple[str, ...]:
    if any(each.config is not None for each in found):
        return ()
    why = next((each.note.rpartition("; ")[2] for each in found if each.note), "")
    return (f"nothing of this can be written into a config: {why}",) if why else ()


# ALiBi


def _alibi(head: dict[str, Any], alibi: Alibi, reached: int) -> Plan:
    found = of.slopes(alibi, reached, head["target"])
    slopes = cast("Any", alibi.slopes()).behind
    notes = (
        f"slopes now run from {float(slopes.max()):.4g} to {float(slopes.min()):.4g}: the flattest head lowers a key "
        f"{reached:,} tokens back by {float(slopes.min()) * reached:.1f}",
    )
    why = (
        "ALiBi reads any length, but its penalties hide what is far; NTK-ALiBi flattens the heads that look far and "
        "keeps those that look near (BLOOM 1.7B found a topic 3,000 tokens back in 96 % of cases, 2 % as it was)"
    )
    return Plan(**head, kind="ALiBi", candidates=tuple(found), first="NTK", why=why, notes=notes)
