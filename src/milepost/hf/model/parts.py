"""What was asked for, put into each layer's own scheme."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from torch import nn

from milepost import Alibi, AxialRope, Learned, Partial, QkNorm, Rope, Schedule, Scheme, Sinusoidal, T5Bias, causal
from milepost.catalogue.names.spelling import plain
from milepost.configs.falcon_slopes import FalconSlopes
from milepost.hf.config.rope_parameters import frequencies
from milepost.hf.model.models import Layers
from milepost.hf.model.rotary import turn_of
from milepost.lab.schemes.expressions import Sum, evaluate, words_in
from milepost.lab.schemes.named import AND_THE_REST, WITHOUT_TRAINING
from milepost.schedule import ranges
from milepost.seams.arguments import did_you_mean, spell
from milepost.seams.band import both, strips_of
from milepost.seams.verbs import SlopeStretch, Stretch, answers, verbs_of
from milepost.seams.visible import Causal, Visible

ROTARY, ALIBI, BUCKETS, TABLE, WAVES = "rotary", "ALiBi slopes", "T5 buckets", "learned table", "sinusoidal"
ENCODES = ("embed", "turn", "relate", "bend", "bend_rows")


def kind_of(part: object) -> str | None:
    """Return how a part encodes positions; None where it does something else."""
    if isinstance(part, QkNorm) or answers(part, "cap") or not any(answers(part, verb) for verb in ENCODES):
        return None
    if getattr(part, "rotary", False):
        return ROTARY
    if hasattr(part, "slopes"):
        return ALIBI
    known = {T5Bias: BUCKETS, Learned: TABLE, Sinusoidal: WAVES}
    return next((kind for method, kind in known.items() if isinstance(part, method)), type(part).__name__)


def schedule_for(layers: Layers, given: Sequence[object], to: int | None, stored: bool = False) -> Schedule:
    """Return the schemes of all layers: their own with what was given, or a whole schedule.

    stored: whether the schedule was that of this model before, so that its trained lengths are not questioned.
    """
    named = [part for each in given for part in (parts_of_row(each, layers, to) if isinstance(each, str) else (each,))]
    whole = [each for each in named if isinstance(each, (Scheme, Schedule))]
    if whole and len(named) > 1:
        raise ValueError(
            f"extend: a {type(whole[0]).__name__} says everything, and was given beside "
            f"{', '.join(type(each).__name__ for each in named if each is not whole[0])}; give parts, or one whole"
        )
    if to is not None and not any(isinstance(each, str) for each in given):
        listed = ", ".join(spell(each) for each in named)
        raise ValueError(
            f"extend(to={to}): only a row by its name is sized by the length to reach, and {listed} is given as it is; "
            f"leave `to` out"
        )
    if whole and not stored:
        demand_trained(layers, whole)
    schedule = whole_schedule(layers, whole[0]) if whole else changed(layers, named)
    for layer, scheme in schedule.items():
        check(layers, layer, scheme)
    return schedule


def whole_schedule(layers: Layers, whole: Scheme | Schedule) -> Schedule:
    """A schedule with as many layers as the model, or one scheme for layers that are alike."""
    if isinstance(whole, Schedule):
        if len(whole) != len(layers.own):
            raise ValueError(
                f"extend: the schedule has {len(whole)} layers and this {layers.model_type} model {len(layers.own)}"
            )
        if list(whole.layers) != list(layers.own.layers):
            raise ValueError(
                f"extend: the schedule has the layers {ranges(whole.layers)}, and this {layers.model_type} model "
                f"attends in {ranges(layers.own.layers)}: Schedule([…], layers=…) says which"
            )
        return whole
    if len(layers.own.schemes) > 1:
        raise ValueError(
            f"extend: the layers of this {layers.model_type} model differ, so one scheme for all would undo that: "
            f"{layers.own!r}. Give parts, which change each layer's own, or a Schedule"
        )
    return Schedule([whole] * len(layers.own), layers=layers.own.layers)


def changed(layers: Layers, given: Sequence[object]) -> Schedule:
    """Each layer's own scheme with the parts put in; layers that were one object still are."""
    for part in given:
        refuse(part)
    demand_trained(layers, given)
    own = [scheme for scheme in layers.own.schemes if isinstance(scheme, Scheme)]
    made = [with_parts(scheme, given, n in layers.near) for n, scheme in enumerate(own)]
    for part in given:
        if not any(part in taken for _, taken in made):
            if isinstance(part, Stretch) and len(layers.near) == len(own):
                raise ValueError(
                    f"extend: no layer of this {layers.model_type} model sees past its trained length, so none meets a "
                    f"distance that {spell(part)} would be for; leave it out, or give a Schedule"
                )
            raise ValueError(
                f"extend: no layer of this {layers.model_type} model turns queries and keys or has slopes that "
                f"{spell(part)} could change. For another encoding beside its own give a whole scheme"
            )
    schedule = Schedule([made[number][0] for number in layers.own.order], layers=layers.own.layers)
    schedule.trained = layers.own.trained
    return schedule


