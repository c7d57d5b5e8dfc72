"""Two models that were run on the same weights: in what way one of their layers differs, by what was measured.

A name is given only where it reproduces what was measured; otherwise the numbers are given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost.hf.checking.report import Difference, between, number
from milepost.hf.checking.rotation import Turning, measured, rotations, true
from milepost.hf.checking.running import Recording, Runs, modules_in
from milepost.schedule import ranges

HIDDEN = -1e4
"""A score below this is masked."""
PLAIN = (bool, int, float, str, type(None))
UNKNOWN = "The cause was not identified."


def diagnose(a: Runs, b: Runs, frame: Runs, label: str) -> list[Difference]:
    """Say how a layer of A and of B differ. frame: a run whose first position is not rotated."""
    where = ", ".join(odd_places(a, b, label)) or b.near.layers[label].path
    one, two = (each.closely.near.layers[label] for each in (a, b))
    found = [*_masks(one.scores, two.scores), *_buckets(one.buckets, two.buckets)]
    (queries, grown), (keys, _) = (
        _turned([each.closely.far for each in (frame, a, b)], label, which) for which in ("query", "key")
    )
    # Most code rotates queries and keys alike, which is named once.
    found += queries or [replace(each, convention=f"{each.convention} of keys") for each in keys]
    if not any(each.convention.startswith("T5") for each in found) and (queries or not keys):
        found += _scores(one.scores, two.scores, grown if queries else None)
    if not found:
        agree = one.scores is not None and two.scores is not None and _same(*_seen(one.scores, two.scores))
        means = "Its scores agree: values, sinks or what follows differ." if agree else UNKNOWN
        gap = f"{a.near.layers[label].apart(b.near.layers[label]):.2g} of its size away"
        found = [Difference("attention output", "its output", gap, means)]
    return [replace(each, layers=(label,), fix=f"{each.fix} Look at {where}.".strip()) for each in found]


def odd_places(a: Runs, b: Runs, label: str, names: tuple[str, str] = ("A", "B")) -> list[str]:
    """List what differs in the attention and rotary modules themselves: numbers, buffers, a replaced forward."""
    found: list[str] = []
    for (_, one), (path, two) in zip(*(_places(each, label) for each in (a, b)), strict=False):
        for name, x in one.__dict__.items():
            y = two.__dict__.get(name)
            if name[0] != "_" and name != "training" and isinstance(x, PLAIN) and isinstance(y, PLAIN) and x != y:
                words = (number(each) if isinstance(each, float) else repr(each) for each in (x, y))
                found.append(f"{path}.{name} ({', '.join(f'{v} in {n}' for v, n in zip(words, names, strict=True))})")
        buffers = dict(two.named_buffers())
        found += [f"{path}.{name} (buffer)" for name, x in one.named_buffers() if not _alike(x, buffers.get(name))]
        replaced = [side for side, each in zip(names, (one, two), strict=True) if "forward" in each.__dict__]
        found += [f"{path}.forward (replaced in {' and '.join(replaced)})"] if replaced else []
    return found


def _places(runs: Runs, label: str) -> list[tuple[str, nn.Module]]:
    """The attention module of a layer, and all rotary modules, with their paths."""
    path = runs.near.layers[label].path
    rotary = ((at, each) for at, each in modules_in(runs.model) if "Rotary" in type(each).__name__)
    return [(path, runs.model.get_submodule(path)), *rotary]


def _alike(one: Tensor, two: Tensor | None) -> bool:
    return two is not None and one.shape == two.shape and torch.equal(one.cpu(), two.cpu().to(one.dtype))


def _masks(a: Tensor | None, b: Tensor | None) -> Iterator[Difference]:
    """Compare which keys are seen, from masked scores [b h t s]."""
    if a is None or b is None:
        return
    if a.shape != b.shape:
        yield between("attention sink", (f"{each.shape[-1]} scores a query" for each in (a, b)))
        return
    seen = [(each > HIDDEN).any(0).any(0) for each in (a, b)]
    wrong = (seen[0] != seen[1]).sum(-1)
    if bool(wrong.any()):
        query = int(wrong.argmax())
        keys = (ranges(true(each[query])) or "none" for each in seen)
        yield between("mask", (f"query {query} sees keys {each}" for each in keys))


def _buckets(a: Tensor | None, b: Tensor | None) -> Iterator[Difference]:
    """Compare which row of its table a bias reads, [t s]."""
    if a is None or b is None or a.shape != b.shape or torch.equal(a, b):
        return
    if torch.equal(a, b.T):
        yield Difference("T5 direction", "counts key − query", "counts query − key")
        return
    i, j = (int(each) for each in (a != b).nonzero()[0])
    words = [f"bucket {int(each[i, j])}" for each in (a, b)]
    yield between("T5 buckets", words, f"For query {i} and key {j}, the first that differ.")


def _turned(runs: list[Recording | None], label: str, which: str) -> tuple[list[Difference], float]:
    """Solve for the rotations that take the unrotated queries or keys of a frame to those of A and B, and compare them.

    Returns the differences, and how many times larger their magnitude makes the scores of B.
    """
    nothing = list[Difference](), 1.0
    if len({None if each is None else each.positions for each in runs}) > 1 or None in runs:
        return nothing
    kept = [getattr(cast("Recording", each).layers[label], which) for each in runs]
    if any(each is None or each.shape != kept[0].shape for each in kept):
        return nothing
    frame, *given = (cast("Tensor", each).transpose(0, 1) for each in kept)  # [t n d]
    linear: Any = torch.linalg
    sizes, inverse = cast("tuple[Tensor, Tensor]", (linear.svdvals(frame[0]), linear.pinv(frame[0])))
    if frame.shape[1] < frame.shape[2] or float(sizes[-1]) < 1e-3 * float(sizes[0]):
        return nothing
    turnings: list[Turning] = []
    for x in given:
        matrices = (inverse @ x).mT  # [t out in]
        if float((frame[0] @ matrices.mT - x).abs().max()) > 1e-3 * float(x.abs().max()):
            # More than a rotation lies between, such as a norm.
            return nothing
        try:
            turnings.append(measured(matrices, torch.tensor(cast("Recording", runs[0]).positions).double()))
        except ValueError:
            return nothing
    first, second = (float(each.sizes[0].mean()) if each.pairs else 1.0 for each in turnings)
    return list(rotations(*turnings)), (second / first) ** 2


def _seen(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The scores of keys that both see, 0 elsewhere."""
    if a.shape != b.shape:
        return a, a
    seen = (a > HIDDEN) & (b > HIDDEN)
    return a.masked_fill(~seen, 0.0), b.masked_fill(~seen, 0.0)


