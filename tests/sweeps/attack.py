"""Random calls against attention written out one pair of tokens at a time, in float64.

    python -m tests.sweeps.attack --calls 5000 --first 0 [--backends reference,chunked,…] [--one NUMBER]

A call draws a scheme, shapes, indices, positions, documents, a cache or none, a backend, modes of torch, gradients and
repetitions with other numbers. Prints every call that is wrong with its number, and what was refused most often.
"""

# pyright: basic

from __future__ import annotations

import argparse
import contextlib
import copy
import math
import random
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import milepost as mp
from milepost.memory import surroundings
from milepost.memory.table import MEMORY
from tests.cases import CASES
from tests.layers import D, H

WITHIN = 1e-9
MASKS = (
    None, mp.causal, mp.causal & mp.window(3), mp.causal & (mp.window(4) | mp.sinks(2)), mp.causal & mp.chunks(4),
    mp.window(3, ahead=2), ~mp.sinks(1) & mp.causal, mp.everything,
)  # fmt: skip
EXTRAS: tuple[Callable[[], object], ...] = (
    lambda: mp.LogN(5), lambda: mp.SoftCap(1.5), lambda: mp.SinkLogit(H), lambda: mp.SoftmaxOne(H),
    lambda: mp.Alibi(H), lambda: mp.T5Bias(H, buckets=8, reach=6), lambda: mp.Scale(0.7), lambda: mp.QkNorm(D),
    lambda: mp.Kerple(H), lambda: mp.LogN(4, clip=False, count="length"), lambda: mp.Llama4Scale(3, weight=0.5),
    lambda: mp.Rope(D, theta=50.0), lambda: mp.Fire(H, trained=6, width=5), lambda: mp.SplitAlibi(H),
)  # fmt: skip
BACKENDS = (None, None, "reference", "chunked", "sdpa", "diagonals", "flex")
Numbers = list[list[float]]


@dataclass
class Situation:
    """Everything a call is given, and what it means: index, position and document of every token, row by row."""

    scheme: mp.Scheme
    q: Tensor
    k: Tensor
    v: Tensor
    index: Numbers
    key_index: Numbers
    position: Any
    key_position: Any
    documents: Numbers
    key_documents: Numbers
    length: int | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])


# The oracle


def oracle(s: Situation) -> tuple[Tensor, Tensor]:
    """out [b h t dv] and lse [b h t], a query and a key at a time."""
    b, h, t = s.q.shape[:3]
    outs, sums = [], []
    for row in range(b):
        for i in range(t):
            one = _query(s, row, i)
            outs.append(one[0])
            sums.append(one[1])
    out = torch.stack(outs).view(b, t, h, -1).transpose(1, 2)
    return out, torch.stack(sums).view(b, t, h).transpose(1, 2)


