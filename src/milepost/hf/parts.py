"""What was asked for, put into each layer's own scheme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from torch import nn

from milepost.hf.falcon import FalconSlopes
from milepost.hf.models import Layers
from milepost.hf.rotary import turn_of
from milepost.hf.rows import parts_of_row
from milepost.methods.alibi import Alibi
from milepost.methods.partial import Partial
from milepost.schedule import Schedule
from milepost.scheme import Scheme
from milepost.seams.arguments import spell
from milepost.seams.band import both, strips_of
from milepost.seams.verbs import SlopeStretch, Stretch, answers, verbs_of
from milepost.seams.visible import Visible, causal


def schedule_for(layers: Layers, given: Sequence[object], to: int | None) -> Schedule:
    """The schemes of all layers: their own with what was given, or a whole schedule as it is."""
    named = [part for each in given for part in (parts_of_row(each, layers, to) if isinstance(each, str) else (each,))]
    whole = [each for each in named if isinstance(each, (Scheme, Schedule))]
    if whole and len(named) > 1:
        raise ValueError(
            f"extend: a {type(whole[0]).__name__} says everything, and was given beside "
            f"{', '.join(type(each).__name__ for each in named if each is not whole[0])}; give parts, or one whole"
        )
    schedule = whole_schedule(layers, whole[0]) if whole else changed(layers, named)
    for layer, scheme in enumerate(schedule):
        check(layers, layer, scheme)
    return schedule


def whole_schedule(layers: Layers, whole: Scheme | Schedule) -> Schedule:
    """A schedule with as many layers as the model, or one scheme for layers that are alike."""
    if isinstance(whole, Schedule):
        if len(whole) != len(layers.own):
            raise ValueError(
                f"extend: the schedule has {len(whole)} layers and this {layers.model_type} model {len(layers.own)}"
            )
        return whole
    if len(layers.own.schemes) > 1:
        raise ValueError(
            f"extend: the layers of this {layers.model_type} model differ, so one scheme for all would undo that: "
            f"{layers.own!r}. Give parts, which change each layer's own, or a Schedule"
        )
    return Schedule([whole] * len(layers.own))


def changed(layers: Layers, given: Sequence[object]) -> Schedule:
    """Each layer's own scheme with the parts put in; layers that were one object still are."""
    for part in given:
        refuse(part)
    made = [with_parts(scheme, given) for scheme in layers.own.schemes if isinstance(scheme, Scheme)]
    for part in given:
        if not any(part in taken for _, taken in made):
            raise ValueError(
                f"extend: no layer of this {layers.model_type} model turns queries and keys or has slopes that "
                f"{spell(part)} could change"
            )
    schedule = Schedule([made[number][0] for number in layers.own.order])
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


def with_parts(own: Scheme, given: Sequence[object]) -> tuple[Scheme, list[object]]:
    """A layer's scheme with the parts that mean something to it, and which these were.

    A stretch goes into the rotation or the slopes; a part that turns, places or scales takes the place of the one that
    does; what is visible is seen only where the layer sees it too; anything else joins, or replaces its own kind.
    """
    parts, taken = list(own.parts), list[object]()
    for part in given:
        turn = turn_of(Scheme(*parts))
        if stretches(part):
            at = next((n for n, each in enumerate(parts) if stretchable(each, part)), None)
            if at is None:
                continue
            parts[at] = stretched(parts[at], part)
        elif answers(part, "place") and not answers(part, "see") and turn is None:
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


def alike(one: object, other: object) -> bool:
    """Whether one takes the other's place: both turn pairs, both place, both scale, or both are of one class."""
    turn = getattr(one, "rotary", False) and getattr(other, "rotary", False)
    same = any(answers(one, verb) and answers(other, verb) for verb in ("place", "scale"))
    return bool(turn) or same or type(one) is type(other)


def check(layers: Layers, layer: int, scheme: Scheme) -> None:
    """Refuse a scheme that this layer cannot run under: other sizes, keys that its cache drops, sinks left out."""
    own = layers.own[layer]
    where = f"extend: layer {layer} of this {layers.model_type} model"
    turn, old = turn_of(scheme), turn_of(own)
    if turn is not None and old is not None and turn.head_dim != old.head_dim:
        raise ValueError(f"{where} has heads of {old.head_dim} channels, and {spell(turn)} turns {turn.head_dim}")
    if turn is not None and old is not None and getattr(turn, "axes", None) != getattr(old, "axes", None):
        raise ValueError(f"{where} has one position a token, and {spell(turn)} reads {turn.axes}")
    if answers_rest(own) and not answers_rest(scheme):
        raise ValueError(f"{where} was trained with a logit of attending to nothing: add SinkLogit(heads)")
    for part in scheme.answering("embed"):
        raise ValueError(f"{where} gets no embeddings to give positions to: leave {spell(part)} out")
    learned = [
        part
        for part in scheme.parts
        if isinstance(part, nn.Module) and not answers(part, "rest") and part not in own.parts
    ]
    if learned:
        raise ValueError(f"{where} has no weights for {spell(learned[0])}, which learns")
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
