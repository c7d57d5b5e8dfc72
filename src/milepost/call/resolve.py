"""From what `attend` was given to a call: defaults filled in, nonsense refused."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from milepost.call import inputs
from milepost.call.call import Call
from milepost.call.documents import lies_together, order_within, over_keys
from milepost.call.options import NAMES, Options
from milepost.call.tokens import FEW, CachedKeys, Numbers, TokenNumbers, Tokens
from milepost.seams.arguments import spell
from milepost.seams.parts import Parts


def resolve(q: Tensor, k: Tensor, v: Tensor, scheme: Parts, options: Options, return_lse: bool = False) -> Call:
    """Fill in the defaults of `attend` and refuse what makes no sense."""
    dropout = options.get("dropout", 0.0)
    plain = k.plain if isinstance(k, CachedKeys) else k
    # Turned keys are no values: what computes with them raises.
    v = v.plain if isinstance(v, CachedKeys) and v.turned_by is None else v
    inputs.check_tensors(q, plain, v, scheme, dropout)
    inputs.check_scheme(scheme)
    b, t, s = q.shape[0], q.shape[2], k.shape[2]
    documents, key_documents = inputs.documents(
        options.get("documents"), options.get("key_documents"), b, t, s, q.device
    )
    options, keys_turned = _out_of_cache(k, scheme, options, documents, key_documents)
    k = plain
    x = options.get("x")
    if x is not None and (x.dim() != 3 or x.shape[:2] != (b, s)):
        raise ValueError(f"attend: x holds the layer inputs of all keys, [{b}, {s}, width], given {list(x.shape)}")
    queries, keys = _order(options, b, t, s, documents, key_documents, q.device)
    _stand(options, queries, keys, scheme, b, keys_turned)
    told = options.get("length")
    length = inputs.length(told, b, t, s, q.device)
    inputs.check_length(told, length, keys, key_documents)
    order = None
    if scheme.answering("bend_rows") and (keys.first is None or documents is not None):
        k, v, x, key_documents, order = _in_order(k, v, x, keys, key_documents)
    seed = torch.randint(0, 2**31 - 1, (), device=q.device) if dropout else None
    index_given = options.get("index") is not None or options.get("key_index") is not None
    call = Call(
        q, k, v, scheme, queries, keys, documents, key_documents, x, dropout, seed, return_lse, keys_turned,
        index_given, length, key_order=order,
    )  # fmt: skip
    if scheme.answering("centred"):
        if scheme.relative:
            _centre(call)
        else:
            layout = call.layout
            last = None if layout is None else max(layout.first + t, layout.key_first + s) - 1
            inputs.check_reach(scheme, q.dtype, last if call.at_index else None, call.position, call.key_position)
    return call


def counted_call(q: Tensor, k: Tensor, v: Tensor, scheme: Parts, return_lse: bool) -> Call:
    """A call of which nothing was said but tensors that were found right before: tokens count up, queries are last."""
    first, turned, cached = 0, False, isinstance(k, CachedKeys)
    if isinstance(k, CachedKeys):
        assert isinstance(k.token_index, range)
        first, turned, k = k.token_index.start, k.turned_by is not None, k.plain
    t, s = q.shape[2], k.shape[2]
    queries, keys = Tokens(t, q.device, first + s - t, None), Tokens(s, q.device, first, None)
    return Call(q, k, v, scheme, queries, keys, None, None, None, 0.0, None, return_lse, turned, cached)


def is_step(q: Tensor, k: Tensor, v: Tensor, scheme: Parts, options: Options) -> bool:
    """Whether a few queries are the last of the keys, which count up, and nothing else was said of them.

    Keys out of a cache may be given the index that the cache knows.
    """
    first, keys = 0, k
    if type(k) is CachedKeys:
        if type(k.token_index) is not range or k.token_position is not None or k.turned_by not in (None, scheme):
            return False
        first, keys = k.token_index.start, k.plain
    for name, value in options.items():
        if (name == "dropout" and value == 0.0) or (value is None and name in NAMES and name != "dropout"):
            continue
        if name != "key_index" or keys is k or not isinstance(value, TokenNumbers) or value.first != first:
            return False
        if value.plain.shape != (keys.shape[0], keys.shape[2]) or value.plain.device != keys.device:
            return False
    if not q.dim() == keys.dim() == v.dim() == 4 or keys.shape[2] != v.shape[2]:
        return False
    return q.shape[2] <= FEW and q.shape[2] < keys.shape[2]


def _out_of_cache(
    k: Tensor, scheme: Parts, options: Options, documents: Tensor | None, key_documents: Tensor | None
) -> tuple[Options, bool]:
    """Return the options with what the cache of keys knows put where nothing was said; and whether keys are turned."""
    if not isinstance(k, CachedKeys):
        return options, False
    if k.turned_by is not None and k.turned_by is not scheme and not inputs.same_turn(k.turned_by, scheme):
        raise ValueError(
            f"attend: these keys were turned by Cache({k.turned_by!r}) when they were appended, and cannot be read by "
            f"{scheme!r}; give that scheme, or keep raw keys: Cache()"
        )
    at = k.token_index if k.token_position is None else k.token_position
    for name, own in (("key_index", k.token_index), ("key_position", at)):
        given = options.get(name)
        if given is not None and k.turned_by is not None and not _is_same(given, own):
            raise ValueError(
                f"attend: {name} is not known to be that of these keys, which were turned by their cache where they "
                f"stood; leave {name} out, or keep raw keys: Cache()"
            )
    known: dict[str, Any] = {"key_index": k.token_index, "key_position": k.token_position}
    given = {name: value for name, value in options.items() if value is not None}
    told = documents is not None and key_documents is not None
    if told and k.token_counted is not False and "key_index" not in given:
        known |= _restarted(k, scheme, documents, key_documents, given)
    return {**{name: value for name, value in known.items() if value is not None}, **given}, k.turned_by is not None  # pyright: ignore


def _restarted(k: CachedKeys, scheme: Parts, own: Tensor, documents: Tensor, given: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of counted keys where an index restarts in each document, as in one pass over the text.

    That needs every token from the first on, in order. own: [b|1 t], the documents of the queries; documents:
    [b|1 s], those of the keys; given: what else was said of the call.
    """
    index = k.token_index
    if k.token_counted is None:
        raise ValueError(
            "attend: some of these keys were counted by their cache and others were given an index, and documents "
            "would count them all anew; give an index with every append, append(k, v, index=…), or with none"
        )
    if isinstance(index, range):
        gone, whole = f"the first {index.start} tokens of this cache are gone", index.start == 0
    else:
        gone = "these are not known to be all tokens of their cache from the first on, in order"
        whole = inputs.are(lambda: index == torch.arange(k.shape[2], device=k.device))
    if not whole:
        raise ValueError(
            f"attend: {gone}, and documents do not say whose the others were, so no index can restart in each; "
            f"append keys with their index: append(k, v, index=…)"
        )
    if k.turned_by is None or k.token_position is not None:
        if "index" in given and not inputs.are(lambda: _count_anew(given["index"], own, documents, len(k))):
            raise ValueError(
                "attend: index is not known to count queries as documents count these keys, anew in each; leave index "
                "out, or append keys with their index: append(k, v, index=…)"
            )
        return {"key_index": None}
    if not scheme.relative:
        part = next(part for part in scheme.parts if not getattr(part, "relative", False))
        raise ValueError(
            f"attend: these keys were turned by their cache as it counted them, documents count them anew, and "
            f"{spell(part)} reads more than distances; append keys with their index, append(k, v, index=…), or keep "
            f"raw keys: Cache()"
        )
    if not inputs.are(lambda: lies_together(documents)):
        raise ValueError(
            "attend: these keys were turned by their cache as it counted them, and the tokens of a document are not "
            "known to lie side by side in the cache, so that no query can be turned to their distances; append keys "
            "with their index, append(k, v, index=…), or keep raw keys: Cache()"
        )
    said = next((name for name in ("position", "index") if name in given), None)
    if said is not None and "key_position" not in given:
        raise ValueError(
            f"attend: {said} says where queries stand, but these keys were turned by their cache as it counted them, "
            f"and documents count them anew; leave {said} out, append keys with their index, append(k, v, index=…), or "
            f"keep raw keys: Cache()"
        )
    last = k.shape[2] - own.shape[1]
    if said is None and last >= 0 and not inputs.are(lambda: (own == documents[:, last:]) | (own < 0)):
        raise ValueError(
            "attend: these keys were turned by their cache as it counted them, and queries are of other documents than "
            "the last keys, so that no query can be turned to its distances; append keys with their index, "
            "append(k, v, index=…), or keep raw keys: Cache()"
        )
    # Turned as they were counted, queries have to be turned the same way.
    return {"key_index": None, "key_position": torch.arange(k.shape[2], device=k.device)}


