"""What differs between two conventions, and what that means, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.hf.conventions import Convention, ahead
from milepost.hf.frequencies import SAME, Curve, curve_of, near
from milepost.hf.probe import DRIFT, Turning, drift, precision

COUNTED = 1e-2
"""How far the first positions of two rotations may lie apart: in fewer bits than float32 they are rounded."""


@dataclass(frozen=True)
class Difference:
    """One convention in which two models differ: what it is called, what each does, and what that means."""

    convention: str
    a: str
    b: str
    means: str

    def __str__(self) -> str:
        return f"{self.convention}: A {self.a}; B {self.b}. {self.means}"


def differences(a: Convention, b: Convention, compared: list[str]) -> Iterator[Difference]:
    """Every convention in which A and B differ; what was looked at is added to `compared`."""
    if a.turnings and b.turnings:
        compared.append("rotation")
        for kind in dict.fromkeys([*a.turnings, *b.turnings]):
            one, two = (each.turnings.get(kind, each.turnings.get("")) for each in (a, b))
            where = f" in {kind}" if kind else ""
            if one is not None and two is not None and _follow_alike(a, b):
                yield from _turnings(one, two, a, b, where)
            elif one is not None and two is not None:
                continue
            else:
                words = ["turns" if each is not None else "does not turn" for each in (one, two)]
                yield Difference(f"layers{where}", words[0], words[1], "These layers have no rotation in one of them.")
    yield from _beside(a, b, compared)
    if a.scale is not None and b.scale is not None:
        compared.append("softmax scale")
        yield from _scales(a, b)
    if a.slopes is not None and b.slopes is not None:
        compared.append("ALiBi slopes")
        yield from _slopes(a.slopes, b.slopes)
    for stack in sorted({*a.buckets} & {*b.buckets}):
        compared.append(f"T5 buckets of the {stack}")
        yield from _buckets(a.buckets[stack], b.buckets[stack], stack)
    if {*a.buckets} and {*b.buckets} and not {*a.buckets} & {*b.buckets}:
        compared.append("T5 buckets")
        sides = [", ".join(each.buckets) for each in (a, b)]
        yield Difference("T5 direction", f"has those of an {sides[0]}", f"those of an {sides[1]}",
                         "An encoder spends half of its buckets on keys ahead, a decoder none.")  # fmt: skip


def _follow_alike(a: Convention, b: Convention) -> bool:
    """Whether frequencies can be compared: those that follow the length of the text have no one curve."""
    return a.beside is None or b.beside is None or a.beside.follows == b.beside.follows


def _beside(a: Convention, b: Convention, compared: list[str]) -> Iterator[Difference]:
    """What layers do beside turning, as far as both say it."""
    if a.beside is None or b.beside is None:
        return
    if not _follow_alike(a, b):
        words = [f"follows the length of the text by {each.follows}" if each.follows else "is the same at every length"
                 for each in (a.beside, b.beside)]  # fmt: skip
        yield Difference("stretch", words[0], words[1], "Frequencies or slopes were not compared any further.")
    if a.beside.seen and b.beside.seen:
        compared.append("what is seen")
        if a.beside.seen != b.beside.seen:
            yield Difference("what is seen", f"shows {a.beside.seen}", f"shows {b.beside.seen}",
                             "Windows, chunks or sinks differ.")  # fmt: skip
    if a.beside.parts is None or b.beside.parts is None:
        return
    compared.append("other parts")
    if a.beside.parts != b.beside.parts:
        words = [f"has {each.parts}" if each.parts else "has none" for each in (a.beside, b.beside)]
        yield Difference("other parts", words[0], words[1], "Positions or scores are changed in one of them.")


# Rotations


def _turnings(a: Turning, b: Turning, first: Convention, second: Convention, where: str) -> Iterator[Difference]:
    if a.dim != b.dim:
        yield Difference(f"head size{where}", f"has {a.dim} channels", f"{b.dim}", "These are different models.")
        return
    if a.width != b.width:
        yield Difference(f"partial size{where}", f"turns {a.width} of {a.dim} channels", f"turns {b.width}",
                         "The others carry no position.")  # fmt: skip
    if a.pairs != b.pairs:
        yield Difference(f"pairs{where}", _pairs(a.pairs), _pairs(b.pairs),
                         "Queries and keys of one need their channels reordered for the other.")  # fmt: skip
    if a.sense != b.sense:
        yield Difference(f"sign{where}", f"turns by {a.sense}pθ", f"by {b.sense}pθ",
                         "Distances count the other way round: the key behind looks like the key ahead.")  # fmt: skip
    if abs(a.first - b.first) > COUNTED:
        yield Difference(f"first position{where}", f"turns the first token by position {a.first:.3g}", f"{b.first:.3g}",
                         "Scores change only where queries and keys are counted differently.")  # fmt: skip
    yield from _frequencies(a, b, first.base, second.base, where)
    yield from _magnitudes(a, b, first, second, where)


def _pairs(pairs: str) -> str:
    return {"halves": "pairs n with n + d/2", "neighbours": "pairs 2n with 2n + 1"}.get(pairs, f"pairs {pairs}")


def _frequencies(
    a: Turning, b: Turning, base_a: float | None, base_b: float | None, where: str
) -> Iterator[Difference]:
    f, g = a.frequencies, b.frequencies
    short = min(len(f), len(g))
    alike = bool(((f[:short] - g[:short]).abs() <= SAME * f[:short].abs()).all())
    if alike and len(f) == len(g):
        off = [drift(each.angles, f) for each in (a, b)]
        if max(off) < DRIFT:
            return
    if len(f) == len(g):
        # One may be the other in fewer bits.
        for n, (exact, other) in enumerate(((a, b), (b, a))):
            why = precision(other.angles, exact.frequencies)
            if why and drift(exact.angles, exact.frequencies) < DRIFT:
                sides = ["keeps them in float32 or better", f"has {why}"]
                a_says, b_says = sides if n == 0 else reversed(sides)
                yield Difference(f"dtype of the phases{where}", a_says, b_says,
                                 f"Angles are off by up to {drift(other.angles, exact.frequencies):.2g} radians "
                                 f"within 8,192 tokens.")  # fmt: skip
                return
    if alike:
        yield from _low_precision(a, b, where)
        return
    yield from _curves(curve_of(f, _known(f, base_a)), curve_of(g, _known(g, base_b)), f, g, where)


def _low_precision(a: Turning, b: Turning, where: str) -> Iterator[Difference]:
    off = [drift(each.angles, each.frequencies) for each in (a, b)]
    if max(off) >= DRIFT and abs(off[0] - off[1]) >= DRIFT:
        words = [f"is off by {each:.2g} radians" for each in off]
        yield Difference(f"dtype of the phases{where}", words[0], words[1], "Phases lose bits as positions grow.")


def _known(f: Tensor, base: float | None) -> float | None:
    """The declared base, if the first pairs agree with it."""
    if base is None or len(f) < 1:
        return None
    return base if abs(float(f[0]) - 1) < SAME else None


def _curves(a: Curve | None, b: Curve | None, f: Tensor, g: Tensor, where: str) -> Iterator[Difference]:
    if a is None or b is None or "other" in (a.ramp, b.ramp):
        short = min(len(f), len(g))
        ratio = g[:short] / f[:short]
        yield Difference(f"frequencies{where}", "has its own", f"has {float(ratio.min()):.4g} to "
                         f"{float(ratio.max()):.4g} times those", "They follow no rule known here.")  # fmt: skip
        return
    if not near(a.base, b.base):
        yield Difference(f"base{where}", f"has {a.base:,.6g}", f"{b.base:,.6g}", "rope_theta differs.")
    if not near(a.factor, b.factor, 1e-3):
        yield Difference(f"stretch{where}", _stretch(a), _stretch(b), "The rope settings differ in type or factor.")
    elif "none" not in (a.ramp, b.ramp) and not _same_ramp(a, b):
        yield Difference(f"YaRN ramp{where}", _ramp(a), _ramp(b), _why_ramp(a, b))


def _same_ramp(a: Curve, b: Curve) -> bool:
    return a.ramp == b.ramp and near(a.low, b.low, 1e-3) and near(a.high, b.high, 1e-3)


def _stretch(curve: Curve) -> str:
    if near(curve.factor, 1.0, 1e-3):
        return "has none"
    return f"divides {'all' if curve.ramp == 'none' else 'slow'} pairs by {curve.factor:.5g}"


def _ramp(curve: Curve) -> str:
    unit = "pairs" if curve.ramp == "pairs" else "frequencies"
    return f"falls evenly over {unit} {curve.low:.4g} … {curve.high:.4g}"


def _why_ramp(a: Curve, b: Curve) -> str:
    if a.ramp != b.ramp:
        return "One follows YaRN's code (over pairs), the other its paper or Llama 3 (over turns)."
    whole, other = (a, b) if a.whole else (b, a)
    if whole.whole and not other.whole and abs(whole.low - other.low) < 1 and abs(whole.high - other.high) < 1:
        return "truncate: one rounds the ends of the ramp to whole pairs."
    return "beta_fast, beta_slow or the trained length differ."


def _magnitudes(a: Turning, b: Turning, first: Convention, second: Convention, where: str) -> Iterator[Difference]:
    if near(a.magnitude, b.magnitude) and near(a.rest, b.rest):
        return
    means = f"Scores of the turned channels differ by {(b.magnitude / a.magnitude) ** 2:.4g} times."
    if first.scale and second.scale:
        totals = [each.magnitude**2 * side.scale for each, side in ((a, first), (b, second)) if side.scale]
        if near(*totals):
            means = "The softmax scale makes up for it: one has it on cos and sin, the other in the scale."
    words = [f"has {each.magnitude:.5g} on cos and sin" for each in (a, b)]
    yield Difference(f"magnitude{where}", words[0], words[1], means)


def _scales(a: Convention, b: Convention) -> Iterator[Difference]:
    one, two = float(a.scale or 0), float(b.scale or 0)
    by_layer = [(n, x, y) for n, (x, y) in enumerate(zip(a.scales, b.scales, strict=False)) if not near(x, y)]
    if by_layer and near(one, two):
        layer, one, two = by_layer[0]
        yield Difference("magnitude in the scale", f"multiplies scores by {one:.6g} in layer {layer}", f"by {two:.6g}",
                         f"{len(by_layer)} of {len(a.scales)} layers differ.")  # fmt: skip
    elif not near(one, two):
        yield Difference("magnitude in the scale", f"multiplies scores by {one:.6g}", f"by {two:.6g}",
                         f"That is {two / one:.5g} times as much: YaRN's magnitude, or another √d.")  # fmt: skip


# Biases


def _slopes(a: Tensor, b: Tensor) -> Iterator[Difference]:
    one, two = (f"runs from {float(each.max()):.4g} to {float(each.min()):.4g}" for each in (a, b))
    if len(a) != len(b):
        yield Difference("ALiBi slopes", f"has {len(a)} heads", f"{len(b)}", "These are different models.")
    elif not torch.allclose(a, b, rtol=SAME, atol=0):
        yield Difference("ALiBi slopes", one, two, _why_slopes(a, b))


def _why_slopes(a: Tensor, b: Tensor) -> str:
    ratio = b / a
    if bool(((ratio - ratio[0]).abs() < 1e-4 * ratio[0].abs()).all()):
        if abs(float(ratio[0]) + 1) < SAME:
            return "The sign is turned: in one of them keys far away are favoured."
        return f"Every slope is multiplied by {float(ratio[0]):.5g} (1/√d, or interpolation)."
    for one, two, name in ((a, b, "B"), (b, a, "A")):
        if torch.allclose(one.to(torch.bfloat16).double(), two, rtol=1e-6, atol=0):
            return f"{name} keeps them in bfloat16."
    if torch.allclose(a.sort().values, b.sort().values, rtol=SAME, atol=0):
        return "They are the same numbers in another order of heads."
    return f"Heads differ by {float(ratio.min()):.4g} to {float(ratio.max()):.4g} times."


def _buckets(a: Tensor, b: Tensor, stack: str) -> Iterator[Difference]:
    if torch.equal(a, b):
        return
    if torch.equal(a, b.flip(0)):
        yield Difference("T5 direction", "counts key − query", "query − key",
                         "Keys ahead are looked up as keys behind.")  # fmt: skip
        return
    sides = [_ahead_differs(each) for each in (a, b)]
    if sides[0] != sides[1]:
        words = ["has buckets of their own for keys ahead" if each else "has none for keys ahead" for each in sides]
        yield Difference("T5 direction", words[0], words[1], "One is bidirectional, the other causal.")
        return
    counts = [int(each.max()) + 1 for each in (a, b)]
    if counts[0] != counts[1]:
        yield Difference("T5 buckets", f"has {counts[0]} in the {stack}", f"{counts[1]}",
                         "relative_attention_num_buckets differs.")  # fmt: skip
        return
    reach = [_reach(each) for each in (a, b)]
    yield Difference("T5 buckets", f"reaches {reach[0]} tokens back in the {stack}", f"{reach[1]}",
                     "relative_attention_max_distance, or the logarithm, differs.")  # fmt: skip


def _ahead_differs(buckets: Tensor) -> bool:
    return int(buckets[ahead() > 0].max()) != int(buckets[ahead() > 0].min())


def _reach(buckets: Tensor) -> int:
    """The distance behind from which on all share one bucket."""
    behind = buckets[: len(buckets) // 2].flip(0)
    return int((behind != behind[-1]).sum()) + 1
