"""The four terms of a score: content and position of the query, each with content and position of the key."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import milepost as mp
from milepost.explore.analysis import Analysis, Array, array, axis
from milepost.explore.asked import by_name
from milepost.explore.pictures.tiles import Tile, tiles
from milepost.seams import demand

Numbers = NDArray[np.float64]
TERMS = ("content–content", "content–position", "position–content", "position–position")
"""The query's side first."""
NOTHING = 1e-12
"""A term of less than this share of the whole is not there."""


def kept_terms(
    schemes: Mapping[str, mp.Scheme] | mp.Scheme | None = None,
    *,
    x: Tensor | None = None,
    to_queries: Tensor | None = None,
    to_keys: Tensor | None = None,
    tokens: int = 24,
    model_dim: int = 32,
    head_dim: int = 16,
    head: int = 0,
    seed: int = 0,
) -> Analysis:
    """Split every score into the four terms of content and position, and show which of them a method keeps.

        explore.kept_terms()
        explore.kept_terms({"XL": mp.Scheme(mp.TransformerXL(64, 4, 16))}, model_dim=64)

    (x + p) W (x + p)ᵀ  =  x W xᵀ  +  x W pᵀ  +  p W xᵀ  +  p W pᵀ

    A term is what is left of the score as the content of the query, of the key or of both is taken away (x = 0). So it
    is found for absolute positions and for relative ones alike. Shaw keeps content–position of what the absolute
    encoding has, T5 position–position, Transformer-XL all four with two of them as learned biases, DeBERTa drops
    position–position. Look for stripes along the diagonals: a term that depends on the distance alone.

    schemes: by name, or one; the absolute encoding and four relative ones, with tables drawn at random, if left out.
    x: the contents [tokens model_dim]; to_queries, to_keys: the projections [model_dim heads·head_dim]. Each is drawn
    at random if left out, and then has the sizes given. head: the head that is shown.
    Schemes whose score is no sum of these terms are refused: caps, normalised queries, CoPE.
    """
    for name, value in (("tokens", tokens), ("model_dim", model_dim), ("head_dim", head_dim)):
        demand.whole(kept_terms, name, value)
    demand.whole(kept_terms, "head", head, least=0)
    left_out = schemes is None
    if schemes is None:
        schemes = _published(model_dim, head_dim, seed)
    alone = isinstance(schemes, mp.Scheme)
    named = {"scheme": schemes} if alone else by_name(kept_terms, schemes, '{"T5": Scheme(T5Bias(2))}')
    x, *projections = _drawn(named, (x, to_queries, to_keys), tokens, model_dim, head_dim, seed)
    at = np.arange(len(x), dtype=np.float64)
    arrays: list[Array] = [axis("query", at), axis("key", at)]
    lines: list[tuple[str, list[Tile]]] = []
    kept: list[str] = []
    off = 0.0
    for name, scheme in named.items():
        whole, terms = _split(name, scheme, x, projections, head)
        seen = np.isfinite(whole)
        size = float(np.abs(whole[seen]).max())
        there = [bool(np.abs(each[seen]).max() > NOTHING * size) for each in terms]
        off = max(off, float(np.abs(sum(terms) - whole)[seen].max()))
        arrays += [
            array(f"{name}, {term}", each, "score", "query", "key") for term, each in zip(TERMS, terms, strict=True)
        ]
        arrays.append(array(f"{name}, whole", whole, "score", "query", "key"))
        row = [_tile(each) if keeps else Tile(None, "dropped") for each, keeps in zip(terms, there, strict=True)]
        lines.append((name, [_tile(whole), *row]))
        dropped = [term for term, keeps in zip(TERMS, there, strict=True) if not keeps]
        kept.append(f"{name} drops {' and '.join(dropped)}" if dropped else f"{name} keeps all four")
    picture = tiles(
        "A score is the sum of four terms, named the query's side first",
        lines,
        ("whole", *TERMS),
        across="key",
        down="query",
        ends=("negative", "positive; colour scale per row: ± its largest value"),
        signed=True,
        side=(104.0, 104.0),
    )
    settings = f"{len(x)} tokens of {x.shape[1]} channels, head {head} · dropped: the term is 0 · rms: root mean square"
    if left_out:
        settings += " · random weights; DeBERTa divides by √(3d), the others by √d"
    says = f"{'; '.join(kept)}. The terms sum to the whole to {max(off, 1e-16):.0e}."
    return Analysis("kept_terms", "Which terms of a score are kept", says, tuple(arrays), (picture,), settings)