def _count_anew(index: Any, own: Tensor, documents: Tensor, b: int) -> Tensor:
    """Return whether queries, which are the last of the keys or padding, have the index that their documents give."""
    t, device = own.shape[1], own.device
    numbers = Tokens(t, device, *inputs.index("index", index, b, t, device)).index
    return (numbers == order_within(documents)[:, documents.shape[1] - t :]) | (own < 0)


def _is_same(given: object, own: Numbers) -> bool:
    """True if indices or positions are known to be the keys' own. Values are compared only where that is free."""
    if isinstance(given, TokenNumbers):
        first = given.first
        given = given.plain if first is None else range(first, first + given.plain.shape[1])
    if isinstance(given, range) and isinstance(own, range):
        # Dynamo of torch 2.9 does not compare ranges.
        return (given.start, given.stop, given.step) == (own.start, own.stop, own.step)
    if torch.compiler.is_compiling():
        return False
    mine, theirs = (torch.tensor(list(each)) if isinstance(each, range) else each for each in (own, given))
    if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
        return False
    mine, theirs = (each[None] if each.dim() == 1 else each for each in (mine, theirs))
    if mine.device != theirs.device or mine.shape[1:] != theirs.shape[1:]:
        return False
    if mine.data_ptr() == theirs.data_ptr() and mine.dtype == theirs.dtype and mine.stride() == theirs.stride():
        return mine.shape == theirs.shape
    return mine.device.type == "cpu" and bool((mine == theirs).all())