def _query(s: Situation, row: int, i: int) -> tuple[Tensor, Tensor]:
    """out [h dv] and lse [h] of one query."""
    scheme, q = s.scheme, s.q[row : row + 1, :, i : i + 1]
    h, group = q.shape[1], q.shape[1] // s.k.shape[1]
    at, place, document = s.index[row][i], s.position[row][i], s.documents[row][i]
    own = [j for j in range(s.k.shape[2]) if s.key_documents[row][j] == document]
    # The order of keys matters to parts that read whole rows.
    own.sort(key=lambda j: s.key_index[row][j])
    length = s.length if s.length is not None else 1 + int(max((s.key_index[row][j] for j in own), default=-1))
    # What counts from the middle may count from anywhere: only distances matter to it.
    centred = any(getattr(part, "centred", False) for part in scheme.parts)
    middle = min((s.key_position[row][j] for j in own), default=0) if centred else 0
    long = torch.tensor([[length]])
    regimes = scheme.place()
    logits: list[Tensor] = []
    values: list[Tensor] = []
    region: list[int] = []
    tables = scheme.relate(60)
    for j in own:
        shared_k, shared_v = s.k[row : row + 1, :, j : j + 1], s.v[row : row + 1, :, j : j + 1]
        k = shared_k.repeat_interleave(group, 1)
        index_j, place_j = s.key_index[row][j], s.key_position[row][j]
        seen = torch.full((h,), document >= 0)
        p, r = _number(place), _number(place_j)
        ii, jj = _number(at).long(), _number(index_j).long()
        inside = [n for n, each in enumerate(regimes) if _is_true(each.holds(p, r, ii, jj))]
        assert len(inside) <= 1, "regimes overlap"
        for head in range(h):
            for part in scheme.answering("see"):
                found = part.see(torch.tensor(row), torch.tensor(head), ii, jj)  # pyright: ignore
                seen[head] &= bool(found)
        if not seen.any() or not inside:
            logits.append(torch.full((h,), -math.inf, dtype=torch.float64))
            values.append(torch.zeros(h, s.v.shape[3], dtype=torch.float64))
            region.append(-1)
            continue
        regime = regimes[inside[0]]
        a, c = (regime.query(ii), regime.key(jj)) if regime.by_index else (regime.query(p), regime.key(r))
        if middle:
            a, c = a - middle, c - middle
        turned_q = scheme.turn(q, a[None, None], "query", long)
        turned_k = scheme.turn(shared_k, c[None, None], "key", long).repeat_interleave(group, 1)
        score = (turned_q[0, :, 0] * turned_k[0, :, 0]).sum(-1)
        value = scheme.turn(shared_v, c[None, None], "value", long).repeat_interleave(group, 1)[0, :, 0]
        for relation in tables:
            far = a - c
            if relation.keys is not None:
                rows = relation.keys.rows[:, relation.keys.find(far)].to(q)
                shifted = q[0, :, 0] if relation.shift is None else q[0, :, 0] + relation.shift.to(q)
                score = score + (shifted * rows).sum(-1)
            if relation.queries is not None:
                score = score + (k[0, :, 0] * relation.queries.rows[:, relation.queries.find(far)].to(q)).sum(-1)
            if relation.values is not None:
                value = value + relation.values.rows[:, relation.values.find(far)].to(q)
        score = score * scheme.scale(q.shape[3])
        for part in scheme.answering("sharpen"):
            factor = part.sharpen(torch.tensor([[int(at)]]), long)  # pyright: ignore
            score = score * (factor.reshape(-1) if factor.dim() == 3 else factor.reshape(()))
        for part in scheme.answering("bend"):
            extra = {"length": long[0, 0]} if getattr(part, "by_length", False) else {}
            each = [
                part.bend(score[n], torch.tensor(row), torch.tensor(n), a, c, **extra)  # pyright: ignore
                for n in range(h)
            ]
            score = torch.stack([one.reshape(()) for one in each])
        logits.append(score.double().masked_fill(~seen, -math.inf))
        values.append(value)
        region.append(inside[0])
    if not own or all(n < 0 for n in region):
        rest = scheme.rest()
        empty = torch.full((h,), -math.inf, dtype=torch.float64) if rest is None else rest.double().expand(h)
        return torch.zeros(h, s.v.shape[3], dtype=torch.float64), empty
    scores = torch.stack(logits, -1)
    scores = _set_off(scores, regimes, region, at, long)
    if scheme.answering("bend_rows"):
        tokens = {
            "index": torch.tensor([[int(at)]]), "key_index": torch.tensor([[int(s.key_index[row][j]) for j in own]]),
            "position": _number(place)[None, None],
            "key_position": torch.stack([_number(s.key_position[row][j]) for j in own])[None],
        }  # fmt: skip
        keys, its = s.k[row : row + 1, :, own], s.v[row : row + 1, :, own]
        scores = scheme.bend_rows(scores[None, :, None], q, keys, its, None, **tokens)[0, :, 0]  # pyright: ignore
    rest = scheme.rest()
    every = scores if rest is None else torch.cat((scores, rest.to(scores)[:, None].expand(h, 1)), -1)
    alive = (every > -math.inf).any(-1)
    # A head that sees nothing gives zeros, and its gradient is none.
    total = torch.logsumexp(every.masked_fill(~alive[:, None], 0.0), -1)
    weights = torch.where(scores > -math.inf, scores - total[:, None], -math.inf).exp()
    total = total.masked_fill(~alive, -math.inf)
    return (weights[..., None] * torch.stack(values, 1)).sum(1), total


