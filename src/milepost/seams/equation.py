"""A scheme as its equation, filled in, seam by seam."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from milepost.seams import computed
from milepost.seams.arguments import spell, spell_value
from milepost.seams.formula import formula_lines, put_in, that_apply, with_value, with_value_instead
from milepost.seams.parts import Parts
from milepost.seams.verbs import SlopeStretch, Stretch, verbs_of
from milepost.seams.visible import Visible

WIDTH = 110
"""No line is longer, but for the first, which is the sum."""

SYMBOLS = {"theta": "θ", "alpha": "α", "model_dim": "d", "head_dim": "d"}
"""Arguments that formulas write as a letter; of two with one letter the later."""

SHARED = ("theta", "model_dim", "head_dim", "heads")
"""Arguments that a formula may name of the method around it, or of one inside it."""

Write = Callable[[str, str, str], "str | None"]


@dataclass(frozen=True)
class Description:
    """What a method does, line by line, with the numbers of its arguments."""

    name: str
    """The method's, where it stands inside another; empty for a part of a scheme."""
    lines: tuple[str, ...]


def formula_of(method: object) -> str:
    """The formula on one line: of an object with the numbers of its arguments, of a class as its defaults have it."""
    if isinstance(method, type):
        # An argument without a default is empty here, which is not None and equals nothing that a line may ask for.
        defaults = {name: each.default for name, each in inspect.signature(method).parameters.items()}
        return "; ".join(that_apply(formula_lines(method), defaults))
    found = describe(method)
    return "; ".join(f"{each.name}: {'; '.join(each.lines)}".removeprefix(": ") for each in found)


def describe(part: object) -> list[Description]:
    """What a part does, and what each method inside it does."""
    found = [Description("", tuple(_lines(part, None)))]
    found += [Description(type(each).__name__, tuple(_lines(each, around))) for around, each in _inside(part)]
    return [each for each in found if each.lines]


def equation(scheme: Parts, widest: int = WIDTH) -> str:
    """The equation of attention with just the seams this scheme uses, then each seam with its parts.

    widest: how long a line may be, but for the first.
    """
    used = {verb for part in scheme.parts for verb in verbs_of(part)}
    width = max((len(verb) for verb in used), default=1)
    lines = [_sum(used)]
    beneath = " " * (width + 6)
    for part in scheme.parts:
        first, *others = verbs_of(part) or ("—",)
        visible = isinstance(part, Visible)
        spelled = repr(part) if visible else spell(part, whole=True)
        lines += _wrapped(spelled, f"  {first:<{width}}  ", beneath, widest)
        for each in [] if visible else describe(part):
            label = f"{each.name}:  " if each.name else ""
            for number, line in enumerate(each.lines):
                start = beneath + (label if number == 0 else " " * len(label))
                lines += _wrapped(line, start, " " * (len(start) + 4), widest)
        lines += [f"  {verb:<{width}}  {type(part).__name__}, as above" for verb in others]
    return "\n".join(lines)


def called(scheme: Parts) -> str:
    """The call that makes the scheme, on one line; long tuples are cut short."""
    return f"Scheme({', '.join(repr(part) if isinstance(part, Visible) else spell(part) for part in scheme.parts)})"


def _sum(used: set[str]) -> str:
    dot = "⟨turn(q_i, p_i), turn(k_j, r_j)⟩" if "turn" in used else "⟨q_i, k_j⟩"
    if "relate" in used:
        dot = f"({dot} + relate(q_i, k_j, p_i − r_j))"
    score = f"{'scale' if 'scale' in used else '1/√d'} · {'sharpen(i) · ' if 'sharpen' in used else ''}{dot}"
    if "bend" in used:
        score = f"bend({score}, h, p_i, r_j)"
    if "bend_rows" in used:
        score = f"bend_rows({score})"
    if "see" in used:
        score += " | see(i, j)"
    if "rest" in used:
        score += " ; rest(h)"
    return f"out_i = Σ_j softmax_j( {score} ) · v_j"


# A method's lines