def _order(
    options: Options,
    b: int,
    t: int,
    s: int,
    documents: Tensor | None,
    key_documents: Tensor | None,
    device: torch.device,
) -> tuple[Tokens, Tokens]:
    """The true order of both sides."""
    index, key_index = options.get("index"), options.get("key_index")
    if t > s and (index is None or key_index is None):
        raise ValueError(
            f"attend: {t} queries but {s} keys, so the queries cannot be the last of the keys; give index and key_index"
        )
    key_first, key_given = inputs.index("key_index", key_index, b, s, device)
    first, given = inputs.index("index", index, b, t, device)
    inputs.check_index("key_index", key_given, key_documents)
    inputs.check_index("index", given, documents)
    if key_index is None and key_documents is None:
        key_first = 0
    elif key_index is None and t == s and index is not None and _given_once(options):
        # Documents said once are those of the same tokens on both sides, and so is their index.
        key_first, key_given = first, given
    elif key_index is None and key_documents is not None:
        # Numbered when somebody asks: not everybody does.
        numbered = Tokens(s, device, None, lambda: order_within(key_documents))
        own = (lambda: numbered.index[:, s - t :]) if index is None else given
        return Tokens(t, device, first, own), Tokens(s, device, None, lambda: numbered.index)
    if index is None and key_first is not None:
        first = key_first + s - t
    elif index is None and key_given is not None:
        given = key_given[:, s - t :]
    return Tokens(t, device, first, given), Tokens(s, device, key_first, key_given)


