"""Attention over complex numbers, for words that turn with their positions (Wang et al., 2020, arXiv:1912.12333)."""

from typing import Literal

import torch
from torch import Tensor

from milepost.call.documents import order_within
from milepost.scheme import Scheme
from milepost.seams import demand
from milepost.seams.arguments import spell


def complex_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: Scheme,
    *,
    score: Literal["real", "size"] = "real",
    conjugate: bool = True,
    index: Tensor | None = None,
    key_index: Tensor | None = None,
    documents: Tensor | None = None,
) -> Tensor:
    """Attention whose queries, keys and values are complex.

        out_i = Σ_j softmax_j( Re⟨q_i, k_j⟩ / √d ) · v_j,   or with |⟨q_i, k_j⟩| in place of Re

    q: [b h t d], k: [b g s d], v: [b g s dv], complex; returns complex [b h t dv]. The product takes the conjugate of
    the keys, so that phases meet as differences; the authors' code takes none (conjugate=False) and the size (score=
    "size"). The scheme may bend and hide. index, key_index and documents, [s] or [b s], are those of `scheme.bias`.
    """
    _check(q, k, v, score, conjugate)
    _check_scheme(scheme, q)
    t, s = q.shape[2], k.shape[2]
    for name, each, n in (("index", index, t), ("key_index", key_index, s), ("documents", documents, s)):
        if each is not None and each.shape not in ((n,), (1, n), (q.shape[0], n)):
            raise ValueError(f"complex_attend: {name} must be [{n}] or [{q.shape[0]}, {n}], given {list(each.shape)}")
    if key_index is None:
        whole = documents if documents is None or documents.dim() == 2 else documents[None]
        key_index = torch.arange(s, device=q.device) if whole is None else order_within(whole)
    if index is None:
        if t > s:
            raise ValueError(
                f"complex_attend: {t} queries but {s} keys; queries are the last of the keys, or give index"
            )
        index = key_index[..., s - t :]
    rows, heads = q.shape[0] or None, q.shape[1]
    bias = scheme.bias(index, key_index, documents=documents, dtype=q.real.dtype, rows=rows, heads=heads)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    product = q @ (k.mH if conjugate else k.mT)
    scores = (product.real if score == "real" else _size(product)) * q.shape[-1] ** -0.5 + bias.to(q.device)
    alive = (scores != -torch.inf).any(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(~alive, 0.0), -1) * alive
    return weights.to(v.dtype) @ v


def _size(product: Tensor) -> Tensor:
    """|z|, with a gradient of zero at zero."""
    square = product.real.square() + product.imag.square()
    return torch.where(square > 0, square.clamp(min=torch.finfo(square.dtype).tiny).sqrt(), 0.0)


def _check(q: Tensor, k: Tensor, v: Tensor, score: str, conjugate: bool) -> None:
    demand.one_of(complex_attend, "score", score, ("real", "size"))
    demand.flag(complex_attend, "conjugate", conjugate)
    for name, each in (("q", q), ("k", k), ("v", v)):
        if not each.is_complex() or each.dim() != 4:
            raise TypeError(
                f"complex_attend: {name} must be complex [b, heads, tokens, channels], given {each.dtype} "
                f"{list(each.shape)}; real tensors go to attend"
            )
    groups = k.shape[1]
    fit = q.shape[-1] == k.shape[-1] and k.shape[:3] == v.shape[:3] and q.shape[0] == k.shape[0]
    if not fit or not groups or q.shape[1] % groups or len({q.dtype, k.dtype, v.dtype}) > 1:
        raise ValueError(
            f"complex_attend: q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)} do not fit together: one "
            f"batch, one dtype, one width of q and k, and a number of query heads that key heads divide"
        )


def _check_scheme(scheme: Scheme, q: Tensor) -> None:
    if not isinstance(scheme, Scheme):
        raise TypeError(f"complex_attend: the fourth argument is a Scheme, given {type(scheme).__name__}")
    if scheme.heads not in (None, q.shape[1]):
        part = next(part for part in scheme.parts if getattr(part, "heads", None) == scheme.heads)
        raise ValueError(f"complex_attend: {spell(part)} was given q with {q.shape[1]} heads")