def _set_off(scores: Tensor, regimes: Any, region: list[int], at: float, long: Tensor) -> Tensor:
    """What Pivot and Dilute do to the scores of far keys."""
    contrasted = [n for n, each in enumerate(regimes) if each.contrast is not None]
    near = [n for n, each in enumerate(region) if 0 <= each < (contrasted[0] if contrasted else 0)]
    columns = list(scores.unbind(-1))
    mass = torch.logsumexp(scores[:, near], -1) if near else scores.new_full((len(scores),), -math.inf)
    # Where no near key is seen there is nothing to be set off against: the sum counts as 1.
    mass = torch.where(mass > -math.inf, mass, 0.0)
    for n, which in enumerate(region):
        if which < 0:
            continue
        regime, here = regimes[which], torch.tensor([[int(at)]])
        if regime.contrast is not None:
            off = regime.contrast(here, long).reshape(()) * (columns[n] - mass)
            columns[n] = torch.where(columns[n] > -math.inf, columns[n] + off, columns[n])
        if regime.shift is not None:
            columns[n] = columns[n] + regime.shift(here, long).reshape(())
    return torch.stack(columns, -1)


def _number(value: Any) -> Tensor:
    fraction = any(isinstance(each, float) for each in (value if isinstance(value, list) else [value]))
    return torch.tensor(value, dtype=torch.float64 if fraction else torch.int64)


def _is_true(found: Tensor | None) -> bool:
    return found is None or bool(found)


# Drawing a call


def scheme_of(draw: random.Random) -> tuple[str, mp.Scheme]:
    """A scheme of the cases, or a rotation, a placement, a mask and extras put together."""
    if draw.random() < 0.5:
        name = draw.choice(sorted(CASES))
        scheme = CASES[name]().attention
        parts = list(scheme.parts)
    else:
        name, parts = "", []
        if draw.random() < 0.7:
            parts.append(mp.Rope(D, theta=100.0, pairs=draw.choice(("halves", "neighbours"))))
            if draw.random() < 0.4:
                parts.append(draw.choice((
                    lambda: mp.Rerope(3), lambda: mp.LeakyRerope(3, 2.0), lambda: mp.SelfExtend(2, 4),
                    lambda: mp.Pivot(mp.Rerope(3), trained=4), lambda: mp.Dilute(mp.Rerope(3), trained=5),
                    lambda: mp.DualChunk(4, 1),
                    lambda: mp.Pivot(mp.KeepSinks(mp.Rerope(3), sinks=1), trained=4),
                ))())  # fmt: skip
                parts.append(mp.causal)
        mask = draw.choice(MASKS)
        if mask is not None:
            parts.append(mask)
    for _ in range(draw.choice((0, 0, 1, 1, 2))):
        parts.insert(draw.randrange(len(parts) + 1), draw.choice(EXTRAS)())
    scheme = mp.Scheme(*parts)
    for weight in scheme.parameters():
        weight.data = torch.randn(weight.shape, dtype=torch.float64).abs() * 0.5
    return name, scheme.double()


