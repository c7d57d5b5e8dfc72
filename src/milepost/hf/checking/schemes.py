"""Two schemes compared seam by seam: what each would do to any query and key, by number where there is one.

Parts that are spelled differently and do the same are no difference; a field is named only where it changes something.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost import Partial, QkNorm, Rope, Scheme
from milepost.hf.checking.report import Difference, between, number
from milepost.hf.checking.rotation import Turning, rotations, true, turning_of
from milepost.hf.model.parts import ALIBI, ROTARY, TABLE, kind_of
from milepost.seams.arguments import arguments, spell, spell_value
from milepost.seams.facets import Slopes
from milepost.seams.verbs import answers

LENGTHS = (64, 1024, 8192, 65536, 1 << 20)
"""Where methods that follow the length of the text are compared."""
KEYS = {
    "theta": "rope_theta", "trained": "original_max_position_embeddings", "fast": "beta_fast", "slow": "beta_slow",
    "scaled": "attention_factor", "low": "low_freq_factor", "high": "high_freq_factor", "short": "short_factor",
    "long": "long_factor", "buckets": "relative_attention_num_buckets", "reach": "relative_attention_max_distance",
}  # fmt: skip
"""What configs call the fields of our methods."""
STRETCHES = {
    "Yarn": "yarn",
    "Llama3": "llama3",
    "Interpolate": "linear",
    "DynamicNtk": "dynamic",
    "LongRope": "longrope",
}


@dataclass(frozen=True)
class Function:
    """A user's rotary function as a part of a scheme."""

    function: Any
    head_dim: int
    rotary = True

    def turn(self, x: Tensor, position: Tensor, side: str = "query", length: object = None) -> Tensor:
        """Rotate x [b h t d] by the function."""
        return self.function(x, position)


class GivenSlopes:
    """ALiBi's slopes as a user gives them, [h]."""

    def __init__(self, behind: Tensor) -> None:
        self.behind = behind.double().cpu()

    def slopes(self, length: object = None) -> Slopes:
        """Return the slopes as they were given."""
        return Slopes(self.behind, self.behind)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        """Lower a score by its slope times the distance."""
        return score - self.behind[head] * (p - r).abs()


def compare(a: Scheme, b: Scheme, widths: tuple[int, int], only: Set[str] | None = None) -> Iterator[Difference]:
    """Name every seam at which two schemes differ.

    widths: the channels of a head in each; only: the kinds of encoding that are compared, None for everything.
    """
    one, two = ({kind: part for part in each.parts if (kind := kind_of(part)) is not None} for each in (a, b))
    if {*one} & (only or {*one}) != {*two} & (only or {*two}):
        words = (", ".join(f"{kind}: {spell(part)}" for kind, part in each.items()) for each in (one, two))
        yield between("position encoding", (each or "none" for each in words))
    scales, even = [scale_of(each, width) for each, width in zip((a, b), widths, strict=True)], False
    if only is None and not _equal(*scales):
        # A magnitude on cos and sin and its square on the scores are the same where all channels rotate.
        first, second = (_magnitude(each.get(ROTARY)) for each in (one, two))
        even = first is not None and second is not None and _equal(scales[0] * first**2, scales[1] * second**2)
    for kind in one:
        if kind in two and (only is None or kind in only):
            yield from _encodings(kind, one[kind], two[kind], even)
    if only is None:
        if not even and not _equal(*scales):
            yield _scale(a, b, scales)
        yield from _others(a, b)


def _encodings(kind: str, a: Any, b: Any, even: bool) -> Iterator[Difference]:
    learned = isinstance(a, nn.Module) or isinstance(b, nn.Module)
    if a is b or (not learned and a == b):
        return
    if kind == ROTARY:
        yield from _rotary(a, b, even)
    elif kind == ALIBI and not learned:
        yield from _slopes(a, b)
    elif kind == TABLE:
        # Its offset and its values are the model's to show.
        if a.length != b.length:
            yield Difference("position table length", f"{a.length:,} positions", f"{b.length:,}")
    elif type(a) is not type(b):
        yield Difference(kind, spell(a), spell(b), "Another form of the same kind of encoding.")
    else:
        for name, value in arguments(a).items():
            if value != getattr(b, name):
                words = _values(KEYS.get(name, name), value, getattr(b, name))
                yield between(f"{kind}: {KEYS.get(name, name)}", words, f"{type(a).__name__} is built differently.")


