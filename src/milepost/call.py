"""One call of `attend`, with every default filled in and every input checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.arguments import spell
from milepost.documents import order_within, over_keys
from milepost.scheme import Scheme


class CannotRun(RuntimeError):
    """A backend was asked by name for what it cannot do."""


@dataclass(frozen=True)
class Call:
    """What a backend gets. Tensors that describe tokens carry a batch axis of b, or of 1 where all rows agree."""

    q: Tensor
    """[b h t d], raw."""
    k: Tensor
    """[b g s d], raw; h is a multiple of g."""
    v: Tensor
    """[b g s dv]."""
    scheme: Scheme
    index: Tensor
    """[b|1 t], the true order of the queries."""
    key_index: Tensor
    """[b|1 s]."""
    position: Tensor
    """[b|1 t] or [b|1 t axes], where the queries stand."""
    key_position: Tensor
    documents: Tensor | None
    """[b|1 t], or None for one document without padding."""
    key_documents: Tensor | None
    length: Tensor
    """[b|1 t|1], 1 + the largest key index of each query's document."""
    key_length: Tensor
    x: Tensor | None
    dropout: float
    seed: Tensor | None
    """What decides which weights are dropped; None without dropout."""
    return_lse: bool
    plain_index: bool
    """True where neither indices nor documents were given: queries are the last t of the keys 0 … s − 1."""
    counted: bool
    """True where no index was given, so that every index is below the number of keys."""
    plain_position: bool
    """True where tokens stand at their indices."""

    @property
    def wide(self) -> torch.dtype:
        """The dtype in which scores are formed: float32, or float64 for float64 inputs."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @property
    def needs_grad(self) -> bool:
        """Whether a gradient may be asked of this call."""
        tensors = [self.q, self.k, self.v, *self.scheme.parameters()]
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)

    def factor(self) -> Tensor | float:
        """The softmax scale of each query: a number, or [b|1 1 t|1 1] in the wide dtype."""
        scale = self.scheme.scale(self.q.shape[-1])
        sharpness = self.scheme.sharpen(self.index, self.length)
        return scale if sharpness is None else (scale * sharpness).to(self.wide)[:, None, :, None]


def resolve(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: Scheme,
    index: Tensor | None,
    key_index: Tensor | None,
    position: Tensor | None,
    key_position: Tensor | None,
    documents: Tensor | None,
    key_documents: Tensor | None,
    x: Tensor | None,
    dropout: float,
    return_lse: bool,
) -> Call:
    """Fill in the defaults of `attend` and refuse what makes no sense."""
    _check_tensors(q, k, v, scheme, dropout)
    b, t, s = q.shape[0], q.shape[2], k.shape[2]
    counted = index is None and key_index is None
    plain_index = counted and documents is None and key_documents is None
    if t > s and (index is None or key_index is None):
        raise ValueError(
            f"attend: {t} queries but {s} keys, so the queries cannot be the last of the keys; give index and key_index"
        )
    documents, key_documents = _documents(documents, key_documents, b, t, s, q.device)
    given, key_given = _tokens("index", index, b, t, q.device), _tokens("key_index", key_index, b, s, q.device)
    _check_index("index", given, documents)
    _check_index("key_index", key_given, key_documents)
    if key_given is None:
        fresh = torch.arange(s, device=q.device)[None]
        key_given = fresh if key_documents is None else order_within(key_documents)
    if given is None:
        given = key_given[:, s - t :]
    places = _tokens("position", position, b, t, q.device, scheme.axes, any_number=True)
    key_places = _tokens("key_position", key_position, b, s, q.device, scheme.axes, any_number=True)
    _check_axes(scheme, places, key_places)
    if scheme.answering("bend_rows") and not plain_index:
        order = key_given.expand(b, s).argsort(dim=-1, stable=True)
        rows = order[:, None, :, None]
        k, v = k.take_along_dim(rows, 2), v.take_along_dim(rows, 2)
        key_given, key_places, key_documents = (
            None if each is None else _ordered(each, order) for each in (key_given, key_places, key_documents)
        )
        assert key_given is not None
        x = x if x is None else x.take_along_dim(order[:, :, None], 1)
    longest, key_longest = over_keys(key_given, "amax", documents, key_documents)
    places_known = given if places is None else places
    key_places_known = key_given if key_places is None else key_places
    if scheme.relative and any(getattr(part, "centred", False) for part in scheme.answering("turn")):
        places_known, key_places_known = _centred(places_known, key_places_known, documents, key_documents)
    seed = torch.randint(0, 2**31 - 1, (), device=q.device) if dropout else None
    return Call(
        q=q, k=k, v=v, scheme=scheme, index=given, key_index=key_given,
        position=places_known, key_position=key_places_known, documents=documents, key_documents=key_documents,
        length=longest + 1, key_length=key_longest + 1, x=x, dropout=dropout, seed=seed, return_lse=return_lse,
        plain_index=plain_index, counted=counted, plain_position=places is None and key_places is None,
    )  # fmt: skip


def _ordered(values: Tensor, order: Tensor) -> Tensor:
    """Sort the key axis of values [b|1 s …]."""
    if values.dim() == 3:
        return values.expand(order.shape[0], -1, -1).take_along_dim(order[:, :, None], 1)
    return values.expand(order.shape[0], -1).take_along_dim(order, 1)


def _centred(p: Tensor, r: Tensor, documents: Tensor | None, key_documents: Tensor | None) -> tuple[Tensor, Tensor]:
    """Shift the positions of each document so that its keys lie around zero; the distances stay."""
    least, key_least = over_keys(r, "amin", documents, key_documents)
    most, key_most = over_keys(r, "amax", documents, key_documents)
    return p - (least + most) // 2, r - (key_least + key_most) // 2


def checking_values(device: torch.device) -> bool:
    """Whether values may be looked at: not where that would wait for a device or break a traced graph."""
    return device.type == "cpu" and not torch.compiler.is_compiling()


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, scheme: object, dropout: float) -> None:
    if not isinstance(scheme, Scheme):
        raise TypeError(f"attend: the fourth argument is a Scheme, given {type(scheme).__name__}; wrap it: Scheme(…)")
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"attend: q is [b h t d], k [b g s d] and v [b g s dv]; given {shapes}")
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise ValueError(f"attend: q [b h t d], k [b g s d] and v [b g s dv] do not fit together; given {shapes}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"attend: {q.shape[1]} query heads cannot share {k.shape[1]} key heads evenly; given {shapes}")
    if not q.is_floating_point() or not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"attend: q, k and v need one floating dtype; given {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device:
        raise ValueError(f"attend: q, k and v are on different devices: {q.device}, {k.device}, {v.device}")
    if scheme.heads is not None and scheme.heads != q.shape[1]:
        part = next(part for part in scheme.parts if getattr(part, "heads", None) == scheme.heads)
        raise ValueError(f"attend: {spell(part)} was given q with {q.shape[1]} heads; given {shapes}")
    for name, weight in scheme.named_parameters():
        if weight.device != q.device:
            raise ValueError(
                f"attend: q is on {q.device} but the scheme's weight {name} is on {weight.device}; move it: scheme.to(q.device)"
            )
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"attend(dropout={dropout}): dropout is a share of the weights, at least 0 and below 1")


def _tokens(
    name: str,
    values: Tensor | None,
    b: int,
    n: int,
    device: torch.device,
    axes: int | None = None,
    any_number: bool = False,
) -> Tensor | None:
    """Bring [n], [b n] or [b n axes] to a batch axis of b or 1."""
    if values is None:
        return None
    if values.is_complex() or values.dtype == torch.bool or (values.is_floating_point() and not any_number):
        hint = "; where tokens stand may be a fraction: give it as position" if name.endswith("index") else ""
        raise TypeError(f"attend: {name} must be integers, given {values.dtype}{hint}")
    if values.device != device:
        raise ValueError(f"attend: {name} is on {values.device} but q is on {device}")
    shape = values.shape
    if shape == (n,):
        return values[None]
    if shape[:2] in ((b, n), (1, n)) and (len(shape) == 2 or (any_number and len(shape) == 3)):
        return values
    wanted = f"[{n}] or [{b}, {n}]" + (f" or [{b}, {n}, axes]" if any_number else "")
    raise ValueError(f"attend: {name} must be {wanted}, given {list(shape)}")


def _documents(
    documents: Tensor | None, key_documents: Tensor | None, b: int, t: int, s: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    own, keys = _tokens("documents", documents, b, t, device), _tokens("key_documents", key_documents, b, s, device)
    if own is not None and keys is None:
        if t != s:
            raise ValueError(f"attend: documents of {t} queries do not tell those of {s} keys; give key_documents")
        keys = own
    elif keys is not None and own is None:
        if t > s:
            raise ValueError(f"attend: {t} queries but {s} keys, so key_documents do not tell documents; give both")
        own = keys[:, s - t :]
    return own, keys


def _check_index(name: str, index: Tensor | None, documents: Tensor | None) -> None:
    if index is None or not checking_values(index.device):
        return
    wrong = index < 0 if documents is None else (index < 0) & (documents >= 0)
    if bool(wrong.any()):
        least = int(index.expand_as(wrong)[wrong].min())
        raise ValueError(f"attend: {name} holds {least}; indices count from 0; mark padding with documents=-1")


def _check_axes(scheme: Scheme, position: Tensor | None, key_position: Tensor | None) -> None:
    for name, values in (("position", position), ("key_position", key_position)):
        if values is None or values.dim() != 3:
            continue
        if scheme.axes is None:
            raise ValueError(
                f"attend: {name} is {list(values.shape)}, but no part of the scheme reads several axes; give [t] or [b t]"
            )
        if values.shape[2] != scheme.axes:
            raise ValueError(f"attend: {name} has {values.shape[2]} axes, but the scheme reads {scheme.axes}")
        for part in scheme.answering("place") + scheme.answering("bend") + scheme.answering("relate"):
            raise ValueError(
                f"attend: {name} has {values.shape[2]} axes, but {spell(part)} reads one; give [t] or [b t]"
            )


def span_of(p: Tensor, r: Tensor) -> int:
    """The largest size of a distance between queries at p and keys at r."""
    if torch.compiler.is_compiling():
        raise CannotRun(
            "attend: inside torch.compile a scheme with a table for every distance must know how far apart tokens can "
            "stand; leave out index and position, so that it follows from the shapes"
        )
    if not p.numel() or not r.numel():
        return 0
    return math.ceil(max(float(p.max() - r.min()), float(r.max() - p.min()), 0.0))
