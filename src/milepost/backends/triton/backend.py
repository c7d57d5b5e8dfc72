"""Our own kernels, for schemes whose facets say what happens to a score: slopes, tables by distance, a soft cap,
vectors by distance that meet queries and keys, and numbers by a count of open gates.

What needs triton is imported where it is used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from milepost.backends.estimate import seconds, seen_pairs
from milepost.backends.has_triton import no_triton
from milepost.backends.rotary.by_table import (
    Waves,
    angles,
    near_and_far_waves,
    rotated,
    steps_angles,
    waves_by_regime,
)
from milepost.backends.sinks import is_split, sinks_of, whole
from milepost.backends.triton.attention.biases import biases, by_place, unknown, unread
from milepost.backends.triton.cope.facet import counted, uncounted
from milepost.backends.triton.packed.regimes import (
    as_tokens,
    is_empty,
    limits_of,
    measured,
    stretch_of_keys,
    unmeasured,
    within_sinks,
)
from milepost.backends.triton.relative.relations import Lookup, distances, lookup, products, size, unrelated
from milepost.backends.views import MOST_PROGRAMS, beyond_grid, refusal, seen_regimes, turned, values
from milepost.call.call import Call
from milepost.call.documents import COUNTING
from milepost.call.merge import merge
from milepost.call.tokens import FEW
from milepost.memory.fixed import is_fixed
from milepost.memory.internals import transformed
from milepost.memory.surroundings import has_numbers
from milepost.memory.table import kept
from milepost.seams.arguments import spell
from milepost.seams.band import Band
from milepost.seams.verbs import Regime

PLAYED = True
CANNOT: dict[str, str] = {
    "adds_values": "adds to the values, which these kernels do not do yet",
    "bends_unread": "modifies scores in a way that these kernels do not do yet",
}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST = 256
LARGE = 1 << 30
"""Bytes of products with vectors by distance from which on heads take turns: fewer are quicker all at once."""
HELD = 1 << 27
"""Bytes of queries up to which both of their turns are held at once, near and far, though no gradient wants them."""
PLAIN = Band(math.inf, 0, 0, None)
"""What a causal scheme sees."""
Step = Callable[[Tensor, Tensor, Tensor, int], "tuple[Tensor, Tensor | None] | None"]


def refuses(call: Call) -> str | None:
    """Return why the kernels cannot run this: first what lasts, then what another call or machine could change."""
    reason = refusal(call, CANNOT) or unread(call)
    if reason is not None:
        return reason
    sharpness = call.sharpness()
    if sharpness is not None and sharpness.shape[1] > 1:
        names = " and ".join(map(spell, call.scheme.answering("sharpen")))
        return f"{names} sharpens each head by a factor of its own, which these kernels do not do yet"
    if transformed():
        return "torch.func and forward-mode gradients do not see through the kernels"
    if call.dropout:
        return "dropout is not in the kernels"
    if call.q.dtype not in DTYPES:
        return f"the kernels take bfloat16, float16 and float32, not {call.q.dtype}"
    if call.q.device.type == "cpu" and call.q.dtype == torch.bfloat16:
        return "Triton's interpreter does not know bfloat16; float32 and float16 work"
    if max(call.q.shape[-1], call.v.shape[-1]) > WIDEST:
        return f"heads of {max(call.q.shape[-1], call.v.shape[-1])} channels are wider than {WIDEST}"
    band = call.scheme.band()
    if band is None or band.chunk is not None or band.behind == -math.inf:
        return "the kernels go over windows, with sinks or without, and this scheme shows other keys"
    reason = unrelated(call, _few(call), WIDEST) if call.scheme.answering("relate") else None
    reason = reason or beyond_grid(call) or unknown(call) or _regimes_unread(call, band) or uncounted(call, band)
    return reason or _no_device(call.q.device)


def cost(call: Call) -> float:
    """Return plain attention, and a little more."""
    if call.q.device.type != "cuda":
        # Triton's interpreter, which is there to be checked against.
        return math.inf
    if call.queries.count == 1 and not call.needs_grad and call.q.itemsize == 2:
        # Keys are read as fast as anybody reads them, and a query is turned on the way, which spares a launch.
        return seconds(call, seen_pairs(call), launches=10)
    each = 1.15 if call.scheme.answering("bend") else 1.1
    related = bool(call.scheme.answering("relate"))
    # Products with tables cost about as much again where most keys are near, and little where they are far.
    each += 0.2 if related else 0
    # Counts of gates are found key by key, near the query.
    each *= 4 if call.scheme.answering("bend_rows") else 1
    # Of several documents about half of all pairs are never looked at, or more.
    pairs = seen_pairs(call) / (1 if call.documents is None else 2)
    return seconds(call, pairs, each * (2.5 if call.q.dtype == torch.float32 else 1), launches=14 if related else 12)


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """Turn, and let the kernels do the rest."""
    out, lse = _by_regimes(call) if call.scheme.answering("place") else _at_once(call)
    rest = call.scheme.rest()
    if rest is not None:
        rest = rest.to(lse)[:, None]
        out, lse = out * torch.sigmoid(lse - rest)[..., None].to(out.dtype), torch.logaddexp(lse, rest)
    return out, lse if call.return_lse else None


def _at_once(call: Call) -> tuple[Tensor, Tensor]:
    """Return one softmax over all keys that are seen."""
    band = call.scheme.band()
    assert band is not None
    v = values(call, call.v.dtype)
    if call.scheme.answering("bend_rows"):
        return counted(call, *turned(call, call.q.dtype), v, _tokens(call))
    # Sinks are the first keys of the text, and these keys may begin later.
    skipped = call.keys.first if by_place(call) and call.keys.first is not None else 0
    near = limits_of(band.behind, band.ahead) | {"sinks": max(0, band.sinks - skipped)}
    how: dict[str, Any] = near | biases(call) | {"sharpen": _sharpness(call)}
    few = _turned_as_read(call)
    if few is not None:
        q, k, waves = few
        return _launch(call, q, k, v, how | waves)
    q, k = turned(call, call.q.dtype)
    if call.scheme.answering("relate"):
        return _related(call, q, k, v, how)
    return _near_field(call, q, k, v, how) or _launch(call, q, k, v, how)


def _related(call: Call, q: Tensor, k: Tensor, v: Tensor, how: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """With vectors by distance: all heads at once, or, where their products would be large, some after others."""
    found = lookup(call)
    groups = _head_groups(call, found, how)
    if len(groups) == 1:
        return _with_products(call, found, how, q, k, v, call.q, call.k)
    from milepost.backends.triton.relative.recomputation import remade

    outs: list[Tensor] = []
    lses: list[Tensor] = []
    for heads, key_heads in groups:
        some = found.of(heads)

        def run(*given: Tensor, some: Lookup = some) -> tuple[Tensor, Tensor]:
            own_q, own_k, own_v, queries, keys, *vectors = given
            # A view of the same keys is the same keys.
            keys = own_k if k is call.k else keys
            return _with_products(call, some.with_tensors(vectors), how, own_q, own_k, own_v, queries, keys)

        given = (q[:, heads], k[:, key_heads], v[:, key_heads], call.q[:, heads], call.k[:, key_heads], *some.tensors)
        out, lse = remade(run, *given) if call.needs_grad else run(*given)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, 1), torch.cat(lses, 1)


def _with_products(
    call: Call, found: Lookup, how: dict[str, Any], q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the heads of q, and of k and v; queries, keys: the same, not turned."""
    made = products(call, found, (q, k), (queries, keys), _wants_lse(call))
    how = how | made.facets
    out, lse = _near_field(call, made.q, made.k, v, how) or _launch(call, made.q, made.k, v, how)
    if made.common is not None:
        factor = call.scheme.scale(queries.shape[-1])
        lse = lse + made.common * (factor if how["sharpen"] is None else factor * how["sharpen"][:, None])
    return out, lse


