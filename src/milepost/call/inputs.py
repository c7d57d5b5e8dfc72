"""Checks on what `attend` is given. Values are looked at only where that waits for no device and breaks no graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from milepost.call.tokens import TokenNumbers, Tokens
from milepost.memory.fixed import value_of
from milepost.memory.internals import batched
from milepost.seams.arguments import spell
from milepost.seams.demand import INTEGERS, checking_values, exact
from milepost.seams.parts import Parts
from milepost.seams.verbs import answers, verbs_of

_ATTENTION = F.scaled_dot_product_attention
"""torch's function, which `context_parallel()` replaces by one of its own: the one mark that all versions have."""


def refuse_kinds(q: Tensor, k: Tensor, v: Tensor | None) -> None:
    """Raise inside torch's `context_parallel()`, and for tensors that are not one array of numbers each."""
    now = F.scaled_dot_product_attention
    # A graph that is traced can compare functions, and not ask a built-in one for its module.
    asked = now is not _ATTENTION or not torch.compiler.is_compiling()
    if asked and str(now.__module__).startswith("torch.distributed"):
        raise NotImplementedError(
            "attend: inside torch's context_parallel() each process has a shard of the keys, and attend would see no "
            "other. Leave context_parallel(), and call milepost.parallel.attend(q, k, v, scheme, mesh=…, layout=…), "
            "which sees those of all processes"
        )
    for name, each in (("q", q), ("k", k), ("v", v)):
        if each is not None and type(each) is not Tensor and hasattr(each, "placements"):
            raise NotImplementedError(
                f"attend: {name} is a DTensor, placed as {tuple(each.placements)}; this is not supported. Where "  # pyright: ignore
                f"tokens are sharded, give local tensors to milepost.parallel.attend; where heads are, give "
                f"q.to_local() and scheme.take_heads(first, count)"
            )
        if isinstance(each, Tensor) and (each.is_nested or each.layout != torch.strided):
            kind = "a nested tensor" if each.is_nested else f"laid out as {each.layout}"
            raise TypeError(
                f"attend: {name} is {kind}, which is not supported; give a dense tensor, and documents=-1 for padding"
            )
        if type(each).__name__ == "MaskedTensor":
            raise TypeError(
                f"attend: {name} is a masked tensor, which is not supported; give its data, and say what is hidden "
                f"with documents or a part that sees"
            )


def check_tensors(q: Tensor, k: Tensor, v: Tensor, scheme: object, dropout: float) -> None:
    """Refuse tensors, schemes and dropout that cannot be meant."""
    if not isinstance(scheme, Parts):
        raise TypeError(f"attend: the fourth argument is a Scheme, given {type(scheme).__name__}; {_instead(scheme)}")
    for each in (q, k, v):
        if not isinstance(each, Tensor):
            raise TypeError(f"attend: q, k and v are tensors; given {type(each).__name__}")
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"attend: q is [b h t d], k [b g s d] and v [b g s dv]; given {shapes}")
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise ValueError(f"attend: q [b h t d], k [b g s d] and v [b g s dv] do not fit together; given {shapes}")
    if not q.shape[3]:
        raise ValueError(f"attend: q and k have no channels; given {shapes}")
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise ValueError(f"attend: {q.shape[1]} query heads cannot share {k.shape[1]} key heads evenly; given {shapes}")
    if not q.is_floating_point() or not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"attend: q, k and v need one floating dtype; given {q.dtype}, {k.dtype}, {v.dtype}")
    if q.itemsize < 2:
        raise TypeError(
            f"attend: q, k and v are {q.dtype}, and fp8 is not supported yet; "
            f"give bfloat16, float16, float32 or float64"
        )
    if not q.device == k.device == v.device:
        raise ValueError(f"attend: q, k and v are on different devices: {q.device}, {k.device}, {v.device}")
    if scheme.heads is not None and scheme.heads != q.shape[1]:
        part = next(part for part in scheme.parts if getattr(part, "heads", None) == scheme.heads)
        raise ValueError(f"attend: {spell(part)} was given q with {q.shape[1]} heads; given {shapes}")
    for name, weight in scheme.named_parameters():
        if weight.device != q.device:
            raise ValueError(
                f"attend: q is on {q.device} but the scheme's weight {name} is on {weight.device}; "
                f"move it: scheme.to(q.device)"
            )
    if not isinstance(dropout, (int, float)) or not 0.0 <= dropout < 1.0:
        raise ValueError(f"attend(dropout={dropout}): dropout is a share of the weights, at least 0 and below 1")


def _instead(scheme: object) -> str:
    """What to write in place of something that is no scheme."""
    if hasattr(scheme, "schemes"):
        return "pick a layer's: schedule[layer]"
    if verbs_of(scheme) or isinstance(scheme, (list, tuple)):
        return "wrap it: Scheme(…)"
    return "build one from its parts, such as Scheme(Rope(64), causal)"


