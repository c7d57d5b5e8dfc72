"""Scores by distance: fast and slow pairs of channels apart, before and after a stretch, and past training."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.asked import demand_part
from milepost.explore.pictures.axes import power
from milepost.explore.pictures.curves import Curves, around, curves
from milepost.explore.words import in_words, stretch_in_words
from milepost.methods.rope import LearnedRope, Rope, Xpos
from milepost.methods.softmax import Scale
from milepost.numerics.rotation import in_pairs
from milepost.scheme import Scheme
from milepost.seams import demand
from milepost.seams.arguments import spell
from milepost.seams.visible import causal

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]
AT_ONCE = 16_384
"""Distances whose scores are computed at once."""


def score_bands(
    rope: Any,
    *,
    trained: int = 4096,
    length: int = 8192,
    q: Tensor | None = None,
    k: Tensor | None = None,
    band: int | None = None,
    points: int = 512,
) -> Analysis:
    """Split the score of one query and one key by distance into the fastest, the middle and the slowest pairs.

        explore.score_bands(mp.Rope(128))
        explore.score_bands(mp.Rope(128, stretch=mp.Ntk(8)), trained=4096, length=32_768)

    rope: a Rope, LearnedRope or Xpos. q, k: [d], or [n d] for the mean over n queries and their keys; left out, every
    pair of channels of both is the same unit vector, so that a pair counts 1 at distance 0. The score is q · k, not
    divided by √d. band: how many of the fastest and of the slowest pairs are taken apart, a quarter of all if left out.
    points: how many distances are returned and drawn; what was met in training and past it is read at every one.
    Look at the trained length: nothing marks it, in any band. Past it the slowest pairs have values that training never
    met at every distance; the faster ones come round again, and hardly ever leave what they had.
    """
    given = q
    q, k = _vectors(score_bands, rope, q, k)
    at, whole = _bands(score_bands, rope, q, k, trained, length, band, points)
    slowest, _, fastest, everything = whole.values()
    count, run = _width(rope, band), _run(length)
    met = {name: (values[:trained].min(), values[:trained].max()) for name, values in whole.items()}
    past = {name: (values[trained:].min(), values[trained:].max()) for name, values in whole.items()}
    below = {name: int((values[trained:] < met[name][0]).sum()) for name, values in whole.items()}
    return Analysis(
        "score_bands",
        "Scores do not jump at the trained length"
        + _leaves(f"the {count} slowest pairs", slowest, everything, trained),
        f"The {count} slowest pairs together go from {slowest[0]:.1f} at distance 0 to {slowest[trained]:.1f} at "
        f"{trained:,}, the trained length, and to {slowest[trained:].min():.1f} past it; the {count} "
        f"fastest swing by {_rms(fastest[1:]):.1f} (root mean square) at any distance. Below the least value met in "
        f"training, of {length - trained:,} distances past it: "
        + "; ".join(f"{name} at {below[name]:,} ({met[name][0]:.2f}, then {past[name][0]:.2f})" for name in whole)
        + ".",
        (
            axis("distance", at.astype(np.float64), "tokens"),
            *(array(name, values[at], "q·k", "distance") for name, values in whole.items()),
            *(array(f"{name}: least in training", met[name][0], "q·k") for name in whole),
            *(array(f"{name}: largest in training", met[name][1], "q·k") for name in whole),
            *(array(f"{name}: least past it", past[name][0], "q·k") for name in whole),
            *(array(f"{name}: distances below", below[name], "distances") for name in whole),
        ),
        _panels(at, {name: {"": values} for name, values in whole.items()}, trained),
        f"{in_words(rope)} · trained at {trained:,} tokens · line: mean of the {run:,} distances around, where there "
        f"are so many; pale: from their least to their largest · "
        + ("q = k, a unit vector in every pair" if given is None else "mean over the given q and k"),
    )


def _leaves(slow: str, slowest: Numbers, everything: Numbers, trained: int) -> str:
    """Return how often the slowest pairs and the sum are below every value met in training, as the end of a title."""
    words: list[str] = []
    for name, values, one in ((slow, slowest, False), ("the sum", everything, True)):
        past = values[trained:] < values[:trained].min()
        if past.any():
            s = "s" * one
            words.append(
                f"{name} stay{s} below {'it' if words else 'every value met in training'}"
                if past.all()
                else f"{name} dip{s} below {'' if words else 'every value met in training '}"
                f"at {int(past.sum()):,} of {len(past):,} distances"
            )
    return f"; past it {'; '.join(words)}" if words else ""


def before_after(
    q: Tensor,
    k: Tensor,
    *,
    before: Any = None,
    after: Any = None,
    trained: int = 4096,
    length: int = 16_384,
    band: int | None = None,
    points: int = 512,
) -> Analysis:
    """Compare the score of a query and a key by distance before and after a rotation was stretched.

        explore.before_after(q, k, trained=4096, length=16_384)
        explore.before_after(q, k, before=mp.Rope(128), after=mp.Rope(128, stretch=mp.Yarn(8, trained=4096)))

    q, k: [d], or [n d] for the mean over n queries and their keys, before they are rotated. before, after: two
    rotations with the same pairs; left out, those of Llama 2 and Code Llama, which raised the base from 10,000 to
    1,000,000. Other arguments are those of `score_bands`.
    Look at where the slowest pairs are at the new length: a larger base brings them back to what training met.
    """
    width = q.shape[-1]
    was = Rope(width) if before is None else before
    now = Rope(width, theta=1e6) if after is None else after
    given = {rope: _vectors(before_after, rope, q, k) for rope in (now, was)}
    at, old = _bands(before_after, was, *given[was], trained, length, band, points)
    _, new = _bands(before_after, now, *given[now], trained, length, band, points)
    shown = {name: {"before": old[name], "after": new[name]} for name in old}
    slowest = next(iter(old))
    return Analysis(
        "before_after",
        "The score by distance before and after a stretch",
        f"Past the trained length of {trained:,} the {_width(was, band)} slowest pairs go down to "
        f"{old[slowest][trained:].min():.2f} before and {new[slowest][trained:].min():.2f} after; within it they stay "
        f"above {old[slowest][:trained].min():.2f} before.",
        (
            axis("distance", at.astype(np.float64), "tokens"),
            *(array(f"{name}, before", values[at], "q·k", "distance") for name, values in old.items()),
            *(array(f"{name}, after", values[at], "q·k", "distance") for name, values in new.items()),
        ),
        _panels(at, shown, trained),
        f"before: {in_words(was)} · after: {in_words(now)} · trained at {trained:,} tokens",
    )


RIDGES = tuple(10.0**n for n in range(-14, 1))
"""The ridges at which the bound is shown."""


def score_bound(
    rope: Any,
    *,
    trained: int = 2048,
    length: int = 8192,
    ridge: float = 1e-10,
    stretched: Any = None,
    targets: int = 1024,
    seed: int = 0,
    points: int = 512,
) -> Analysis:
    """Fit a score that is small at trained distances, and read it past them: figure 2 of Chen et al. (2023).

        explore.score_bound(mp.Rope(128))
        explore.score_bound(mp.Rope(128), ridge=1e-2)

    The score of a query and a key is Σ_n a_n cos(s · θ_n) + b_n sin(s · θ_n) at distance s. a and b are fitted to
    random targets in ±1 at `targets` distances from 0 to `trained`: Σ(score − target)² + ridge · Σ(a² + b²) is least.
    ridge=0 is least squares by the pseudo-inverse. stretched: the rotation that reads the same a and b without leaving
    the trained distances; left out, the same rotation reads every distance divided by length/trained. rope: a Rope,
    LearnedRope or Xpos.
    Look at the last picture: how far the score explodes is a matter of the ridge, because only huge coefficients, which
    cancel at trained distances, explode. The bound says what could happen to a model, not what does.
    """
    for name, value in (("trained", trained), ("targets", targets)):
        demand.whole(score_bound, name, value)
    demand.whole(score_bound, "length", length, least=trained + 2)
    demand.whole(score_bound, "points", points, least=2)
    demand.finite(score_bound, "ridge", ridge, least=0)
    demand.whole(score_bound, "seed", seed, least=0)
    channels = _channels(score_bound, rope)
    if stretched is not None and not torch.equal(_channels(score_bound, stretched), channels):
        raise ValueError(f"score_bound: {spell(stretched)} pairs other channels than {spell(rope)}")
    query = torch.zeros(rope.head_dim, dtype=torch.float64)
    query[channels[:, 0]] = 1
    waves = _waves(rope, query, length)
    calm = _waves(rope, query, length, trained / length) if stretched is None else _waves(stretched, query, length)
    other = f"interpolated by {length / trained:g}" if stretched is None else _called(stretched)
    draw = torch.Generator().manual_seed(seed)
    places = torch.randint(trained + 1, (targets,), generator=draw)
    places[0], places[-1] = 0, trained
    fitted = _ridge_regression(waves[places], 2 * torch.rand(targets, generator=draw, dtype=torch.float64) - 1)

    def largest(key: Tensor) -> list[float]:
        whole = (waves @ key).abs()
        return [float(each.max()) for each in (whole[: trained + 1], whole[trained + 1 :], key.abs())]

    key = fitted(ridge)
    at = _distances(length, points, *range(0, trained + 1, max(1, trained // points)))
    plain, squeezed = ((each @ key)[at].numpy() for each in (waves, calm))
    pressed = float((calm @ key).abs().max())
    inside, outside, coefficient = largest(key)
    by_ridge, free = np.array([largest(fitted(each)) for each in RIDGES]), largest(fitted(0.0))
    distance = at.double().numpy()
    few = rope.head_dim < targets
    return Analysis(
        "score_bound",
        "A score that is small at trained distances can be huge past them",
        f"With a ridge of {ridge:g} the score stays within {inside:.2g} at trained distances and reaches {outside:.1g} "
        f"past them, with coefficients up to {coefficient:.1g}; {other} it stays within {pressed:.2g}. From "
        f"ridge {RIDGES[0]:g} to {RIDGES[-1]:g} the largest score past {trained:,} goes from {by_ridge[0, 1]:.0e} to "
        f"{by_ridge[-1, 1]:.1g}.",
        (
            axis("distance", distance, "tokens"),
            array("score", plain, "", "distance"),
            array("score, stretched", squeezed, "", "distance"),
            axis("ridge", np.array(RIDGES)),
            *(array(name, by_ridge[:, n], "", "ridge") for n, name in enumerate(LARGEST)),
            array("largest at trained distances", inside),
            array("largest past them", outside),
            array("largest at all distances, stretched", pressed),
            *(array(f"{name}, without a ridge", free[n]) for n, name in enumerate(LARGEST)),
        ),
        (
            *_fits(distance, plain, squeezed, other, trained),
            curves(
                "How large it gets is a matter of the ridge",
                np.array(RIDGES),
                {
                    "score past training": by_ridge[:, 1],
                    "coefficient": by_ridge[:, 2],
                    "score at trained distances": by_ridge[:, 0],
                },
                x_name="ridge of the fit",
                y_name="largest size",
                x_scale="decades",
                y_scale="decades",
                mark=(ridge, f"ridge {_ridge(ridge)}") if ridge > 0 else None,
            ),
        ),
        f"{in_words(rope)} · q and k fitted to {targets:,} random targets in ±1 at distances up to {trained:,}, "
        f"with a ridge of {_ridge(ridge)}"
        + ("; they have fewer numbers than there are targets, so the fit stays short of ±1" if few else "")
        + " · the score is a sum of aₙ cos(s θₙ) + bₙ sin(s θₙ) at distance s; coefficient: one of its aₙ and bₙ, "
        "products of entries of q and k · every panel has a scale of its own",
    )


def _ridge(ridge: float) -> str:
    """Return a ridge as the axis has it."""
    exponent = round(math.log10(ridge)) if ridge > 0 else 0
    return power(exponent) if math.isclose(ridge, 10.0**exponent) else f"{ridge:g}"


def _ridge_regression(rows: Tensor, wanted: Tensor) -> Callable[[float], Tensor]:
    """Return what gives the coefficients for a ridge, by the singular values of rows [n d]."""
    parts = cast("tuple[Tensor, Tensor, Tensor]", torch.linalg.svd(rows, full_matrices=False))
    left, sizes, right = parts
    usable = sizes > sizes[0] * max(rows.shape) * torch.finfo(rows.dtype).eps

    def fitted(ridge: float) -> Tensor:
        inverse = torch.where(usable | (ridge > 0), sizes / (sizes**2 + ridge), 0.0)
        return right.T @ (inverse * (left.T @ wanted))

    return fitted


LARGEST = ("inside, by ridge", "outside, by ridge", "coefficient, by ridge")


def _called(stretched: Any) -> str:
    """Return a rotation by its stretch, where it has one."""
    stretch = getattr(stretched, "stretch", None)
    return in_words(stretched) if stretch is None else stretch_in_words(stretch)


def _waves(rope: Any, query: Tensor, length: int, step: float = 1) -> Tensor:
    """Return what each channel of a key adds to the score at each distance, `step` a token: [length channels]."""
    start = torch.zeros(1, dtype=torch.long)
    unit = torch.eye(rope.head_dim, dtype=torch.float64)[None, :, None]
    keys = rope.turn(unit, start, "key", length)[0, :, 0]
    queries = rope.turn(query.expand(1, 1, length, -1), torch.arange(length) * step, "query", length)[0, 0]
    return (queries @ keys.T).detach()


def _fits(at: Numbers, plain: Numbers, squeezed: Numbers, other: str, trained: int) -> list[Curves]:
    """Return the fitted score at trained distances, past them, and as a stretched rotation reads it."""
    met = at <= trained
    drawn = (
        ("The score at trained distances", at[met], {"": plain[met]}),
        ("The same score, read further", at, {"": plain}),
        (f"The same score, the rotation {other}", at, {"": squeezed}),
    )
    mark = float(trained), f"trained length, {trained:,}"
    return [
        curves(title, where, lines, x_name="distance in tokens", y_name="score", mark=mark)
        for title, where, lines in drawn
    ]


def _bands(
    caller: FunctionType | Any,
    rope: Any,
    q: Tensor,
    k: Tensor,
    trained: int,
    length: int,
    band: int | None,
    points: int,
) -> tuple[Indices, dict[str, Numbers]]:
    """Return the distances that are drawn, and the score of the slowest, middle, fastest and all pairs at every one."""
    demand.whole(caller, "trained", trained)
    demand.whole(caller, "length", length, least=trained + 1)
    demand.whole(caller, "points", points, least=2)
    channels = _channels(caller, rope)
    pairs = len(channels)
    count = _width(rope, band)
    demand.whole(caller, "band", count)
    if 2 * count >= pairs:
        raise ValueError(f"{demand.asked(caller, 'band', band)}: of {pairs} pairs none is left between two bands")
    at = _distances(length, points, trained)
    parts = {
        f"{count} slowest pairs": slice(pairs - count, pairs),
        f"{pairs - 2 * count} pairs between": slice(count, pairs - count),
        f"{count} fastest pairs": slice(count),
        f"all {pairs} pairs": slice(pairs),
    }
    found: dict[str, Numbers] = {}
    for name, part in parts.items():
        kept = torch.zeros(2 * pairs, dtype=torch.float64)
        kept[channels[part].flatten()] = 1
        found[name] = _score(rope, q * kept.to(q.device), k, length)
    return at.numpy(), found


def _score(rope: Any, q: Tensor, k: Tensor, length: int) -> Numbers:
    """Return the sum over [n d] queries and keys of q · k at each distance below a length."""
    scheme = Scheme(rope, Scale(1.0), causal)
    slices = [torch.arange(start, min(start + AT_ONCE, length)) for start in range(0, length, AT_ONCE)]
    found = torch.cat([scheme.curve(q, k, each, length).sum(0) for each in slices])
    return found.detach().cpu().double().numpy()


def _mean(q: Tensor, k: Tensor, channels: Tensor) -> tuple[Tensor, Tensor]:
    """Return at most two queries and keys whose scores add up to the mean over [n d] of them, at every distance.

    A rotation mixes the two channels of a pair and no others, so of each pair it reads the mean of q kᵀ alone, [2 2],
    which is a sum of two products.
    """
    if len(q) == 1:
        return q, k
    pairs = channels.to(q.device)
    means = torch.einsum("npa,npb->pab", q[:, pairs], k[:, pairs]) / len(q)
    left, sizes, right = cast("tuple[Tensor, Tensor, Tensor]", torch.linalg.svd(means))
    one, other = (torch.zeros(2, q.shape[1], dtype=q.dtype, device=q.device) for _ in range(2))
    for n in range(2):
        one[n, pairs] = left[:, :, n] * sizes[:, n, None]
        other[n, pairs] = right[:, n]
    return one, other


def _channels(caller: FunctionType | Any, rope: Any) -> Tensor:
    """Return the two channels of each pair, [pairs 2], the fastest pair first."""
    demand_part(caller, rope)
    if not isinstance(rope, (Rope, LearnedRope, Xpos)):
        raise TypeError(
            f"{caller.__name__}: {spell(rope)} does not turn all channels in pairs by one position; give a Rope, a "
            f"LearnedRope or an Xpos"
        )
    numbers = in_pairs(torch.arange(rope.head_dim), rope.pairs)
    return numbers.T if rope.pairs == "halves" else numbers


def _width(rope: Any, band: int | None) -> int:
    """Return how many pairs an outer band has."""
    return max(1, rope.head_dim // 8) if band is None else band


def _vectors(caller: FunctionType | Any, rope: Any, q: Tensor | None, k: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return at most two q and k [n d] in float64 whose scores are summed; unit vectors if both are left out."""
    _channels(caller, rope)
    if (q is None) != (k is None):
        raise ValueError(f"{caller.__name__}: give both q and k, or neither")
    if q is None or k is None:
        unit = torch.full((1, rope.head_dim), 0.5**0.5, dtype=torch.float64)
        return unit, unit
    if q.shape != k.shape or q.dim() not in (1, 2) or q.shape[-1] != rope.head_dim:
        raise ValueError(
            f"{caller.__name__}: q and k are both [d] or both [n d], with the {rope.head_dim} channels of "
            f"{spell(rope)}; given {list(q.shape)} and {list(k.shape)}"
        )
    q, k = (each.detach().double().reshape(-1, rope.head_dim) for each in (q, k))
    return _mean(q, k, _channels(caller, rope))