# Rotations


def turning(part: Any, length: int | None = None) -> Turning:
    """Measure a rotation; where a position has several coordinates, all are the same."""
    axes, given = getattr(part, "axes", None), {} if length is None else {"length": length}

    def rotary(x: Tensor, position: Tensor) -> Tensor:
        return part.turn(x, position if axes is None else position[None, :, None].expand(1, -1, axes), **given)

    return turning_of(rotary, part.head_dim)


def _measured(a: Any, b: Any) -> list[Difference]:
    """Compare two rotations by number, at the lengths that either depends on."""
    found = (list(rotations(turning(a, length), turning(b, length))) for length in _lengths(a, b))
    return next((each for each in found if each), list[Difference]())


def _lengths(*parts: object) -> tuple[int | None, ...]:
    """The lengths of text that methods depend on; None where they follow none."""
    return LENGTHS if any(getattr(part, "by_length", False) for part in parts) else (None,)


def _magnitude(part: Any) -> Tensor | None:
    """Return what q and k are multiplied by as they rotate, where all channels do."""
    found = None if part is None or getattr(part, "by_length", False) else turning(part)
    return None if found is None or len(found.channels) < found.dim else found.sizes.mean()


def _rotary(a: Any, b: Any, even: bool) -> Iterator[Difference]:
    found = [each for each in _measured(a, b) if not (even and each.convention == "magnitude")]
    if found:
        yield from list(_fields(a, b)) or found
    elif getattr(a, "axes", None) or getattr(b, "axes", None):
        yield Difference("rotation", spell(a), spell(b), "Positions with several coordinates rotate differently.")


def _fields(a: Any, b: Any) -> Iterator[Difference]:
    """Name the fields in which two ropes differ and that change what B does; nothing where these are no two ropes."""
    one, two = (each.method if isinstance(each, Partial) else each for each in (a, b))
    if not (type(one) is type(two) is Rope) or a.head_dim != b.head_dim or a.width != b.width:
        return
    if one.pairs != two.pairs:
        yield Difference("pairs", turning(a).layout, turning(b).layout)
    if one.theta != two.theta:
        yield Difference("base", f"rope_theta {number(one.theta)}", f"rope_theta {number(two.theta)}")
    s, t = one.stretch, two.stretch
    if type(s) is not type(t):
        yield between("stretch", ("none" if each is None else spell(each) for each in (s, t)))
    elif s is not None and is_dataclass(s):
        for name in (each.name for each in fields(s) if getattr(s, each.name) != getattr(t, each.name)):
            key = KEYS.get(name, name)
            if _matters(two, name, getattr(s, name)):
                kind, words = type(s).__name__, _values(key, getattr(s, name), getattr(t, name))
                yield between(f"{STRETCHES.get(kind, kind)} {key}", words, "The stretch of the rotation differs.",
                                 f"Set {key} alike in rope_parameters.")  # fmt: skip


def _values(key: str, one: object, two: object) -> tuple[str, str]:
    """Write two values of a field; of two lists, the first items that differ."""
    if isinstance(one, tuple) and isinstance(two, tuple):
        pairs = zip(cast("tuple[object, ...]", one), cast("tuple[object, ...]", two), strict=False)
        for n, (x, y) in enumerate(pairs):
            if x != y:
                return f"{key}[{n}] {spell_value(x)}", f"{key}[{n}] {spell_value(y)}"
    return f"{key} {spell_value(cast('object', one))}", f"{key} {spell_value(cast('object', two))}"


def _matters(rope: Rope, name: str, value: object) -> bool:
    """True if a stretch with another value of a field rotates differently."""
    try:
        return bool(_measured(rope, replace(rope, stretch=replace(rope.stretch, **{name: value}))))  # pyright: ignore
    except ValueError:
        # The value is not allowed with B's other ones, so it is not the same there.
        return True


# Slopes