def _lines(method: object, around: object) -> list[str]:
    """The formula of a method: the lines that apply to it, with numbers for names."""
    values, texts = _values(method), _texts(method, around)
    lines = [put_in(line, texts) for line in that_apply(formula_lines(method), values)]
    for name, value, write in _computed(method, around, lines):
        found = [write(line, name, value) for line in lines]
        lines = [line if made is None else made for line, made in zip(lines, found, strict=True)]
        if name == "magnitude" and value != "1" and not any(found):
            lines.append(f"turn(x, p)  ←  turn(x, p) · {value}")
    return lines


def _values(method: object) -> dict[str, Any]:
    """The constructor's arguments of a method, by name; of a user's own those that it keeps."""
    names = inspect.signature(type(method)).parameters
    return {name: getattr(method, name) for name in names if hasattr(method, name)}


def _texts(method: object, around: object) -> dict[str, str]:
    """What is written for a name: a number for an argument that is one, its class for a method inside."""
    inside = [each for holder, each in _inside(method) if holder is method]
    shared = [_values(each) for each in (*inside, around) if each is not None]
    values = {name: each[name] for each in shared for name in SHARED if name in each} | _values(method)
    texts: dict[str, str] = {}
    for name, value in values.items():
        if any(value is each for each in inside):
            texts[name] = type(value).__name__
        elif isinstance(value, tuple):
            items = cast("tuple[object, ...]", value)
            texts[f"len({name})"] = str(len(items))
            texts |= {f"{name}[{n}]": _number(item) for n, item in enumerate(items)}
        else:
            texts[name] = _number(value)
    texts |= {letter: texts[name] for name, letter in SYMBOLS.items() if texts.get(name)}
    return {name: text for name, text in texts.items() if text}


def _number(value: object) -> str:
    """A number as a formula has it; nothing for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    text = spell_value(value)
    return f"(−{text[1:]})" if text.startswith("-") else text


def _inside(part: object) -> Iterator[tuple[object, object]]:
    """Every method that is an argument of a part, or of such an argument, after the method around it."""
    for value in _values(part).values():
        if not isinstance(value, type) and (verbs_of(value) or isinstance(value, (Stretch, SlopeStretch))):
            yield part, value
            yield from _inside(value)


def _computed(method: object, around: object, lines: list[str]) -> Iterator[tuple[str, str, Write]]:
    """Names with the values that the method's code gives them, and how these are written into a line."""
    inside = [each for _, each in _inside(method)]
    slopes = computed.slopes_of(_unstretched(method))
    if slopes:
        yield "slope_h", computed.by_head(slopes), with_value_instead
    slopes = computed.slopes_of(around)
    if slopes and isinstance(method, SlopeStretch) and not isinstance(method, nn.Module):
        yield "slope_h", computed.by_head(slopes), with_value
    sharpness = computed.sharpness_of(method)
    if sharpness is not None:
        yield "sharpen(i)", computed.in_short(sharpness), with_value
    magnitude = None if any(hasattr(each, "magnitude") for each in inside) else computed.magnitude_of(method)
    if magnitude is not None:
        yield "magnitude", computed.in_short(magnitude), with_value
    shared = ({} if around is None else _values(around)) | _values(method)
    if any("base" in line for line in lines) and {"head_dim", "theta"} <= set(shared):
        base = computed.base_of(method, shared["head_dim"], shared["theta"])
        if base is not None:
            yield "base", computed.in_short(base), with_value


def _unstretched(part: object) -> object:
    """The part without what stretches its slopes."""
    stretches = [name for name, value in _values(part).items() if isinstance(value, SlopeStretch)]
    return dataclasses.replace(cast("Any", part), **dict.fromkeys(stretches)) if stretches else part


# Layout


def _wrapped(line: str, start: str, further: str, widest: int) -> list[str]:
    """One line, or several that are cut between equations where that is enough."""
    first, *others = re.split(r"(?<=[,;]) {2,}", line)
    made = [start + first]
    for equation in others:
        if len(made[-1]) + 3 + len(equation) <= widest:
            made[-1] += f"   {equation}"
        else:
            made.append(further + equation)
    cut = textwrap.TextWrapper(widest, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)
    return [each for one in made for each in cut.wrap(one)]