def _distances(length: int, points: int, *also: int) -> Tensor:
    """Return so many distances below a length, evenly spread, and some others."""
    spread = torch.linspace(0, length - 1, min(points, length), dtype=torch.float64).round().long()
    return cast("Tensor", torch.cat((spread, torch.tensor(also, dtype=torch.long))).unique())


def _run(length: int) -> int:
    """Return of how many distances a running mean is."""
    return 2 * (length // 64) + 1


def _panels(at: Indices, shown: dict[str, dict[str, Numbers]], trained: int) -> tuple[Curves, ...]:
    """Return a picture for each band, three of them at one scale; of a single curve the running mean and its range.

    at: the distances that are drawn; shown: the scores at every one.
    """
    outer = [values for lines in list(shown.values())[:-1] for values in lines.values()]
    low, high = (float(each) for each in (np.min(outer), np.max(outer)))
    near = {
        name: around(values, at, _run(len(values)))
        for name, lines in shown.items()
        for values in lines.values()
        if len(lines) == 1
    }
    return tuple(
        curves(
            f"The score of {name}" if name.startswith("all") else f"The score of the {name}",
            at.astype(np.float64),
            {each: near[name][0] if name in near else values[at] for each, values in lines.items()},
            x_name="distance in tokens",
            y_name="q · k, at a scale of its own" if name.startswith("all") else "q · k",
            mark=(float(trained), f"trained length, {trained:,}"),
            y_range=None if name.startswith("all") else (low, high),
            ranges=dict.fromkeys(lines, near[name][1:]) if name in near else None,
            outlined=(*_span(next(iter(lines.values()))[:trained]), "values met at trained distances"),
        )
        for name, lines in reversed(shown.items())
    )


def _span(values: Numbers) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _rms(values: Numbers) -> float:
    return float(np.sqrt(np.mean(values**2)))