def _scores(a: Tensor | None, b: Tensor | None, grown: float | None) -> Iterator[Difference]:
    """Compare masked scores [b h t s] where both see a key: a factor, a bias, a cap, or numbers.

    grown: where rotations differ, how many times larger that makes the scores of B.
    """
    if a is None or b is None:
        return
    one, two = _seen(a, b)
    if grown is not None:
        # The first query and key are at one position, so that rotations do not count.
        one, two = one[:, :, :1, :1] * grown, two[:, :, :1, :1]
    if _same(one, two):
        return
    by = float((one * two).sum() / (one * one).sum().clamp(min=1e-30))
    if _same(by * one, two):
        yield Difference("softmax scale", "scores × 1", f"× {number(by)}")
    elif grown is None:
        yield _bent(one, two)


def _bent(one: Tensor, two: Tensor) -> Difference:
    gap = two - one
    factors = (one * two).sum((0, 1, 3)) / (one * one).sum((0, 1, 3)).clamp(min=1e-30)
    if _same(factors[:, None] * one, two):
        last = len(factors) - 1
        words = f"× {number(float(factors[0]))} at query 0, × {number(float(factors[last]))} at query {last}"
        return Difference("softmax temperature", "scores × 1", words)
    if _same(gap, gap[:1].expand_as(gap)):
        # The same for every text: a bias. A number a row changes no softmax.
        behind = (gap[0, :, -1] - gap[0, :, -1, -1:]).flip(-1)  # [h distance]
        slopes = behind[:, 1]
        if _same(slopes[:, None] * torch.arange(behind.shape[1]), behind):
            words = ", ".join(number(-float(each)) for each in slopes[:4])
            return Difference("ALiBi slopes", "slope m of each head", f"m plus {words}{', …' * (len(slopes) > 4)}")
        head, at = divmod(int(behind.abs().argmax()), behind.shape[1])
        more = f"{number(float(behind[head, at]))} more at distance {at}"
        return Difference("score bias", "its bias", more, f"In head {head}, the most, against distance 0.")
    for n, cap in enumerate((_cap(one, two), _cap(two, one))):
        if cap is not None:
            words = ("no cap", f"cap · tanh(score / cap), cap {number(cap)}")
            return between("soft cap", (words if n == 0 else words[::-1]))
    _, _, i, j = (int(each) for each in torch.unravel_index(gap.abs().argmax(), gap.shape))
    words = f"up to {number(float(one.abs().max()))}", f"differ by up to {number(float(gap.abs().max()))}"
    return between("scores", words, f"Most at query {i}, key {j}. {UNKNOWN}")


def _cap(raw: Tensor, capped: Tensor) -> float | None:
    """Return the cap that makes one of the other, or None."""
    at = raw.abs().argmax()
    x, y = abs(float(raw.flatten()[at])), abs(float(capped.flatten()[at]))
    low, high = y, 1e5
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.tanh(x / middle) < y else (low, middle)
    return low if 0 < low < 1e4 and _same(low * (raw / low).tanh(), capped) else None


def _same(one: Tensor, two: Tensor) -> bool:
    return bool((one - two).abs().max() <= 1e-4 * max(float(one.abs().max()), 1e-3))