def _given_once(options: Options) -> bool:
    """Whether one argument says the documents of queries and keys."""
    return (options.get("documents") is None) != (options.get("key_documents") is None)


def _stand(options: Options, queries: Tokens, keys: Tokens, scheme: Parts, b: int, keys_turned: bool) -> None:
    """Where tokens stand, if that was said; one side stands for both where queries are the keys."""
    position, key_position = options.get("position"), options.get("key_position")
    if position is None and key_position is None:
        return
    own = inputs.tokens("position", position, b, queries.count, queries.device, any_number=True)
    other = inputs.tokens("key_position", key_position, b, keys.count, keys.device, any_number=True)
    inputs.check_axes(scheme, own, other)
    inputs.check_finite("position", own)
    inputs.check_finite("key_position", other)
    inputs.check_whole(scheme, own, other)
    last = options.get("index") is None
    if own is not None and other is None:
        both = queries.count == keys.count and last
        if both and not keys_turned:
            other = own
        elif both and not (own.dim() == 2 and inputs.are(lambda: own == keys.index)):
            raise ValueError(
                "attend: position would say where queries and keys stand, but these keys were turned by their cache at "
                "their indices; append keys with their position, append(k, v, position=…), or give their indices as "
                "key_position"
            )
        elif not keys_turned:
            raise ValueError(
                f"attend: position says where {queries.count} queries stand, but not where the {keys.count} keys do; "
                f"give key_position"
            )
    elif own is None and other is not None:
        if not last:
            raise ValueError("attend: key_position says where keys stand, but not queries with an index; give position")
        own = other[:, keys.count - queries.count :]
    if own is not None:
        queries.stand_at(own)
    if other is not None:
        keys.stand_at(other)


def _in_order(
    k: Tensor, v: Tensor, x: Tensor | None, keys: Tokens, key_documents: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor]:
    """Keys in the order of their index, document after document, for methods that read whole rows; and that order."""
    order = keys.index.expand(k.shape[0], -1).argsort(dim=-1, stable=True)
    if key_documents is not None:
        # Tokens of one document side by side, so that whole blocks of others can be left out.
        order = order.gather(1, _ordered(key_documents, order).argsort(dim=-1, stable=True))
    rows = order[:, None, :, None]
    keys.reorder(_ordered(keys.index, order), None if keys.at_index else _ordered(keys.position, order))
    return (
        k.take_along_dim(rows, 2),
        v.take_along_dim(rows, 2),
        x if x is None else x.take_along_dim(order[:, :, None], 1),
        key_documents if key_documents is None else _ordered(key_documents, order),
        order,
    )


def _ordered(values: Tensor, order: Tensor) -> Tensor:
    """Sort the key axis of values [b|1 s …]."""
    if values.dim() == 3:
        return values.expand(order.shape[0], -1, -1).take_along_dim(order[:, :, None], 1)
    return values.expand(order.shape[0], -1).take_along_dim(order, 1)


def _centre(call: Call) -> None:
    """Count positions from the middle of each document's keys, so that they lie around zero; the distances stay."""
    layout = call.layout
    if layout is not None and call.at_index:
        middle = (2 * layout.key_first + call.keys.count - 1) // 2
        p, r = call.position - middle, call.key_position - middle
    else:
        p, r = call.position, call.key_position
        least, key_least = over_keys(r, "amin", call.documents, call.key_documents)
        most, key_most = over_keys(r, "amax", call.documents, call.key_documents)
        p, r = p - (least + most) // 2, r - (key_least + key_most) // 2
    call.queries.stand_at(p, shifted=call.queries.at_index)
    call.keys.stand_at(r, shifted=call.keys.at_index)
    inputs.check_span(call.scheme, call.q.dtype, None if layout is None else call.keys.count, p, r)
