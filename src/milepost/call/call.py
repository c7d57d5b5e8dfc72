"""One call of `attend`, with every default filled in and every input checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from milepost.call import inputs
from milepost.call.documents import order_within, over_keys
from milepost.seams.parts import Parts


class CannotRun(RuntimeError):  # noqa: N818
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
    scheme: Parts
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
    def score_dtype(self) -> torch.dtype:
        """The dtype in which scores are formed: float32, or float64 for float64 inputs."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @property
    def needs_grad(self) -> bool:
        """Whether a gradient may be asked of this call."""
        tensors = [self.q, self.k, self.v, *self.scheme.parameters()]
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)

    def learns(self, verb: str) -> bool:
        """Whether a part that answers the verb has weights whose gradient may be asked for."""
        parts = self.scheme.answering(verb)
        weights = (weight for part in parts if isinstance(part, nn.Module) for weight in part.parameters())
        return torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)

    def factor(self) -> Tensor | float:
        """The softmax scale of each query: a number, or [b|1 1 t|1 1] in the wide dtype."""
        scale = self.scheme.scale(self.q.shape[-1])
        sharpness = self.scheme.sharpen(self.index, self.length)
        return scale if sharpness is None else (scale * sharpness).to(self.score_dtype)[:, None, :, None]


def resolve(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: Parts,
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
    inputs.check_tensors(q, k, v, scheme, dropout)
    b, t, s = q.shape[0], q.shape[2], k.shape[2]
    if x is not None and (x.dim() != 3 or x.shape[:2] != (b, s)):
        raise ValueError(f"attend: x holds the layer inputs of all keys, [{b}, {s}, width], given {list(x.shape)}")
    counted = index is None and key_index is None
    plain_index = counted and documents is None and key_documents is None
    if t > s and (index is None or key_index is None):
        raise ValueError(
            f"attend: {t} queries but {s} keys, so the queries cannot be the last of the keys; give index and key_index"
        )
    documents, key_documents = inputs.documents(documents, key_documents, b, t, s, q.device)
    given, key_given = (
        inputs.tokens("index", index, b, t, q.device),
        inputs.tokens("key_index", key_index, b, s, q.device),
    )
    inputs.check_index("index", given, documents)
    inputs.check_index("key_index", key_given, key_documents)
    if key_given is None:
        fresh = torch.arange(s, device=q.device)[None]
        key_given = fresh if key_documents is None else order_within(key_documents)
    if given is None:
        given = key_given[:, s - t :]
    places = inputs.tokens("position", position, b, t, q.device, scheme.axes, any_number=True)
    key_places = inputs.tokens("key_position", key_position, b, s, q.device, scheme.axes, any_number=True)
    inputs.check_axes(scheme, places, key_places)
    inputs.check_finite("position", places)
    inputs.check_finite("key_position", key_places)
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
    if scheme.relative and scheme.answering("centred"):
        places_known, key_places_known = _centred(places_known, key_places_known, documents, key_documents)
        inputs.check_span(scheme, q.dtype, s if plain_index else None, places_known, key_places_known)
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
