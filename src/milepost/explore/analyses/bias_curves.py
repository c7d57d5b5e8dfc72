"""What methods add to a score by distance, and how scores fade with it: FIRE, KERPLE, Sandwich, xPos beside ALiBi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.asked import by_name
from milepost.explore.pictures.curves import Curves, around, curves
from milepost.explore.pictures.strips import Strips, strips
from milepost.methods.alibi import Alibi
from milepost.methods.biases import Fire, Kerple, Sandwich
from milepost.methods.rope import Rope, Xpos
from milepost.methods.softmax import Scale
from milepost.scheme import Scheme
from milepost.seams import demand
from milepost.seams.arguments import spell
from milepost.seams.visible import causal

Numbers = NDArray[np.float64]


def bias_curves(
    parts: Mapping[str, Any] | None = None,
    *,
    length: int = 8192,
    heads: int = 8,
    head: int | None = None,
    trained: int | None = None,
    points: int = 512,
) -> Analysis:
    """Return what each of several methods does to a score by distance, all on one axis.

        explore.bias_curves()
        explore.bias_curves({"ALiBi": mp.Alibi(16), "T5": learned}, heads=16, head=3)

    parts: a method a name. One that adds to scores is drawn as what it adds in one head, seen by the last of `length`
    tokens. One that rotates (Rope, Xpos) is drawn as the score of a query and an equal key, as a share of that at
    distance 0; a temperature (YaRN) is said, and divided out. Left out: ALiBi, KERPLE with the numbers that it starts
    from on average, FIRE with a network that returns −8 times its input, Sandwich; xPos and RoPE. heads: how many the
    methods have; head: the one that is drawn, the last if left out, which sees furthest. trained: the rule in the
    pictures.
    Look at the shapes: ALiBi falls for ever, KERPLE by a logarithm, FIRE ends at one number whatever the length,
    Sandwich falls in trend only, and xPos fades what RoPE leaves to swing.
    """
    demand.whole(bias_curves, "length", length, least=2)
    demand.whole(bias_curves, "heads", heads)
    head = heads - 1 if head is None else head
    demand.whole(bias_curves, "head", head, least=0)
    demand.whole(bias_curves, "points", points, least=2)
    if head >= heads:
        raise ValueError(f"{demand.asked(bias_curves, 'head', head)}: there are {heads} heads, 0 to {heads - 1}")
    if trained is not None:
        demand.whole(bias_curves, "trained", trained)
    given = _starts(heads) if parts is None else by_name(bias_curves, parts, '{"ALiBi": Alibi(8)}')
    for part in given.values():
        if isinstance(part, Scheme):
            raise TypeError(f"bias_curves: {part!r} is a whole scheme; give its parts, each by its name")
    at = torch.linspace(0, length - 1, min(points, length), dtype=torch.float64).round().long()
    added = {name: _added(part, at, length, heads, head) for name, part in given.items() if not _rotates(part)}
    scores = {name: _of_equals(part, at, length) for name, part in given.items() if _rotates(part)}
    faded = {name: values / values[0] for name, values in scores.items()}
    hotter = {name: values[0] for name, values in scores.items() if abs(values[0] - 1) > 1e-6}
    distance = at.double().numpy()
    ends = [f"{name} {values[-1]:.3g}" for name, values in added.items()]
    kept = [f"{name} {np.abs(values[len(values) // 2 :]).max():.2g}" for name, values in faded.items()]
    which = f"The last of {heads} heads" if head == heads - 1 else f"Head {head}"
    says = f"{which} adds at distance {distance[-1]:,.0f}: {'; '.join(ends)}. " if ends else ""
    if kept:
        says += f"An equal key keeps at most this share of its score in the farther half of them: {'; '.join(kept)}."
    for name, temperature in hotter.items():
        says += f" {name} makes every score {temperature:.3g} times as large, which is divided out."
    shown = {} if parts is not None else _labels(given, head, length)
    mark = None if trained is None else (float(trained), f"trained length, {trained:,}")
    run = 2 * (length // 32) + 1
    swings = [name for name, values in added.items() if _swings(values)]
    # Of what goes up and down between the distances that are drawn, every one is read.
    whole = {name: _added(given[name], torch.arange(length), length, heads, head) for name in swings}
    near = {shown.get(name, name): around(values, at.numpy(), run) for name, values in whole.items()}

    title = f"What {which[0].lower()}{which[1:]} adds to a score"
    if head < heads - 1:
        title = f"What head {head} of {heads} adds to a score"

    def drawn(title: str, lines: dict[str, Numbers], y_name: str) -> Curves:
        """Return curves; of one that goes up and down the running mean, and its range."""
        named = {shown.get(name, name): values for name, values in lines.items()}
        return curves(
            title,
            distance,
            {name: near[name][0] if name in near else values for name, values in named.items()},
            x_name="distance n in tokens",
            y_name=y_name,
            mark=mark,
            ranges={name: each[1:] for name, each in near.items()},
        )

    def strip(title: str, lines: dict[str, Numbers], y_name: str) -> Strips:
        return strips(title, distance, lines, x_name="distance n in tokens", y_name=y_name, mark=mark)

    return Analysis(
        "bias_curves",
        "Scores by distance: ALiBi falls in a line, without bound; KERPLE by a logarithm; FIRE to the same value at "
        "every length; xPos fades RoPE"
        if parts is None
        else "Scores by distance, method by method",
        says.strip(),
        (
            axis("distance", distance, "tokens"),
            *(array(name, values, "nats", "distance") for name, values in added.items()),
            *(array(name, values, "of the score at 0", "distance") for name, values in faded.items()),
        ),
        (
            *((drawn(title, added, "added, in nats"),) if added else ()),
            *(
                (strip("The score of a key equal to the query", faded, "share of the score at distance 0"),)
                if faded
                else ()
            ),
        ),
        f"The last of {length:,} tokens looks back · {heads} heads, counted from 0"
        + (
            f" · ALiBi's slope is {_slope(given['ALiBi'], 0)} in head 0, the steepest, and "
            f"{_slope(given['ALiBi'], head)} in the head drawn · RoPE and xPos: 64 channels, base 10,000; q = k, "
            "the same number in every channel · FIRE: " + _fire(given["FIRE"], head, length)
            if parts is None
            else ""
        )
        + (f" · {' and '.join(swings)}: mean of the {run:,} distances around, their range pale" if swings else ""),
    )


def _starts(heads: int) -> dict[str, Any]:
    """Return ALiBi and its kin as they start, with nothing left to chance."""
    kerple, fire = Kerple(heads), Fire(heads)
    with torch.no_grad():
        kerple.p.fill_(1.0)
        kerple.a.fill_(0.5)
        # One unit hands the share of the distance on: the simplest that FIRE can learn.
        for weight in (fire.inner.weight, fire.inner.bias, fire.outer.weight, fire.outer.bias):
            weight.zero_()
        fire.inner.weight[0] = 1.0
        fire.outer.weight[:, 0] = -8.0
    return {
        "ALiBi": Alibi(heads),
        "Sandwich": Sandwich(heads, 128, zeroed=True),
        "KERPLE, log": kerple,
        "FIRE": fire,
        "RoPE": Rope(64),
        "xPos": Xpos(64),
    }


def _swings(values: Numbers) -> bool:
    """True if values go up and down again and again."""
    return int((np.diff(np.sign(np.diff(values))) != 0).sum()) > 8


def _slope(alibi: Any, head: int) -> str:
    return f"1/{1 / alibi.slopes().behind[head].item():.0f}"


def _labels(parts: Mapping[str, Any], head: int, length: int) -> dict[str, str]:
    """Return the methods that are drawn if none are given, with their numbers, n the distance."""
    kerple = parts["KERPLE, log"]
    p, a = kerple.p[head].item(), kerple.a[head].item()
    fire = parts["FIRE"]
    top, from_ = f"{fire.outer.weight[head, 0].item():g}".replace("-", "−"), int((fire.m * fire.trained).abs().item())
    return {
        "ALiBi": f"ALiBi, slope {_slope(parts['ALiBi'], head)}",
        "KERPLE, log": f"KERPLE, −{p:g}·ln(1 + {a:g}n)",
        "FIRE": f"FIRE, ends at {top} at every length" + (f" above {from_:,}" if length > from_ else ""),
        "Sandwich": "Sandwich, 128 channels",
    }


def _fire(fire: Any, head: int, length: int) -> str:
    """Return FIRE as it is drawn if nothing is given, as a formula, n the distance."""
    top, c = f"{fire.outer.weight[head, 0].item():g}".replace("-", "−"), f"{fire.c.item():.1g}"
    last = max(length - 1, int((fire.m * fire.trained).abs().item()))
    return f"{top}·ln(1 + {c}n)/ln(1 + {c}·{last:,})"


def _rotates(part: Any) -> bool:
    return callable(getattr(part, "turn", None))


def _added(part: Any, at: torch.Tensor, length: int, heads: int, head: int) -> Numbers:
    """Return what a part adds to a score of 0."""
    if not getattr(part, "additive", False):
        of_your_own = "; if it adds one, say so: additive = True on its class" if hasattr(part, "bend") else ""
        raise TypeError(
            f"bias_curves: {spell(part)} neither rotates nor says that it adds a number to a score{of_your_own}; "
            f"mp.scores shows what it does"
        )
    nothing = torch.zeros(heads, 2, dtype=torch.float64)
    return _plain(Scheme(part, causal).curve(nothing, nothing, at, length)[head])


def _of_equals(part: Any, at: torch.Tensor, length: int) -> Numbers:
    """Return the score of a query and an equal key of length 1, in every channel alike."""
    unit = torch.full((1, part.head_dim), part.head_dim**-0.5, dtype=torch.float64)
    return _plain(Scheme(part, Scale(1.0), causal).curve(unit, unit, at, length)[0])


def _plain(values: torch.Tensor) -> Numbers:
    return values.detach().cpu().double().numpy()