def _slopes(a: Any, b: Any) -> Iterator[Difference]:
    for length in _lengths(a, b):
        one, two = (each.slopes() if length is None else each.slopes(length) for each in (a, b))
        sides = ((one.behind, two.behind), (one.ahead, two.ahead))
        for x, y in ((x.double().flatten(), y.double().flatten()) for x, y in sides):
            if len(x) != len(y):
                yield Difference(ALIBI, f"{len(x)} heads", f"{len(y)} heads", "These are different models.")
                return
            if not torch.allclose(x, y, rtol=2e-5, atol=1e-12):
                words = (f"{number(float(each.max()))} to {number(float(each.min()))}" for each in (x, y))
                yield between(ALIBI, words, _why_slopes(x, y))
                return
        if (one.step is None) != (two.step is None):
            yield Difference(ALIBI, spell(a), spell(b), "One adds an offset to every key behind.")
            return


def _why_slopes(a: Tensor, b: Tensor) -> str:
    """Return what a difference of slopes is, where that reproduces every one of them."""
    ratio = b / a
    if torch.allclose(b, -a, rtol=2e-5, atol=0):
        return "The sign is reversed: B favours keys that are far away."
    if bool(a.all()) and torch.allclose(ratio, ratio[:1].expand_as(ratio), rtol=1e-4, atol=0):
        return f"Every slope of B is {number(float(ratio[0]))} times that of A (1/√d, or interpolation)."
    for one, two, name in ((a, b, "B"), (b, a, "A")):
        if torch.equal(one.to(torch.bfloat16).double(), two):
            return f"{name} keeps them in bfloat16."
    if torch.allclose(a.sort().values, b.sort().values, rtol=2e-5, atol=0):
        return "The same numbers in another order of heads."
    wrong = true((b - a).abs() > 2e-5 * a.abs())
    listed = ", ".join(f"head {n}: {number(float(a[n]))} and {number(float(b[n]))}" for n in wrong[:3])
    return f"{len(wrong)} of {len(a)} heads differ ({listed}{', …' * (len(wrong) > 3)})."


# Everything but the encoding


def scale_of(scheme: Scheme, width: int) -> Tensor:
    """Return what scores are multiplied by at a few indices, float64 [… t]: the scale and the temperature."""
    index = torch.tensor([[0, 1, 63, 1023, 8191, 131071]])
    factor = scheme.sharpen(index, index + 1)
    scale = torch.full(index.shape, scheme.scale(width), dtype=torch.float64)
    return scale if factor is None else scale * factor.double()


def _equal(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and torch.allclose(one, two, rtol=1e-6, atol=0)


def _scale(a: Scheme, b: Scheme, scales: list[Tensor]) -> Difference:
    one, two = (each.flatten() for each in scales)
    if all(bool((each == each[0]).all()) for each in (one, two)):
        by = f"B's scores are {number(float(two[0] / one[0]))} times A's."
        return between("softmax scale", (f"scores × {number(float(each[0]))}" for each in (one, two)), by)
    return between("softmax temperature", (_listed(each, "sharpen", "scale") for each in (a, b)))


def _listed(scheme: Scheme, *asked: str) -> str:
    """Write the parts of a seam; what learns a logit of attending to nothing is one kind, whoever has its weights."""
    parts = [part for part in scheme.parts if any(answers(part, each) for each in asked)]
    learned = [isinstance(part, nn.Module) and answers(part, "rest") for part in parts]
    words = ("a learned logit a head" if sink else spell(part, whole=True)
             for part, sink in zip(parts, learned, strict=True))  # fmt: skip
    return ", ".join(words) or "none"


def _others(a: Scheme, b: Scheme) -> Iterator[Difference]:
    if (a.band() is None or a.band() != b.band()) and _seen(a) != _seen(b):
        yield Difference("mask", _seen(a), _seen(b))
    norms = [[spell(part) for part in each.parts if isinstance(part, QkNorm)] for each in (a, b)]
    words = {"QK norm": [", ".join(each) or "none" for each in norms]}
    for name, verb in (("position remapping", "place"), ("soft cap", "cap"), ("attention sink", "rest")):
        words[name] = [_listed(each, verb) for each in (a, b)]
    yield from (between(name, each) for name, each in words.items() if each[0] != each[1])
    orders = [[type(part).__name__ for part in each.answering("bend")] for each in (a, b)]
    if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]):
        yield between("order of biases", (", ".join(each) for each in orders))


def _seen(scheme: Scheme) -> str:
    """Write what is visible, each condition once."""
    parts = (repr(part) for part in scheme.answering("see"))
    once = {each for part in parts for each in ([part] if "|" in part else part.split(" & "))}
    return " & ".join(sorted(once)) or "every key"