def _head_groups(call: Call, found: Lookup, how: dict[str, Any]) -> list[tuple[slice, slice]]:
    """Query heads and their key heads that are done together: all, or as many as have products of a fitting size."""
    h, g = call.q.shape[1], call.k.shape[1]
    bytes_of_all = size(call, found) if found.even else 0
    if bytes_of_all <= LARGE or "slopes" in how:
        return [(slice(None), slice(None))]
    each = max(1, LARGE // 4 * g // bytes_of_all)
    return [
        (slice(start * (h // g), (start + each) * (h // g)), slice(start, start + each)) for start in range(0, g, each)
    ]


def _wants_lse(call: Call) -> bool:
    """True if the log-sum-exp is read, and not only what the softmax made with it."""
    return call.return_lse or bool(call.scheme.answering("rest"))


def _turned_as_read(call: Call, number: int = 0) -> tuple[Tensor, Tensor, dict[str, Any]] | None:
    """Return raw queries and keys, and what turns them in a regime as they are read: for few queries."""
    waves = angles(call, number) if _few(call) and call.scheme.answering("turn") else None
    if waves is None:
        return None
    (cos, sin), keys, neighbours = waves
    how: dict[str, Any] = {"query_cos": cos, "query_sin": sin, "neighbours": neighbours}
    return call.q, call.k, how if keys is None else how | {"key_cos": keys[0], "key_sin": keys[1]}


def _by_regimes(call: Call) -> tuple[Tensor, Tensor]:
    """Attend near and far keys: in two fields or in rectangles where the layout is known, or merged.

    Far scores that are turned about the near keys, score + c · (score − near), are scores sharpened by 1 + c and
    shifted by one number a row, which moves the row's log-sum-exp and nothing else.
    """
    band, v = call.scheme.band(), values(call, call.v.dtype)
    assert band is not None
    few = _few(call)
    joined = _few_in_two_fields(call, band, v) if few else _two_fields(call, band, v) or _in_rectangles(call, band, v)
    if joined is not None:
        return joined
    found: list[Tensor] = []
    strengths: list[Tensor | None] = []
    # Where no query sees a key, one of them says so.
    regimes = seen_regimes(call)
    regimes = [each for each in regimes if not is_empty(call, each[1])] or regimes[:1]
    stretches = [stretch_of_keys(call, regime, band) for _, regime in regimes]
    cuts = sorted({end for some in stretches if some is not None for end in (some.start, some.stop)})
    values_of = _cut(v, cuts)
    # Regimes that differ in their bounds alone read the same queries and keys.
    read: dict[tuple[Any, Any], tuple[Tensor, Callable[[slice | None], Tensor], dict[str, Any]]] = {}
    for (number, regime), some in zip(regimes, stretches, strict=True):
        least, most = regime.distances()
        sharpness, strength = _sharpness(call), None
        if regime.contrast is not None and number > 0:
            strength = _regime_values(call, number, "contrast")
            if len(found) > 2 and not call.needs_grad and strengths[-1] is None:
                # The answers of several near regimes need not all be held meanwhile.
                found, strengths = [*_joined(found, strengths)], [None]
            sharpness = (1 + strength if sharpness is None else sharpness * (1 + strength)).contiguous()
        how = limits_of(min(band.behind, most + 1), min(band.ahead, -least)) | biases(call) | {"sharpen": sharpness}
        # A graph that is traced finds by itself what is the same, and may not take functions for keys (torch 2.11).
        stands = (number, 0) if torch.compiler.is_compiling() else (regime.query, regime.key)
        if stands not in read:
            q, k, waves = _turned_as_read(call, number) or (*turned(call, call.q.dtype, number), {})
            read[stands] = q, _cut(k, cuts), waves
        q, keys_of, waves = read[stands]
        if some is None or call.layout is None:
            how |= as_tokens(call, regime, band) if measured(regime) else {}
        else:
            waves = waves | {name: waves[name][:, some] for name in ("key_cos", "key_sin") if name in waves}
            how["offset"] = call.layout.offset - some.start
        out, lse = _launch(call, q, keys_of(some), values_of(some), how | waves)
        if regime.shift is not None:
            # To a row's far keys together it is their log-sum-exp that moves.
            lse = lse + _regime_values(call, number, "shift")[:, None]
        found += [out, lse]
        strengths.append(strength)
    return _joined(found, strengths)


def _cut(x: Tensor, ends: list[int]) -> Callable[[slice | None], Tensor]:
    """Return what finds a stretch of tokens of x, [b g s d], or all of them: one cut, and one sum of its gradients."""
    if not ends:
        return lambda some: x
    ends = sorted({0, *ends, x.shape[2]})
    pieces: list[Tensor] = [*x.split([end - start for start, end in pairwise(ends)], 2)]
    numbers = {spans: n for n, spans in enumerate(pairwise(ends))}

    def piece(some: slice | None) -> Tensor:
        if some is None:
            return x
        number = numbers.get((some.start, some.stop))
        return x[:, :, some] if number is None else pieces[number]

    return piece


def _joined(found: list[Tensor], strengths: list[Tensor | None]) -> tuple[Tensor, Tensor]:
    """Return what several sets of keys answer, as one: by a kernel where no graph is traced.

    strengths: of each set, how far its scores are set off against the log-sum-exp of those before the first that is.
    """
    first = next((n for n, each in enumerate(strengths) if each is not None), 0)
    # Where no key is near, there is nothing to be set off against.
    last = strengths[-1] if first else None
    if len(found) == 2:
        return found[0], found[1]
    (out, *others), (lse, *more) = found[::2], found[1::2]
    alike = all(each.stride() == out.stride() for each in others) and all(
        each.stride() == lse.stride() for each in more
    )
    if alike and has_numbers() and (not first or (first == len(more) and last is not None and not last.requires_grad)):
        from milepost.backends.triton.joining.merged import merged

        return merged(*found, strength=last)
    if first:
        found = [*merge(*found[: 2 * first]), *found[2 * first :]]
        level = found[1].nan_to_num(nan=torch.nan, posinf=torch.inf, neginf=0.0)
        for n, strength in enumerate(strengths[first:], 1):
            if strength is not None:
                found[2 * n + 1] = found[2 * n + 1] - strength[:, None] * level
    return merge(*found)


def _near_field(call: Call, q: Tensor, k: Tensor, v: Tensor, how: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Attend far keys apart, where they share one bias, which changes the row's log-sum-exp alone, or have no vectors.

    None where there is no end to what is near, or where two fields cost more than they spare.
    """
    table, by_row, by_key = (how.get(name) for name in ("table", "by_row", "by_key"))
    plain = how["ahead"] == 0 and how["behind"] is None and how["sharpen"] is None and how.get("first") == 0
    reach = distances(by_row, by_key) if table is None else table.shape[1] - 1
    bent = any(name in how for name in ("slopes", "cap", "numbers"))
    if reach < 1 or not plain or bent or call.layout is None or not has_numbers():
        return None
    from milepost.backends.triton.near_far.fields import Fields, fields, worth_it

    apart = Fields(reach, call.scheme.scale(call.q.shape[-1]), offset=call.layout.offset)
    # A number for all far keys costs our own kernel nothing; torch's is quicker than ours in wide heads alone.
    if not worth_it(q, k, v, apart) or (table is not None and max(q.shape[3], v.shape[3]) <= 64):
        return None
    if table is None:
        return fields(q, k, v, apart, by_row=by_row, by_key=by_key)
    far = table[:, -1:]
    out, lse = fields(q, k, v, apart, table=(table[:, :-1] - far).contiguous())
    return out, lse + far if _wants_lse(call) else lse


def _two_fields(call: Call, band: Band, v: Tensor) -> tuple[Tensor, Tensor] | None:
    """Attend near and far keys in one or two passes; None where tokens have to be read, or scores are bent."""
    regimes, layout = seen_regimes(call), call.layout
    if layout is None or not _are_two_fields(call, band):
        return None
    (near, _), (far, second) = regimes
    least = second.distances()[0]
    from milepost.backends.triton.near_far.both_turns import turned_fields
    from milepost.backends.triton.near_far.fields import Fields, fields, fields_in_turn, in_one_pass

    dtype, contrasted, strength = call.q.dtype, second.contrast is not None, None
    place = call.scheme.answering("place")[0]
    if not is_fixed(place):
        return None
    if contrasted:
        strength = _regime_values(call, far, "contrast")
    limits = {name: value for name, value in limits_of(band.behind, band.ahead).items() if value is not None}
    gain = None if second.shift is None else _regime_values(call, far, "shift")
    scale = call.scheme.scale(call.q.shape[-1])
    how = Fields(int(least), scale, offset=layout.offset, strength=strength, gain=gain, **limits)

    # Both turns are made from one reading where one kernel wants both, or where it matters little that both are held.
    at_once = call.needs_grad or in_one_pass(call.q, v) or call.q.nbytes <= HELD
    ways = near_and_far_waves(call, near, far, contrasted) if at_once else None
    if ways is not None:
        return turned_fields(call.q, call.k, v, how, *ways)

    def ours() -> tuple[Tensor, Tensor] | None:
        return rotated(call, dtype, near)

    def others() -> tuple[Tensor, Tensor] | None:
        return rotated(call, dtype, far, contrasted)

    if not call.needs_grad:
        return fields_in_turn(ours, others, v, how)
    beside = ours()
    apart = None if beside is None else others()
    return None if beside is None or apart is None else fields(*beside, v, how, *apart)


def _in_rectangles(call: Call, band: Band, v: Tensor) -> tuple[Tensor, Tensor] | None:
    """Regimes that cut the text into rectangles; None where they do not, or tokens have to be looked at."""
    regimes, layout, place = seen_regimes(call), call.layout, call.scheme.answering("place")[0]
    if layout is None or not call.at_index or band != PLAIN or not has_numbers() or not is_fixed(place):
        return None
    if not call.q.numel() or not call.k.numel() or call.given_length is not None:
        return None
    if any(map(call.scheme.answering, ("bend", "bend_rows", "relate", "sharpen"))):
        return None
    if any(regime.contrast is not None or regime.shift is not None for _, regime in regimes):
        return None
    from milepost.backends.triton.dual_chunk.cuts import cut
    from milepost.backends.triton.dual_chunk.rectangles import Rectangles, rectangles

    (b, h, t, d), s = call.q.shape, call.keys.count
    numbers = tuple([number for number, _ in regimes])
    found = cut(place, numbers, layout.first, t, layout.key_first, s, b * h, b == 1)
    ways = None if found is None else waves_by_regime(call, sorted({each.turn for each in found}))
    if found is None or ways is None:
        return None
    return rectangles(call.q, call.k, v, Rectangles(found, *ways, call.scheme.scale(d)))


def _are_two_fields(call: Call, band: Band, sinks: bool = False) -> bool:
    """True if near keys end where far ones begin, at a distance, and scores are not changed otherwise.

    sinks: as they may be but for the first of the far ones.
    """
    regimes = seen_regimes(call)
    if sinks and len(regimes) == 3 and is_split(regimes[1][1], regimes[2][1]) and band == PLAIN:
        regimes = [regimes[0], (regimes[2][0], whole(regimes[2][1]))]
    if call.layout is None or len(regimes) != 2 or band.ahead == math.inf or not has_numbers():
        return False
    if not call.q.numel() or not call.k.numel():
        return False
    if call.scheme.answering("bend") or call.scheme.answering("sharpen") or call.given_length is not None:
        return False
    (_, first), (_, second) = regimes
    ends = (second.distances()[0] - 1, math.inf)
    plain = first.contrast is None and first.shift is None and not measured(second)
    return (first.distances()[1], second.distances()[1]) == ends and plain


def _few_in_two_fields(call: Call, band: Band, v: Tensor) -> tuple[Tensor, Tensor] | None:
    """Few queries over near and far keys, turned as they are read and joined at once."""
    step, layout = _steps_in_two_fields(call, band, wants_lse=True), call.layout
    return None if step is None or layout is None else step(call.q, call.k, v, layout.key_first)  # pyright: ignore


def _steps_in_two_fields(call: Call, band: Band, wants_lse: bool) -> Step | None:
    """Return what does the same for every step like this one."""
    place = call.scheme.answering("place")[0]
    last = call.layout is not None and call.layout.offset == call.keys.count - call.queries.count
    if not last or not _are_two_fields(call, band, sinks=True) or not is_fixed(place):
        return None
    (near, _), *spared, (far, second) = seen_regimes(call)
    least, contrasted, shifted = int(second.distances()[0]), second.contrast is not None, second.shift is not None
    beside, apart = steps_angles(call, near), steps_angles(call, far, contrasted)
    # Sinks are far keys whose scores are left alone.
    alone = steps_angles(call, far) if spared else None
    if beside is None or apart is None or (spared and alone is None):
        return None
    sinks = sinks_of(second) if spared else 0
    from milepost.backends.triton.attention.flash import UNLIMITED
    from milepost.backends.triton.decoding.decode import Field, Made, Turns, decode_fields, repeating

    behind = UNLIMITED if band.behind == math.inf else int(band.behind)
    limits = (min(behind, least), int(band.ahead)), (behind, min(int(band.ahead), -least))
    neighbours, t = call.scheme.answering("turn")[0].pairs == "neighbours", call.queries.count  # pyright: ignore
    scale = call.scheme.scale(call.q.shape[-1])

    def turns(queries: Waves, keys: Waves | None) -> Turns:
        cos, sin = keys or (None, None)
        return Turns(queries[0], queries[1], cos, sin, neighbours)

    def step(q: Tensor, k: Tensor, v: Tensor, first: int) -> Made | None:
        s = k.shape[2]
        offset = s - t
        close, distant = beside(first + offset, first, s), apart(first + offset, first, s)
        if close is None or distant is None:
            return None
        here = max(0, sinks - first)
        unchanged = None if alone is None or not here else alone(first + offset, first, s)
        if here and unchanged is None:
            return None
        where = first + offset, t, first + s, q.device
        strength = _counted_up(place, far, "contrast", *where) if contrasted else None
        gain = _counted_up(place, far, "shift", *where) if shifted else None
        fields = Field(turns(*close), *limits[0]), Field(turns(*distant), *limits[1])
        return decode_fields(
            q, k, v, *fields, scale=scale, offset=offset, strength=strength, gain=gain, sinks=here,
            spared=None if unchanged is None else turns(*unchanged), return_lse=wants_lse,
        )  # fmt: skip

    return repeating(step, wants_lse)


def stepper(call: Call) -> Step | None:
    """Return what runs steps like this one, with any number of keys; None where each has to be looked at."""
    band, scheme = call.scheme.band(), call.scheme
    changed = any(map(scheme.answering, ("relate", "sharpen", "bend_rows", "rest")))
    if band is None or changed or not all(map(is_fixed, scheme.parts)) or not _few(call) or not has_numbers():
        return None
    if call.layout is None or values(call, call.v.dtype) is not call.v:
        return None
    if scheme.answering("place"):
        return _steps_in_two_fields(call, band, call.return_lse)
    bent = biases(call)
    by_length = any(getattr(part, "by_length", False) for part in scheme.answering("bend"))
    turn = steps_angles(call, 0) if scheme.answering("turn") else _unturned
    if turn is None or band.sinks or by_length or not bent.keys() <= {"slopes", "slopes_ahead"}:
        return None
    from milepost.backends.triton.attention.flash import UNLIMITED
    from milepost.backends.triton.decoding.decode import Made, Turns, decode_bare, repeating

    behind, ahead = (UNLIMITED if each == math.inf else int(each) for each in (band.behind, band.ahead))
    scale, t, wants_lse = scheme.scale(call.q.shape[-1]), call.queries.count, call.return_lse
    neighbours = any(part.pairs == "neighbours" for part in scheme.answering("turn"))  # pyright: ignore

    def step(q: Tensor, k: Tensor, v: Tensor, first: int) -> Made | None:
        s = k.shape[2]
        waves = turn(first + s - t, first, 0 if call.keys_turned else s)
        if waves is None:
            return None
        return decode_bare(
            q, k, v, scale=scale, offset=s - t, behind=behind, ahead=ahead, return_lse=wants_lse,
            turns=Turns(*(waves[0] or (None, None)), *(waves[1] or (None, None)), neighbours), **bent,
        )  # fmt: skip

    return repeating(step, wants_lse)


def _unturned(first: int, key_first: int, keys: int) -> tuple[None, None]:
    """Return the waves of a scheme that turns nothing."""
    return None, None


@kept(32)
def _counted_up(
    place: Any, number: int, what: Literal["contrast", "shift"], first: int, count: int, length: int,
    device: torch.device,
) -> Tensor:  # fmt: skip
    """Return what a regime says of each query, [1 t] in float32, where tokens count up by one from `first`."""
    index = torch.arange(first, first + count, device=device)[None]
    found = getattr(place.place()[number], what)(index, torch.full((1, 1), length, device=device))
    # One number for all queries, where it goes by the length alone; the kernels read one for each.
    return found.float().expand(1, count).contiguous()


def _regime_values(call: Call, number: int, what: Literal["contrast", "shift"]) -> Tensor:
    """Return the same of any call, [b|1 t]: kept where the layout says where tokens stand."""
    layout, place = call.layout, call.scheme.answering("place")[0]
    if layout is not None and is_fixed(place) and call.given_length is None and has_numbers():
        length = layout.key_first + call.keys.count
        return _counted_up(place, number, what, layout.first, call.queries.count, length, call.q.device)
    return _of_rows(call, getattr(call.scheme.place()[number], what)(call.index, call.length), 0.0)


def _launch(call: Call, q: Tensor, k: Tensor, v: Tensor, how: dict[str, Any]) -> tuple[Tensor, Tensor]:
    from milepost.backends.triton.attention.flash import flash
    from milepost.backends.triton.decoding.decode import decode

    scale = call.scheme.scale(call.q.shape[-1])
    # A regime may have tokens of its own.
    how = how if "index" in how or "offset" in how else _tokens(call) | how
    if _few(call):
        return decode(q, k, v, scale=scale, **how)
    return flash(q, k, v, scale=scale, **how, checked=True)


def _tokens(call: Call) -> dict[str, Any]:
    """Return which text each token belongs to, and where it comes in it."""
    found: dict[str, Any] = {}
    if call.queries.first is not None and call.keys.first is not None:
        found["offset"] = call.queries.first - call.keys.first
    elif not _by_order(call):
        found |= {"index": _whole(call.index), "key_index": _whole(call.key_index)}
    if call.documents is not None and call.key_documents is not None:
        found |= {"documents": _whole(call.documents), "key_documents": _whole(call.key_documents)}
    return found


def _by_order(call: Call) -> bool:
    """True if the kernels need to know nothing of documents' tokens but which come first: that is how they lie."""
    scheme = call.scheme
    bare = not any(map(scheme.answering, ("bend", "bend_rows", "relate", "place")))
    return bare and call.over_itself and scheme.band() == PLAIN and not _few(call)


def _whole(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.int32, torch.int64) else x.long()


def _few(call: Call) -> bool:
    """True if keys are split over programs, because there are few queries, as in a step."""
    return call.queries.count <= FEW and not call.needs_grad


def _sharpness(call: Call) -> Tensor | None:
    """Return what each query's scores are multiplied by, [b|1 t], or None."""
    sharpness = call.sharpness()
    return None if sharpness is None else _of_rows(call, sharpness[:, 0], 1.0).contiguous()


def _of_rows(call: Call, values: Tensor, padding: float) -> Tensor:
    """Return a number a row, [b|1 t] in float32; at the index of padding anything may come out, so it gets its own."""
    values = values.float().expand(-1, call.queries.count)
    return values if call.documents is None else torch.where(call.documents >= 0, values, padding)


def _regimes_unread(call: Call, band: Band) -> str | None:
    """Return why the kernel cannot tell near keys from far ones as the scheme does."""
    for part in call.scheme.answering("place"):
        if not call.at_index:
            return f"{spell(part)} goes by where tokens stand, and the kernels measure by their indices"
        regimes = [regime for _, regime in seen_regimes(call)]
        if any(unmeasured(regime, PLAIN) for regime in regimes):
            return f"{spell(part)} divides keys by more than the distance, which these kernels do not do yet"
        if any(unmeasured(regime, band) for regime in regimes):
            return f"{spell(part)} with a window is not in these kernels yet"
        if band.sinks and not all(_in_sight(regime, band) for regime in regimes):
            return f"{spell(part)} with a window with sinks is not in these kernels yet"
        if any(part not in call.scheme.answering("cap") for part in call.scheme.answering("bend")):
            return f"{spell(part)} moves tokens, and the kernels bend scores by where they stood"
        if call.scheme.answering("bend") and any(regime.contrast for regime in call.scheme.place()):
            return f"{spell(part)} turns scores that were capped, which these kernels do not do"
    return None


def _in_sight(regime: Regime, band: Band) -> bool:
    """True if a window hides none of a regime's keys: all are near enough, or sinks."""
    return band.behind == math.inf or regime.distances()[1] < band.behind or within_sinks(regime, band)


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton runs kernels line by line, on the CPU, as it was asked to when Python started."""
_devices: dict[torch.device, str | None] = {}
"""What was found out about each device."""


def _no_device(device: torch.device) -> str | None:
    """Return why this machine cannot run the kernels."""
    if device not in _devices:
        _devices[device] = _missing(device)
    return _devices[device]


def _missing(device: torch.device) -> str | None:
    if no_triton() is not None:
        return no_triton()
    if device.type == "cpu" and INTERPRETED:
        return None
    if device.type == "cpu":
        return (
            "its kernels run on CUDA devices, and the tensors are on cpu; with TRITON_INTERPRET=1, set before Python "
            "starts, Triton interprets them there, slowly, which is for checking them"
        )
    if device.type != "cuda":
        return f"its kernels run on CUDA devices, and the tensors are on {device.type}"
    if torch.version.hip is not None:
        return "its kernels are written for NVIDIA's GPUs, and this one is AMD's"
    if torch.cuda.get_device_capability(device) < (9, 0):
        return "its kernels are written for compute capability 9.0 and later"
    return None


# What torch.compiler.assume_constant_result does, which would import the compiler: a graph asks once, as it is traced.
_no_device._dynamo_marked_constant = True  # pyright: ignore


def _numbered(documents: Tensor) -> Tensor | None:
    """Return the tokens of packed rows numbered by the kernel, where it can run and is quicker than sorting."""
    if not has_numbers() or transformed() or _no_device(documents.device):
        return None
    from milepost.backends.triton.packed.documents import LONGEST, order_within

    fits = documents.shape[-1] <= LONGEST and documents.shape[0] <= MOST_PROGRAMS
    return order_within(documents) if fits else None


COUNTING["cuda"] = _numbered