def situation(draw: random.Random, scheme: mp.Scheme) -> Situation:
    b, g, t = draw.choice((1, 2, 3)), draw.choice((1, 2, H)), draw.choice((1, 2, 5, 9))
    s = t if draw.random() < 0.5 else t + draw.choice((1, 3, 6))
    dv = draw.choice((D, D, 6))
    dv = 6 if any(each.values is not None for each in scheme.relate(5)) else dv
    q, k, v = (torch.randn(b, n, m, d, dtype=torch.float64) for n, m, d in ((H, t, D), (g, s, D), (g, s, dv)))
    options: dict[str, Any] = {}
    rows = lambda values: [list(values) for _ in range(b)]  # noqa: E731
    key_documents = rows([0] * s)
    documents = rows([0] * t)
    key_index: Any = rows(range(s))
    index: Any = rows(range(s - t, s))
    style = draw.choice(("plain", "plain", "documents", "padding", "right padding", "index", "both", "shift"))
    if style in ("documents", "both", "padding", "right padding"):
        if style in ("documents", "both"):
            key_documents = [sorted(draw.choice((0, 1, 2)) for _ in range(s)) for _ in range(b)]
            if draw.random() < 0.3:
                key_documents = [draw.sample(each, s) for each in key_documents]
        else:
            pads = [draw.randrange(s) for _ in range(b)]
            key_documents = [[-1] * n + [0] * (s - n) for n in pads]
            if style == "right padding":
                key_documents = [each[::-1] for each in key_documents]
        documents = [each[s - t :] for each in key_documents]
        options["key_documents"] = torch.tensor(key_documents)
        if t == s and draw.random() < 0.5:
            options["documents"] = options.pop("key_documents")
        key_index = [[row[:j].count(row[j]) for j in range(s)] for row in key_documents]
        index = [each[s - t :] for each in key_index]
    if style in ("index", "both"):
        span = list(range(2 * s))
        key_index = [draw.sample(span, s) for _ in range(b)]
        if draw.random() < 0.6:
            key_index = [sorted(each) for each in key_index]
        index = [each[s - t :] for each in key_index]
        options["key_index"] = torch.tensor(key_index)
        if draw.random() < 0.5:
            index = [draw.sample(span, t) for _ in range(b)]
            options["index"] = torch.tensor(index)
    elif style == "shift":
        first = draw.randrange(1, 9)
        key_index, index = rows(range(first, first + s)), rows(range(first + s - t, first + s))
        options["key_index"] = range(first, first + s)
    position, key_position = index, key_index
    if draw.random() < 0.35:
        axes = scheme.axes if draw.random() < 0.5 else None

        def drawn(n: int) -> Any:
            one = lambda: draw.randrange(20)  # noqa: E731
            if draw.random() < 0.25 and not scheme.answering("relate"):
                one = lambda: draw.random() * 12  # noqa: E731
            return [[[one() for _ in range(axes)] if axes else one() for _ in range(n)] for _ in range(b)]

        key_position = drawn(s)
        position = [each[s - t :] for each in key_position]
        options["key_position"] = _tokens(key_position)
        if "index" in options or draw.random() < 0.5:
            position = drawn(t)
            options["position"] = _tokens(position)
            if options["position"].dtype != options["key_position"].dtype:
                position = key_position = None
    if position is None:
        return situation(draw, scheme)
    length = None
    if draw.random() < 0.1:
        length = options["length"] = 2 * s + draw.randrange(5)
    return Situation(
        scheme, q, k, v, index, key_index, position, key_position, documents, key_documents, length, options
    )


def _tokens(values: Any) -> Tensor:
    whole = torch.tensor(values).dtype == torch.int64
    return torch.tensor(values, dtype=torch.int64 if whole else torch.float64)


def refresh(s: Situation, draw: random.Random) -> None:
    """Other numbers in tensors that look alike, in one of the ways in which weights change."""
    s.q, s.k, s.v = (torch.randn_like(each) for each in (s.q, s.k, s.v))
    how = draw.choice(("data", "copy", "load", "assign", "step", "replace", "none"))
    fresh = {name: torch.randn_like(each).abs() * 0.5 for name, each in s.scheme.state_dict().items()}
    for name, weight in s.scheme.named_parameters():
        if how == "data":
            weight.data = fresh[name]
        elif how == "copy":
            weight.data.copy_(fresh[name])
        elif how == "step":
            weight.grad = weight.detach() - fresh[name]
    if how in ("load", "assign"):
        s.scheme.load_state_dict(fresh, assign=how == "assign")
        s.scheme.requires_grad_()
    elif how == "step" and any(True for _ in s.scheme.parameters()):
        torch.optim.SGD(s.scheme.parameters(), lr=1.0).step()
        s.scheme.zero_grad()
    elif how == "replace":
        s.scheme = copy.deepcopy(s.scheme)


@contextlib.contextmanager
def mode(draw: random.Random) -> Generator[str]:
    """A mode of torch that changes no answer in float64."""
    name = draw.choice(("none",) * 6 + ("no_grad", "inference", "autocast", "default dtype", "deterministic", "device"))
    with contextlib.ExitStack() as stack:
        if name == "no_grad":
            stack.enter_context(torch.no_grad())
        elif name == "inference":
            stack.enter_context(torch.inference_mode())
        elif name == "autocast":
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        elif name == "device":
            stack.enter_context(torch.device("cpu"))
        elif name == "default dtype":
            before = torch.get_default_dtype()
            torch.set_default_dtype(torch.float64)
            stack.callback(torch.set_default_dtype, before)
        elif name == "deterministic":
            torch.use_deterministic_algorithms(True)
            stack.callback(torch.use_deterministic_algorithms, False)
        yield name


