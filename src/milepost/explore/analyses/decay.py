"""Whether scores fall with distance: dot products of positions, and the bound on a rotated score."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.pictures.axes import number
from milepost.explore.pictures.strips import Strips, strips
from milepost.explore.words import in_words
from milepost.methods.embeddings import Sinusoidal
from milepost.methods.rope import FusedRope, Rope
from milepost.seams import demand
from milepost.seams.arguments import spell

Numbers = NDArray[np.float64]
MOST = 160
"""How many runs of distances are drawn."""
SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "exponential": lambda t, base: base**-t,
    "linear": lambda t, base: 1 - t,
    "power": lambda t, base: (1 - t) ** 2,
}
"""Named schedules: the angle a step of a pair at the share t = 2n/d of all pairs; base is that of the rotation."""

FORMULAS = {"exponential": "θ = 1/base to the power t", "linear": "θ = 1 − t", "power": "θ = (1 − t)²"}
"""The same in words."""

BACK = 0.9
"""A score of this share of its value at distance 0 is back."""
DRAWN = {
    "equal tokens, mean": "equal tokens, mean",
    "q = k, mean": "equal tokens, mean",
    "independent, mean": "independent tokens, mean",
    "independent, one draw": "independent tokens, one draw",
    "independent, rms": "independent tokens, root mean square",
}
"""What is written above the strips."""


def dot_products(
    encoding: Sinusoidal,
    *,
    rope: Rope | None = None,
    distances: Iterable[int] = range(0, 2001, 10),
    draws: int = 256,
    seed: int = 0,
) -> Analysis:
    """Compare what falls with distance and what does not: equal vectors, and independent random ones.

        explore.dot_products(mp.Sinusoidal(128))
        explore.dot_products(mp.Sinusoidal(64), rope=mp.Rope(64, theta=500_000.0), draws=1024)

    Left: p₀ · p_k of the table itself, and with tokens of N(0, 1) added at both positions, the same or two independent
    ones. p₀ · p_k is all that falls, under any tokens; their own product is there at every distance, in one draw noise.
    Right: a query and a key of N(0, 1) under RoPE. Equal ones fall; of independent ones the mean is 0 and the root mean
    square √d at every distance.
    """
    if not isinstance(encoding, Sinusoidal):
        raise TypeError(f"dot_products({_given(encoding)}): give a table of positions, such as Sinusoidal(128)")
    rope = Rope(encoding.model_dim) if rope is None else rope
    at = _distances(dot_products, distances)
    demand.whole(dot_products, "draws", draws, least=2)
    demand.whole(dot_products, "seed", seed, least=0)
    if getattr(rope, "head_dim", None) != encoding.model_dim:
        raise ValueError(f"dot_products(rope={_given(rope)}): give a rotation of {encoding.model_dim} channels")
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, draws, encoding.model_dim, dtype=torch.float64, generator=generator)
    rows = encoding.table(torch.tensor(at))
    origin = encoding.table(torch.tensor([0]))[0]
    alone = rows @ origin
    added = _summed("equal tokens, mean", _added(q, q, origin, rows), _added(q, k, origin, rows))
    turned = _summed("q = k, mean", *(_rotated(rope, q, each, at) for each in (q, k)))
    places = np.asarray(at, np.float64)
    last = at[-1]
    every = np.concatenate([alone.numpy(), *added.values(), *turned.values()])
    limits = min(float(every.min()), 0.0), float(every.max())
    return Analysis(
        "dot_products",
        "Positions added: their own product falls, whatever the tokens; tokens rotated: the product of equal tokens "
        "falls, that of independent ones does not",
        f"p₀ · pₖ falls from {float(alone[0]):.4g} to {float(alone[-1]):.4g} at distance {last:,}, and so does all "
        f"that it is added to. Under RoPE equal tokens fall from {turned['q = k, mean'][0]:.1f} to "
        f"{turned['q = k, mean'][-1]:.1f}; independent ones do not: rms {turned['independent, rms'][0]:.1f} and "
        f"{turned['independent, rms'][-1]:.1f}, √d is {math.sqrt(encoding.model_dim):.1f}.",
        (
            axis("distance", places, "tokens"),
            array("p₀ · p_k", alone, "", "distance"),
            *(array(f"added: {name}", each, "", "distance") for name, each in added.items()),
            *(array(f"RoPE: {name}", each, "", "distance") for name, each in turned.items()),
        ),
        (
            strips(
                "Positions added: (x₀ + p₀) · (xₖ + pₖ)",
                places,
                {
                    "p₀ · pₖ, the positions alone": alone.numpy(),
                    **{DRAWN[name]: y for name, y in added.items()},
                },
                x_name="distance k in tokens",
                y_name="dot product, all nine at one scale",
                limits=limits,
            ),
            strips(
                "Tokens rotated by RoPE: no product of positions",
                places,
                # Beside each the same of the other kind, so the first place is blank.
                {
                    "": np.full(len(places), np.nan),
                    **{
                        DRAWN[name] + (f": √d = {math.sqrt(encoding.model_dim):.1f}" if name.endswith("rms") else ""): y
                        for name, y in turned.items()
                    },
                },
                x_name="distance k in tokens",
                y_name="dot product, all nine at one scale",
                limits=limits,
            ),
        ),
        f"{in_words(encoding)} · {in_words(rope)} · tokens x, q and k from N(0, 1) · means and root mean "
        f"squares of {draws} draws",
    )


def decay_bound(
    rope: Rope,
    *,
    schedules: Sequence[str] | Mapping[str, Callable[[float], float]] = ("linear", "power"),
    distances: Iterable[int] = range(4097),
) -> Analysis:
    """Return the bound on a rotated score by distance, and the score of vectors of ones, for schedules of θ.

        explore.decay_bound(mp.Rope(128))
        explore.decay_bound(mp.Rope(128), schedules={"cosine": lambda t: math.cos(t * math.pi / 2)})

    For queries and keys that change little from pair to pair, a score is at most the largest change times Σ|S_j|,
    S_j = Σ_{n<j} e^{i·Δ·θ_n}; (2/d)·Σ|S_j| is drawn: the bound but for d/2 and that change. Ones give Σ cos(Δ·θ_n),
    drawn as a share of d/2. schedules: names ("exponential", "linear", "power"), or functions of
    your own, from t = 2n/d in 0 … 1 to the angle a step. Look at what comes back: a linear schedule of finite d is
    periodic, so that a far key scores as a near one.
    """
    if not isinstance(rope, Rope) or rope.by_length:
        raise TypeError(f"decay_bound({_given(rope)}): give a rotation of fixed angles, such as Rope(128)")
    at = _distances(decay_bound, distances)
    where = torch.tensor(at, dtype=torch.float64)
    angles = {spell(rope): rope.angles(where)}
    for name, schedule in _schedules(schedules, rope.theta).items():
        angles[name] = _scheduled(name, schedule, rope.head_dim).angles(where)
    bounds = {name: _bound(each) for name, each in angles.items()}
    ones = {name: each.cos().sum(-1).numpy() for name, each in angles.items()}
    places = np.asarray(at, np.float64)
    far = places > rope.head_dim
    pairs = rope.head_dim // 2
    back = (
        "" if not far.any() else ", ".join(f"{name} {_return(each, places, far, pairs)}" for name, each in ones.items())
    )
    own = spell(rope)
    shown = {own: f"RoPE, θ = 1/{number(rope.theta)} to the power t" if rope.stretch is None else in_words(rope)}
    shown |= {name: f"{name}, {FORMULAS[name]}" for name in angles if name in FORMULAS}
    run = math.ceil(len(at) / MOST)
    among = f"; line: largest of every {run} distances, pale: down to the least" if run > 1 else ""
    beside = [name for name in angles if name in FORMULAS]
    highest = max(ones, key=lambda name: _largest(ones[name], far)) if far.any() else own
    shares = {
        name: _again(ones[name] / pairs, places) or f"{100 * _largest(ones[name], far) / pairs:.0f} %"
        for name in {own: 0, highest: 0}
    }
    comes = f"past {rope.head_dim} tokens vectors of ones come back to {shares[own]} under RoPE"
    comes += f", and to {shares[highest]} under {highest!r} frequencies" if highest != own else ""
    return Analysis(
        "decay_bound",
        "A rotated score falls with distance, but not for good" + (f": {comes}" if far.any() else ""),
        f"The relative bound of {own} is {bounds[own][0]:.4g} at distance {at[0]:,} and "
        f"{bounds[own][-1]:.4g} at {at[-1]:,}."
        + (f" Largest score of ones past distance {rope.head_dim}, as a share of d/2: {back}." if back else ""),
        (
            axis("distance", places, "tokens"),
            *(array(f"bound, {name}", each, "", "distance") for name, each in bounds.items()),
            *(array(f"ones, {name}", each, "", "distance") for name, each in ones.items()),
        ),
        (
            _drawn("Relative upper bound, mean of |Sⱼ|", places, bounds, run, "mean of |Sⱼ|", shown),
            _drawn(
                "Score of vectors of ones, as a share of d/2",
                places,
                {name: each / pairs for name, each in ones.items()},
                run,
                "score / (d/2)",
                shown,
            ),
        ),
        f"{in_words(rope)}; θ: angle a token of pair n, t = 2n/d; Sⱼ: sum of the first j turned unit vectors{among}\n"
        + (f"{' and '.join(beside)}: for comparison, not RoPE's angles\n" if beside else "")
        + "score ≤ d/2 × (mean of |Sⱼ|) × (largest change of the product of q and k from pair to pair)",
    )


def _distances(owner: Callable[..., Analysis], distances: Iterable[int]) -> list[int]:
    """Return the distances, which rise."""
    found = list(distances)
    for each in found:
        demand.whole(owner, "distances", each, least=0)
    if len(found) < 2 or found != sorted(set(found)):
        raise ValueError(f"{owner.__name__}(distances=…): give at least two distances, each larger than the one before")
    return found


def _added(q: Tensor, k: Tensor, origin: Tensor, rows: Tensor) -> Tensor:
    """Return the product of each query at the origin and its key at each row, [draws distances]."""
    return (q + origin) @ rows.T + ((q + origin) * k).sum(-1, keepdim=True)


def _rotated(rope: Any, q: Tensor, k: Tensor, at: Sequence[int]) -> Tensor:
    """Return the product of each query and its key at each distance behind it, [draws distances]."""
    last = torch.tensor([at[-1]])
    keys = k[None, :, None].expand(-1, -1, len(at), -1)
    turned = rope.turn(keys, last - torch.tensor(at), "key", at[-1] + 1)[0]
    return (turned @ rope.turn(q[None, :, None], last, "query", at[-1] + 1)[0].mT)[..., 0]


def _mean(found: Tensor) -> Numbers:
    return found.mean(0).numpy()


def _summed(name: str, equal: Tensor, independent: Tensor) -> dict[str, Numbers]:
    """Return what is drawn of products [draws distances] of equal and of independent tokens; name: of the former."""
    return {
        name: _mean(equal),
        "independent, mean": _mean(independent),
        "independent, rms": independent.square().mean(0).sqrt().numpy(),
        "independent, one draw": independent[0].numpy(),
    }


def _bound(angles: Tensor) -> Numbers:
    """Return the mean of |S_j| over j, S_j the sum of the first j unit vectors at these angles [distances pairs]."""
    return torch.polar(torch.ones_like(angles), angles).cumsum(-1).abs().mean(-1).numpy()


def _drawn(
    title: str, places: Numbers, lines: Mapping[str, Numbers], run: int, name: str, shown: Mapping[str, str]
) -> Strips:
    """Return the largest of every run of distances and its range: a far peak is one distance wide."""
    starts = np.arange(0, len(places), run)
    drawn = {shown.get(each, each): values for each, values in lines.items()}
    return strips(
        title,
        places[starts],
        {each: np.maximum.reduceat(values, starts) for each, values in drawn.items()},
        x_name="distance in tokens",
        y_name=f"{name}, all at one scale",
        ranges={
            each: (np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts))
            for each, values in drawn.items()
        }
        if run > 1
        else None,
    )


def _largest(ones: Numbers, far: NDArray[np.bool_]) -> float:
    return float(np.where(far, ones, -np.inf).max())


def _again(ones: Numbers, places: Numbers) -> str:
    """Return how often a score of ones, as a share of all pairs, is nearly whole again; nothing if not regularly."""
    inner = np.flatnonzero((ones[1:-1] > ones[:-2]) & (ones[1:-1] >= ones[2:]) & (ones[1:-1] > BACK)) + 1
    if not inner.size:
        return ""
    first, apart = places[inner[0]], np.diff(places[inner])
    regular = len(inner) > 1 and float(np.abs(apart - first).max()) <= 0.01 * first
    return f"{100 * ones[inner].min():.0f} % or more every {first:,.0f} tokens" if regular else ""


def _schedules(
    schedules: Sequence[str] | Mapping[str, Callable[[float], float]], base: float
) -> dict[str, Callable[[float], float]]:
    """Return the schedules by name."""
    if isinstance(schedules, Mapping):
        return dict(schedules)
    for name in schedules:
        demand.one_of(decay_bound, "schedules", name, tuple(SCHEDULES))
    return {name: lambda t, made=SCHEDULES[name]: made(t, base) for name in schedules}


def _scheduled(name: str, schedule: Callable[[float], float], head_dim: int) -> FusedRope:
    """Return a rotation whose angles a step follow a schedule."""
    if not callable(schedule):
        raise TypeError(
            f"decay_bound(schedules={{{name!r}: {schedule!r}}}): a schedule is a function of t, such as "
            f"lambda t: 1 - t; those that have a name are {', '.join(map(repr, SCHEDULES))}"
        )
    return FusedRope(
        head_dim, values=False, frequencies=tuple(float(schedule(2 * n / head_dim)) for n in range(head_dim // 2))
    )


def _return(ones: Numbers, places: Numbers, far: NDArray[np.bool_], pairs: int) -> str:
    """Return the largest score of ones among far distances, as a share of all pairs, and where it is."""
    found = np.where(far, ones, -np.inf)
    return f"{found.max() / pairs:.2f} at {places[found.argmax()]:,.0f}"


def _given(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)


__all__ = ["SCHEDULES", "decay_bound", "dot_products"]