def check_scheme(scheme: Parts) -> None:
    """Refuse parts that act on the token embeddings: inside attention they would do nothing."""
    for part in scheme.answering("embed"):
        rest = ", ".join(repr(each) for each in scheme.parts if not answers(each, "embed"))
        raise ValueError(
            f"attend: {spell(part)} gives the token embeddings their positions, once, before the first layer: "
            f"x = scheme.embed(x). Layers are given the scheme without it: scheme.attention, here Scheme({rest})"
        )


def same_turn(one: Parts, other: Parts) -> bool:
    """True if keys turned by one scheme are keys turned by the other."""
    mine, theirs = one.answering("turn"), other.answering("turn")
    if not other.turns_keys_once or len(mine) != len(theirs):
        return False
    # Those of another object count if they can never change, and are alike in what == leaves out, too.
    return all(a is b or value_of(a) == value_of(b) is not None for a, b in zip(mine, theirs, strict=True))


def index(
    name: str, values: Tensor | range | None, b: int, n: int, device: torch.device
) -> tuple[int | None, Tensor | None]:
    """Return an index as the number it counts from, where that is known, or as a tensor [b|1 n]."""
    if isinstance(values, TokenNumbers) and values.first is not None and values.plain.shape[0] in (1, b):
        values = range(values.first, values.first + values.plain.shape[1])
    if isinstance(values, range):
        # A graph for many lengths knows the ends of a range, and not how many numbers lie between them.
        count = max(values.stop - values.start, 0) if values.step == 1 else len(values)
        if count != n:
            raise ValueError(f"attend: {name} is {values!r}, {len(values)} indices for {n} tokens")
        if values.step == 1:
            if values.start < 0:
                raise ValueError(f"attend: {name} is {values!r}; indices count from 0")
            return values.start, None
        values = torch.tensor(list(values), device=device)
    return None, tokens(name, values, b, n, device)


def length(value: int | Tensor | None, b: int, t: int, s: int, device: torch.device) -> Tensor | None:
    """Return a given length as [b|1 1], or [b|1 t] where queries are the keys' own tokens."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        each = [(b, t), (1, t)] if t == s else []
        if value.dtype not in INTEGERS or tuple(value.shape) not in [(), (b,), (b, 1), (1, 1), *each]:
            raise ValueError(
                f"attend: length must be a whole number, or [{b}] of them, or one for each of as many queries as keys, "
                f"given {value.dtype} {list(value.shape)}"
            )
        value = value.to(device, torch.int64)
        return value if value.dim() == 2 else value.reshape(-1, 1)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"attend(length={value!r}): length is how many tokens there are, a whole number of at least 1")
    return torch.full((1, 1), value, device=device)


def check_length(told: int | Tensor | None, length: Tensor | None, keys: Tokens, documents: Tensor | None) -> None:
    """Refuse a length that the keys' own indices reach; length is what was told, [b|1 1] or [b|1 s].

    documents are the keys'. Where positions are given, a length may follow these.
    """
    if length is None or not keys.count:
        return
    if isinstance(told, int) and documents is None and keys.first is not None:
        # Known on any device.
        wrong, most = told, keys.first + keys.count - 1
        short = keys.at_index and told <= most
    elif checking_values(length, keys.index, *(() if documents is None else (documents,))):
        last = keys.index if documents is None else torch.where(documents >= 0, keys.index, -1)
        reached = length <= (last if keys.at_index else 0)
        short, most = bool(reached.any()), int(last.max())
        wrong = int(length.expand_as(reached)[reached].min()) if short else 1
    else:
        return
    if short:
        raise ValueError(
            f"attend: length holds {wrong}, for keys up to the index {most}; length is how many tokens there are, at "
            f"least 1 and more than every index of the keys"
        )


def tokens(
    name: str, values: Tensor | None, b: int, n: int, device: torch.device, any_number: bool = False
) -> Tensor | None:
    """Bring [n], [b n] or [b n axes] to a batch axis of b or 1."""
    if values is None:
        return None
    if not isinstance(values, Tensor):
        also = " or a range" if name.endswith("index") else ""
        raise TypeError(
            f"attend: {name} must be a tensor of shape [{n}] or [{b}, {n}]{also}, given {type(values).__name__}"
        )
    values = exact(f"attend: {name}", values.plain if isinstance(values, TokenNumbers) else values, any_number)
    if values.device != device:
        raise ValueError(f"attend: {name} is on {values.device} but q is on {device}")
    shape = values.shape
    # Number by number: torch.compile finds no tuple of lengths it does not know equal to another.
    if len(shape) == 1 and shape[0] == n:
        return values[None]
    if (len(shape) == 2 or (any_number and len(shape) == 3)) and (shape[0] == b or shape[0] == 1) and shape[1] == n:
        return values
    wanted = f"[{n}] or [{b}, {n}]" + (f" or [{b}, {n}, axes]" if any_number else "")
    raise ValueError(f"attend: {name} must be {wanted}, given {list(shape)}")


def documents(
    documents: Tensor | None, key_documents: Tensor | None, b: int, t: int, s: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Bring both sides' documents to a batch axis, each defaulting from the other."""
    if documents is None and key_documents is None:
        return None, None
    own = tokens("documents", documents, b, t, device)
    keys = own if documents is key_documents and t == s else tokens("key_documents", key_documents, b, s, device)
    if own is not None and keys is None:
        if t != s:
            raise ValueError(f"attend: documents has {t} entries, but there are {s} keys; give key_documents too")
        keys = own
    elif keys is not None and own is None:
        if t > s:
            raise ValueError(f"attend: key_documents has {s} entries, but there are {t} queries; give documents too")
        own = keys[:, s - t :]
    return own, keys