class Tally:
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.wrong: list[str] = []


def compare(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape:
        return math.inf
    ours, theirs = ours.detach().double(), theirs.detach().double()
    same = (ours == theirs) | ((ours - theirs).abs() <= WITHIN * (1 + theirs.abs()))
    return 0.0 if bool(same.all()) else float((ours - theirs).abs().nan_to_num(math.inf).max())


REFUSALS = (mp.CannotRun, ValueError, TypeError, NotImplementedError)


def run(number: int, tally: Tally, backends: tuple[str | None, ...]) -> None:
    draw = random.Random(number)
    torch.manual_seed(number)
    try:
        name, scheme = scheme_of(draw)
    except (ValueError, TypeError) as error:
        tally.refused[f"scheme: {str(error)[:90]}"] += 1
        return
    s = situation(draw, scheme)
    backend, kind = draw.choice(backends), draw.choice(("call", "call", "call", "grad", "grad", "merge", "cache"))
    surroundings.PLAYS_ON = ("cpu",) if draw.random() < 0.5 else ("cuda",)
    if draw.random() < 0.05:
        MEMORY.forget()
    times = draw.choice((1, 1, 2, 5))
    for time in range(times):
        if time:
            refresh(s, draw)
        what = f"{number}.{time} {kind} {backend} {name} {s.scheme!r} {s.options} t {s.q.shape[2]} s {s.k.shape[2]}"
        try:
            with mode(draw) as around:
                found, wanted = ATTACKS[kind](s, draw, backend, around)
        except REFUSALS as error:
            tally.refused[re.sub(r"\\(.*?\\)|\\d+", "", f"{type(error).__name__}: {error}")[:110]] += 1
            return
        except Exception:
            tally.wrong.append(f"{what}\n{traceback.format_exc(limit=-3)}")
            return
        tally.calls[f"{kind} {backend}"] += 1
        apart = [compare(*each) for each in zip(found, wanted, strict=True)]
        if any(apart):
            tally.wrong.append(f"{what} [{around}] apart {apart}")
            return


Pair = tuple[list[Tensor], list[Tensor]]


def call(s: Situation, draw: random.Random, backend: str | None, around: str) -> Pair:
    if draw.random() < 0.4 and not s.scheme.needs_whole_rows:
        ours = mp.attend(s.q, s.k, s.v, s.scheme, backend=backend, return_lse=True, **s.options)
        return [*ours], [*oracle(s)]
    return [mp.attend(s.q, s.k, s.v, s.scheme, backend=backend, **s.options)], [oracle(s)[0]]


def grad(s: Situation, draw: random.Random, backend: str | None, around: str) -> Pair:
    if around in ("no_grad", "inference"):
        return call(s, draw, backend, around)
    leaves = [each.detach().requires_grad_() for each in (s.q, s.k, s.v)]
    s.q, s.k, s.v = leaves
    wanted = [*leaves, *s.scheme.parameters()]
    ours = mp.attend(*leaves, s.scheme, backend=backend, **s.options)  # pyright: ignore
    theirs, _ = oracle(s)
    weight = torch.randn_like(ours)
    if draw.random() < 0.3:
        weight = torch.ones(()).double().expand_as(ours)
    found: list[list[Tensor]] = []
    for out in (ours, theirs):
        # Nothing leads back where every key is hidden.
        loss = (out * weight).sum() + sum(0.0 * each.sum() for each in wanted)
        grads = torch.autograd.grad(loss, wanted)  # pyright: ignore
        found.append([*grads])
    s.q, s.k, s.v = (each.detach() for each in leaves)
    return [ours, *found[0]], [theirs, *found[1]]


def merge(s: Situation, draw: random.Random, backend: str | None, around: str) -> Pair:
    """Keys in two parts, of which the indices, positions and documents are given."""
    keys = [*range(s.k.shape[2])]
    draw.shuffle(keys)
    cut = draw.randrange(len(keys) + 1)
    parts: list[Tensor] = []
    lengths = [1 + max(each) for each in s.key_index]
    if s.scheme.by_length and s.length is None and {"documents", "key_documents"} & s.options.keys():
        raise ValueError("attack: one length for several documents")
    if any(getattr(part, "centred", False) for part in s.scheme.parts):
        raise ValueError("attack: centred parts are not merged")
    for own in (keys[:cut], keys[cut:]):
        pick = torch.tensor(own, dtype=torch.long)
        of = lambda values: _tokens(values)[:, pick]  # noqa: E731, B023
        options = {
            "index": torch.tensor(s.index), "key_index": of(s.key_index),
            "documents": torch.tensor(s.documents), "key_documents": of(s.key_documents),
            "position": _tokens(s.position), "key_position": of(s.key_position),
            "length": torch.tensor(lengths) if s.length is None else s.length,
        }  # fmt: skip
        parts += mp.attend(s.q, s.k[:, :, pick], s.v[:, :, pick], s.scheme, backend=backend, return_lse=True, **options)  # pyright: ignore
    return [*mp.merge(*parts, rest=s.scheme.rest())], [*oracle(s)]


def cache(s: Situation, draw: random.Random, backend: str | None, around: str) -> Pair:
    """Keys appended in pieces, then selected, copied and trimmed."""
    kept = mp.Cache(s.scheme) if draw.random() < 0.6 else mp.Cache()
    total, done = s.k.shape[2], 0
    where, at = s.options.get("key_index"), s.options.get("key_position")
    if "documents" in s.options or "key_documents" in s.options:
        raise ValueError("attack: no documents in caches")
    with torch.no_grad():
        while done < total:
            n = draw.randrange(1, total - done + 1)
            piece = slice(done, done + n)
            own: dict[str, Any] = {}
            if where is not None:
                own["index"] = where[piece] if isinstance(where, range) else where[:, piece]
            if at is not None:
                own["position"] = at[:, piece]
            kept.append(s.k[:, :, piece], s.v[:, :, piece], **own)
            done += n
            if draw.random() < 0.2:
                kept = draw.choice((copy.deepcopy, copy.copy))(kept)
    rows = torch.tensor([draw.randrange(len(s.q)) for _ in range(len(s.q))])
    options = {name: each for name, each in s.options.items() if name in ("index", "position", "length")}
    if at is not None:
        options["position"] = _tokens(s.position)
    out, _ = oracle(s)
    if draw.random() < 0.4:
        kept.reorder(rows)
        s = Situation(s.scheme, s.q[rows], s.k, s.v, *[None] * 6)  # pyright: ignore
        out = out[rows]
        options = _rows_of(options, rows)
    keys, values = kept.keys, kept.values
    change = draw.choice(("none", "rows", "chunk", "clone", "cat", "expand"))
    if change == "rows":
        pick = torch.randperm(len(s.q))
        keys, values, out = keys[pick], values[pick], out[pick]
        s = Situation(s.scheme, s.q[pick], s.k, s.v, *[None] * 6)  # pyright: ignore
        options = _rows_of(options, pick)
    elif change == "chunk":
        keys = torch.cat(keys.chunk(2, 2), 2)
    elif change == "clone":
        keys = keys.clone()
    elif change == "cat":
        keys = torch.cat([keys[:, :, :1], keys[:, :, 1:]], 2)
    elif change == "expand":
        keys = keys.expand(*keys.shape)
    return [mp.attend(s.q, keys, values, s.scheme, backend=backend, **options)], [out]


def _rows_of(options: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    return {name: each[rows] if isinstance(each, Tensor) else each for name, each in options.items()}


ATTACKS: dict[str, Callable[..., Pair]] = {"call": call, "grad": grad, "merge": merge, "cache": cache}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--one", type=int)
    parser.add_argument("--backends", default="")
    asked = parser.parse_args()
    backends = tuple(asked.backends.split(",")) if asked.backends else BACKENDS
    tally = Tally()
    first, last = (asked.one, asked.one + 1) if asked.one is not None else (asked.first, asked.first + 10**9)
    for number in range(first, last):
        run(number, tally, backends)
        if sum(tally.calls.values()) >= asked.calls:
            break
    for name, count in tally.refused.most_common(20):
        print(f"{count:6} refused: {name}")
    for name, count in sorted(tally.calls.items()):
        print(f"{count:6} {name}")
    for each in tally.wrong:
        print("WRONG", each)
    print(f"{sum(tally.calls.values())} calls, {len(tally.wrong)} wrong")
    sys.exit(bool(tally.wrong))


if __name__ == "__main__":
    main()