def refuse(part: object) -> None:
    """Refuse what cannot be put into a trained model."""
    if isinstance(part, (list, tuple)):
        listed = ", ".join(spell(each) for each in cast("list[object]", part))
        raise TypeError(f"extend: parts are given one by one: extend(model, {listed})")
    if isinstance(part, dict):
        raise TypeError(
            "extend: this is a dict; a method is an object, such as Yarn(4, trained=8192). For rope settings as a "
            "config has them, set them in the config before the model is loaded"
        )
    if isinstance(part, nn.Module):
        raise ValueError(
            f"extend: {spell(part)} learns, and nothing in this checkpoint was trained for it; methods without weights "
            f"can be given"
        )
    if answers(part, "embed"):
        raise ValueError(f"extend: {spell(part)} acts on the embeddings, and this model's are trained without it")
    if not stretches(part):
        # A class, a sampler, or something that is no part at all: a scheme says so best.
        Scheme(part, causal)


def stretches(part: object) -> bool:
    """Whether it is a stretch of a rotation or of slopes, and no part by itself."""
    return isinstance(part, (Stretch, SlopeStretch)) and not verbs_of(part) and not isinstance(part, type)


def with_parts(own: Scheme, given: Sequence[object], near: bool = False) -> tuple[Scheme, list[object]]:
    """A layer's scheme with the parts that mean something to it, and which these were.

    A stretch goes into the rotation or the slopes, but not of a layer whose rope settings are its own and whose window
    lies within the trained length (near); a position encoding takes the place of one of its kind, and a layer
    without one gets none; a part that places or scales takes the place of the one that does; what is visible is seen
    only where the layer sees it too; anything else joins, or replaces its own class.
    """
    parts, taken = list(own.parts), list[object]()
    for part in given:
        kind = kind_of(part)
        if stretches(part):
            at = next((n for n, each in enumerate(parts) if stretchable(each, part)), None)
            if at is None or (near and isinstance(part, Stretch)):
                continue
            refuse_second(stretch_of(parts[at]), part, parts[at])
            parts[at] = stretched(parts[at], part)
        elif kind is not None:
            at = next((n for n, each in enumerate(parts) if kind_of(each) == kind), None)
            if at is None:
                continue
            parts[at] = part
        elif answers(part, "place") and not answers(part, "see") and turn_of(Scheme(*parts)) is None:
            # Positions of a layer that does not turn; a stream hides keys there as well.
            continue
        elif part not in parts:
            at = None if isinstance(part, Visible) else next((n for n, e in enumerate(parts) if alike(e, part)), None)
            parts = [*parts, part] if at is None else [*parts[:at], part, *parts[at + 1 :]]
        taken.append(part)
    scheme = Scheme(*parts)
    scheme.trained = own.trained
    return scheme, taken