def _drawn(
    named: Mapping[str, mp.Scheme],
    given: tuple[Tensor | None, Tensor | None, Tensor | None],
    tokens: int,
    model_dim: int,
    head_dim: int,
    seed: int,
) -> list[Tensor]:
    """Return contents and projections in float64; what is not given is drawn."""
    x = given[0]
    if x is not None and x.dim() != 2:
        raise ValueError(f"kept_terms: x must be [tokens model_dim], given {list(x.shape)}")
    width = model_dim if x is None else x.shape[1]
    heads = max(scheme.heads or 1 for scheme in named.values())
    drawn = torch.Generator().manual_seed(seed)
    made: list[Tensor] = []
    for name, each, shape in (
        ("x", x, (tokens, width)),
        ("to_queries", given[1], (width, heads * head_dim)),
        ("to_keys", given[2], (width, heads * head_dim)),
    ):
        size = 1.0 if name == "x" else width**-0.5
        random = torch.randn(shape, generator=drawn, dtype=torch.float64) * size
        made.append(random if each is None else each.detach().double())
        if name != "x" and (made[-1].dim() != 2 or len(made[-1]) != width):
            raise ValueError(f"kept_terms: {name} must be [{width} heads·head_dim], given {list(made[-1].shape)}")
    return made


def _split(
    name: str, scheme: mp.Scheme, x: Tensor, projections: Sequence[Tensor], head: int
) -> tuple[Numbers, list[Numbers]]:
    """Return the scores of a head and their four terms, [t t]; what is hidden is −∞ and NaN."""
    heads = scheme.heads or 1
    if head >= heads:
        raise ValueError(f"kept_terms(head={head}): {name} has {heads} heads, counted from 0")
    # Projections of a table are rounded in its own dtype, which would hide that four terms make the whole.
    scheme = copy.deepcopy(scheme).double()

    def projected(size: float, by: Tensor) -> Tensor:
        return (scheme.embed(x[None] * size) @ by).reshape(1, len(x), heads, -1).transpose(1, 2)

    def score(query: float, key: float) -> Numbers:
        with torch.no_grad():
            q, k = projected(query, projections[0]), projected(key, projections[1])
            return mp.scores(q, k, scheme.attention)[0, head].numpy()

    whole, of_query, of_key, of_none = score(1, 1), score(1, 0), score(0, 1), score(0, 0)
    with np.errstate(invalid="ignore"):
        terms = [whole - of_query - of_key + of_none, of_query - of_none, of_key - of_none, of_none]
        twice = 4 * terms[0] + 2 * terms[1] + 2 * terms[2] + terms[3]
        seen, doubled = np.isfinite(whole), score(2, 2)
    if np.abs(twice - doubled)[seen].max() > 1e-9 * np.abs(doubled[seen]).max():
        raise ValueError(
            f"kept_terms: a score of {name} is no sum of terms of content and position, because twice the content does "
            f"not make each of them twice as large; leave out what caps or normalises, and parts that read whole rows"
        )
    return whole, [np.where(seen, each, np.nan) for each in terms]


def _tile(values: Numbers) -> Tile:
    return Tile(values, f"rms {np.sqrt(np.square(values[np.isfinite(values)]).mean()):.2f}")


def _published(model_dim: int, head_dim: int, seed: int) -> dict[str, mp.Scheme]:
    """Return an absolute encoding and four relative ones, their tables drawn at the size of the contents."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        shaw = mp.Shaw(head_dim, reach=8, values=False)
        xl = mp.TransformerXL(model_dim, 1, head_dim)
        t5 = mp.T5Bias(1, buckets=16, reach=16, bidirectional=True)
        deberta = mp.Deberta(model_dim, 1, head_dim, reach=8)
        for table in (shaw.key_table, xl.u, xl.v, t5.table, deberta.table):
            torch.nn.init.normal_(table)
    parts = {"absolute": mp.Sinusoidal(model_dim), "Shaw": shaw, "Transformer-XL": xl, "T5": t5, "DeBERTa": deberta}
    return {name: mp.Scheme(part) for name, part in parts.items()}


__all__ = ["kept_terms"]