def are(true: Callable[[], Tensor]) -> bool:
    """True if all are true, even where that waits for a device.

    In a graph that is traced, and of all rows that `torch.vmap` runs at once, nothing is known. For what decides
    whether an answer is right, and is asked of few calls.
    """
    if torch.compiler.is_compiling():
        return False
    asked = true().all()
    return not batched(asked) and bool(asked)


def check_index(name: str, index: Tensor | None, documents: Tensor | None) -> None:
    """Refuse negative indices, but for padding."""
    if index is None or not checking_values(index, *(() if documents is None else (documents,))):
        return
    wrong = index < 0 if documents is None else (index < 0) & (documents >= 0)
    if bool(wrong.any()):
        least = int(index.expand_as(wrong)[wrong].min())
        raise ValueError(f"attend: {name} holds {least}; indices count from 0; mark padding with documents=-1")


def check_finite(name: str, position: Tensor | None) -> None:
    """Refuse positions that are no numbers."""
    if position is None or not position.is_floating_point() or not checking_values(position):
        return
    if not bool(position.isfinite().all()):
        wrong = float(position[~position.isfinite()][0])
        raise ValueError(f"attend: {name} holds {wrong}; a position must be finite, also for padding")


def check_whole(scheme: Parts, position: Tensor | None, key_position: Tensor | None) -> None:
    """Refuse positions that are no whole numbers where a part has a table with a row for each whole distance."""
    for part in scheme.answering("relate"):
        for name, values in (("position", position), ("key_position", key_position)):
            if values is None or not values.is_floating_point():
                continue
            if not checking_values(values):
                raise ValueError(
                    f"attend: {name} is {values.dtype}, and {spell(part)} has a row for each whole distance; give "
                    f"integers: {name}.long()"
                )
            if bool((values != values.round()).any()):
                wrong = float(values[values != values.round()][0])
                raise ValueError(
                    f"attend: {name} holds {wrong:g}, and {spell(part)} has a row for each whole distance, and none "
                    f"between; give whole positions"
                )


def check_axes(scheme: Parts, position: Tensor | None, key_position: Tensor | None) -> None:
    """Refuse coordinates that nobody reads."""
    for name, values in (("position", position), ("key_position", key_position)):
        if values is None or values.dim() != 3:
            continue
        if scheme.axes is None:
            raise ValueError(
                f"attend: {name} is {list(values.shape)}, but no part of the scheme reads several axes; "
                f"give [t] or [b t]"
            )
        if values.shape[2] != scheme.axes:
            raise ValueError(f"attend: {name} has {values.shape[2]} axes, but the scheme reads {scheme.axes}")
        for part in scheme.answering("place") + scheme.answering("bend") + scheme.answering("relate"):
            raise ValueError(
                f"attend: {name} has {values.shape[2]} axes, but {spell(part)} reads one; give [t] or [b t]"
            )


def check_reach(scheme: Parts, dtype: torch.dtype, known: int | None, p: Tensor, r: Tensor) -> None:
    """Refuse positions so far from 0 that a part's factors would overflow, where they cannot be counted otherwise.

    known: the largest of them, where shapes tell.
    """
    reach: float | None = known
    if reach is None and checking_values(p, r) and p.numel() and r.numel():
        reach = max(float(p.abs().max()), float(r.abs().max()))
    for part in scheme.answering("centred"):
        widest = 0.8 * part.widest(dtype)  # pyright: ignore
        if reach is not None and reach > widest:
            other = next(each for each in scheme.parts if not getattr(each, "relative", False))
            raise ValueError(
                f"attend: positions reach {reach:g}, but {spell(part)} overflows past {widest:.0f} in {dtype} "
                f"where they cannot be counted from the middle of the text: {spell(other)} is not relative. Use a "
                f"wider dtype, or set relative = True on a class of yours that depends on distances alone"
            )


def check_span(scheme: Parts, dtype: torch.dtype, known: int | None, p: Tensor, r: Tensor) -> None:
    """Refuse positions so far apart that a part's factors would overflow; p and r are counted from the middle."""
    span: float | None = known
    if checking_values(p, r) and p.numel() and r.numel():
        span = 2 * max(float(p.abs().max()), float(r.abs().max()))
    for part in scheme.answering("centred"):
        widest = part.widest(dtype)  # pyright: ignore
        if span is not None and span > widest:
            raise ValueError(
                f"attend: positions span {span:g}, but {spell(part)} overflows past {widest:.0f} in {dtype}; "
                f"use a wider dtype or a shorter text"
            )