def stretchable(part: object, stretch: object) -> bool:
    """Whether a part takes the stretch."""
    if isinstance(part, Alibi):
        return isinstance(stretch, SlopeStretch)
    inner = part.method if isinstance(part, Partial) else part
    return getattr(part, "rotary", False) and hasattr(inner, "stretch") and isinstance(stretch, Stretch)


def stretched(part: Any, stretch: object) -> Any:
    """The part with another stretch."""
    if isinstance(part, Partial):
        return replace(part, method=replace(part.method, stretch=stretch))
    if isinstance(part, Alibi) and isinstance(part.stretch, FalconSlopes):
        return replace(part, stretch=replace(part.stretch, stretch=stretch))
    return replace(part, stretch=stretch)


def stretch_of(part: Any) -> Any:
    """Return the stretch that a rotation or slopes have, None where they have none."""
    inner = part.method if isinstance(part, Partial) else part
    return inner.stretch.stretch if isinstance(inner.stretch, FalconSlopes) else inner.stretch


def refuse_second(old: Any, new: Any, part: Any) -> None:
    """Refuse a stretch in the place of another, but for the same one with a factor that is no smaller."""
    if old is None or old == new:
        return
    if type(old) is type(new) and getattr(new, "factor", 1.0) >= getattr(old, "factor", 1.0):
        return
    raise ValueError(
        f"extend: this model is stretched by {spell(old)} already, and {spell(new)} would take its place. To go "
        f"further, give {type(old).__name__} with a larger factor; to replace it, give the whole rotation or slopes: "
        f"extend(model, {spell(stretched(part, new))})"
    )


def demand_trained(layers: Layers, given: Iterable[Any]) -> None:
    """Refuse parts whose trained length is not that of the model."""
    own = layers.own.trained
    if own is None:
        return
    factors = (getattr(part, "factor", None) for scheme in layers.own for part in within_parts(scheme.parts))
    known = {own, layers.longest, *(round(own * each) for each in factors if isinstance(each, (int, float)))}
    for part in within_parts(given):
        trained = getattr(part, "trained", None)
        if trained is not None and trained not in known:
            raise ValueError(
                f"extend: {spell(part)} has trained={trained}, and the config of this {layers.model_type} model says "
                f"that it was trained at {own} tokens. Give trained={own}; where the config is wrong, correct its "
                f"max_position_embeddings first"
            )


def within_parts(given: Iterable[Any]) -> Iterator[Any]:
    """Yield the parts of what was given, and what is inside them: a method that another changes, a stretch."""
    for each in given:
        if isinstance(each, (Scheme, Schedule)):
            yield from within_parts(each if isinstance(each, Schedule) else each.parts)
        elif each is not None:
            yield each
            yield from within_parts(getattr(each, name, None) for name in ("method", "stretch"))


def alike(one: object, other: object) -> bool:
    """True if one takes the other's place: both place, both scale, or both are of one class."""
    same = any(answers(one, verb) and answers(other, verb) for verb in ("place", "scale"))
    return same or type(one) is type(other)


