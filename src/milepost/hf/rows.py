"""Rows of the lab by their names: "ReRoPE, pivot", "YaRN", or an expression such as "Rerope(512) + LogN(trained)"."""

from __future__ import annotations

from typing import Any

from milepost.catalogue.spelling import plain
from milepost.hf.models import Layers
from milepost.hf.rotary import turn_of
from milepost.lab.schemes.expressions import Sum, evaluate, words_in
from milepost.lab.schemes.named import AND_THE_REST, WITHOUT_TRAINING
from milepost.methods.alibi import Alibi
from milepost.methods.partial import Partial
from milepost.methods.rope import Rope
from milepost.seams.arguments import did_you_mean, spell
from milepost.seams.visible import Causal

BEST = "ReRoPE, pivot"
"""The row that led the lab's comparison among those that see every key; what `to` alone stands for."""

SINKS_KEPT = (
    "Dilute(Pivot(KeepSinks(Rerope(max(2, 3 * trained // 4), at=max(2, trained // 4))), trained, 0.5), trained, 0.25)"
)
OF_MODELS: dict[str, dict[str, str]] = {"rope": {"ReRoPE, sinks kept": f"Rope(dim) + {SINKS_KEPT}"}, "alibi": {}}
"""Rows beside the lab's, for models trained elsewhere, which rest on their first tokens (docs/extended.md)."""


def parts_of_row(name: str, layers: Layers, to: int | None) -> tuple[object, ...]:
    """The parts of a row, sized for this model; what turns in it stands for the layer's own rotation."""
    family = "alibi" if any(isinstance(part, Alibi) for part in layers.own[0].parts) else "rope"
    rows = WITHOUT_TRAINING[family] | AND_THE_REST[family] | OF_MODELS[family]
    text = {plain(each): expression for each, expression in rows.items()}.get(plain(name))
    if text is None and "(" not in name:
        raise ValueError(f"extend: no row of the lab is called {name!r}{did_you_mean(name, rows)}; there are "
                         f"{'; '.join(rows)}, and expressions such as 'Rerope(512) + LogN(trained)'")  # fmt: skip
    made: Any = evaluate(text or name, sizes(layers, text or name, name, to))
    parts: list[object] = []
    for part in made.parts if isinstance(made, Sum) else (made,):
        if isinstance(part, (Rope, Partial)):
            parts += stretch_of(part, name)
        elif isinstance(part, Alibi):
            parts += [] if part.stretch is None else [part.stretch]
        elif not isinstance(part, Causal):
            parts.append(part)
    return tuple(parts)


def stretch_of(part: Rope | Partial, name: str) -> list[object]:
    """What a rotation in a row says beyond being one."""
    turn: Any = part.method if isinstance(part, Partial) else part
    if turn.theta != Rope(turn.dim).theta:
        raise ValueError(
            f"extend: {name!r} has the base {turn.theta:g}; in a row Rope(dim) is the model's own rotation. For "
            f"another base give the part itself: extend(model, {spell(part)})"
        )
    return [] if turn.stretch is None else [turn.stretch]


def sizes(layers: Layers, text: str, name: str, to: int | None) -> dict[str, int]:
    """The words that a row may read, as numbers of this model."""
    turns = [turn for turn in map(turn_of, layers.own) if turn is not None]
    config, trained = layers.config, layers.own.trained
    found = {"heads": config.num_attention_heads, "layers": len(layers.own), "width": config.hidden_size}
    if turns:
        found["dim"] = turns[0].head_dim
    read = words_in(text)
    if trained is None and read & {"trained", "group", "longest"}:
        raise ValueError(f"extend: {name!r} reads the trained length, which this {layers.model_type} config lacks")
    if trained is not None:
        found["trained"] = trained
        longest = longest_of(trained, to, name) if to is not None or read & {"longest", "group"} else trained
        found |= {"longest": longest, "group": min(max(2, 2 * longest // trained), max(trained // 2, 1))}
    return found


def longest_of(trained: int, to: int | None, name: str) -> int:
    """The length to reach; it is asked for where a row goes by it."""
    if to is None:
        raise ValueError(f"extend: {name!r} goes by the length to reach; say it: extend(model, {name!r}, to=…)")
    return to