def check(layers: Layers, layer: int, scheme: Scheme) -> None:
    """Refuse a scheme that this layer cannot run under: other sizes, keys that its cache drops, sinks left out."""
    own = layers.own[layer]
    where = f"extend: layer {layer} of this {layers.model_type} model"
    turn, old = turn_of(scheme), turn_of(own)
    if turn is not None and old is not None and turn.head_dim != old.head_dim:
        raise ValueError(f"{where} has heads of {old.head_dim} channels, and {spell(turn)} turns {turn.head_dim}")
    rope = turn.method if isinstance(turn, Partial) else turn
    if isinstance(rope, (Rope, AxialRope)):
        try:
            frequencies(rope, 2)
        except ValueError as error:
            # A stretch with numbers for other pairs, or for more of them.
            raise ValueError(f"{where} turns {rope.head_dim // 2} pairs of channels: {error}") from error
    if turn is not None and old is not None and getattr(turn, "axes", None) != getattr(old, "axes", None):
        told = {None: "one position"}
        reads, has = (told.get(axes := getattr(each, "axes", None), f"{axes} positions") for each in (turn, old))
        raise ValueError(f"{where} has {has} of a token, and {spell(turn)} reads {reads}; change its stretch alone")
    if answers_rest(own) and not answers_rest(scheme):
        raise ValueError(f"{where} was trained with a logit of attending to nothing: add SinkLogit(heads)")
    for part in scheme.answering("embed"):
        raise ValueError(f"{where} gets no embeddings to give positions to: leave {spell(part)} out")
    learned = [
        part
        for part in scheme.parts
        if isinstance(part, nn.Module) and part not in own.parts
        if not (answers(part, "rest") and answers_rest(own))
    ]
    if learned:
        raise ValueError(f"{where} has no weights for {spell(learned[0])}, which learns")
    for part in scheme.answering("rest"):
        # The module's own sinks are read in its place.
        if isinstance(part, nn.Module) and part not in own.parts and any(each.any() for each in part.parameters()):
            raise ValueError(
                f"{where} has sinks of its own, and the weights of {spell(part)} would be passed over; give one with "
                f"weights of zero, which stands for the layer's own, and set those in the model"
            )
    if own.is_causal and not scheme.is_causal:
        raise ValueError(f"{where} is causal, and the scheme shows it keys ahead; add causal")
    if not within(scheme, own):
        seen = ", ".join(map(repr, own.answering("see")))
        raise ValueError(f"{where} sees {seen} and its cache keeps no more; the scheme would show it other keys")


def answers_rest(scheme: Scheme) -> bool:
    """Whether something is the logit of attending to nothing."""
    return bool(scheme.answering("rest"))


def within(scheme: Scheme, own: Scheme) -> bool:
    """Whether the scheme shows no key that the layer itself would not see."""
    if set(own.answering("see")) <= set(scheme.answering("see")):
        return True
    band = scheme.band()
    shared = both(strips_of(band), strips_of(own.band()))
    return band is not None and shared is not None and set(shared) == set(strips_of(band) or ())


BEST = "self-extend"
"""The row that reads closest to a window on both real models that were measured (docs/extended.md)."""

SINKS_KEPT = (
    "Dilute(Pivot(KeepSinks(Rerope(max(2, 3 * trained // 4), at=max(2, trained // 4))), trained, 0.5), trained, 0.25)"
)
OF_MODELS: dict[str, dict[str, str]] = {"rope": {"ReRoPE, sinks kept": f"Rope(dim) + {SINKS_KEPT}"}, "alibi": {}}
"""Rows beside the lab's, for models trained elsewhere, which rest on their first tokens (docs/extended.md)."""


def parts_of_row(name: str, layers: Layers, to: int | None) -> tuple[object, ...]:
    """The parts of a row, sized for this model; what turns in it stands for the layer's own rotation."""
    family = "alibi" if any(isinstance(part, Alibi) for part in next(iter(layers.own)).parts) else "rope"
    rows = WITHOUT_TRAINING[family] | AND_THE_REST[family] | OF_MODELS[family]
    text = {plain(each): expression for each, expression in rows.items()}.get(plain(name))
    if text is None and "(" not in name:
        raise ValueError(f"extend: no row of the lab is called {name!r}{did_you_mean(name, rows)}; there are "
                         f"{'; '.join(rows)}, and expressions such as 'Rerope(512) + LogN(trained)'")  # fmt: skip
    made: Any = evaluate(text or name, sizes(layers, text or name, name, to))
    parts: list[object] = []
    for part in made.parts if isinstance(made, Sum) else (made,):
        if isinstance(part, (Rope, Partial)):
            parts += stretch_in_row(part, name)
        elif isinstance(part, Alibi):
            parts += [] if part.stretch is None else [part.stretch]
        elif not isinstance(part, Causal):
            parts.append(part)
    return tuple(parts)


def stretch_in_row(part: Rope | Partial, name: str) -> list[object]:
    """What a rotation in a row says beyond being one."""
    turn: Any = part.method if isinstance(part, Partial) else part
    if turn.theta != Rope(turn.head_dim).theta:
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
