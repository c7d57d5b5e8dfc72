"""The pieces of a scheme, for people who keep their own attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from milepost.backends.block_masks import make_block_mask, mask_mod
from milepost.backends.flex import ScoreMod, score_mod
from milepost.call.documents import over_keys
from milepost.seams.arguments import spell
from milepost.seams.demand import exact
from milepost.seams.parts import Parts


def bias(
    scheme: Parts,
    index: Tensor,
    key_index: Tensor,
    *,
    documents: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return what `Scheme.bias` promises."""
    for verb in ("place", "turn", "relate", "scale", "sharpen", "bend_rows", "rest"):
        for part in scheme.answering(verb):
            raise ValueError(f"scheme.bias: {spell(part)} does more than add to a score: it answers {verb}")
    for part in scheme.answering("bend"):
        if not getattr(part, "additive", False):
            raise ValueError(
                f"scheme.bias: {spell(part)} bends a score by more than a sum, so no bias can stand for it"
            )
    i, j = _batched(index)[:, None, :, None], _batched(key_index)[:, None, None, :]
    batch = torch.arange(max(i.shape[0], j.shape[0]), device=i.device).view(-1, 1, 1, 1)
    head = torch.arange(scheme.heads or 1, device=i.device).view(-1, 1, 1)
    learned = next((weight.dtype for weight in scheme.parameters()), torch.get_default_dtype())
    nothing = torch.zeros(1, 1, i.shape[2], j.shape[3], device=i.device, dtype=dtype or learned)
    mine, own = (None, None) if documents is None else _documents("bias", documents, i.shape[2], j.shape[3])
    longest, _ = over_keys(_batched(key_index), "amax", mine, own)
    added = scheme.bend(nothing, batch, head, i, j, (longest + 1)[:, None, :, None])
    seen = scheme.see(batch, head, i, j)
    if mine is not None and own is not None:
        together = (mine[:, None, :, None] == own[:, None, None, :]) & (mine >= 0)[:, None, :, None]
        seen = together if seen is None else seen & together
    return added if seen is None else torch.where(seen, added, -torch.inf)


def flex(
    scheme: Parts,
    index: Tensor,
    key_index: Tensor,
    *,
    documents: Tensor | None = None,
    device: torch.device | str | None = None,
) -> tuple[ScoreMod, BlockMask]:
    """Return what `Scheme.flex` promises."""
    for verb in ("place", "relate", "bend_rows", "rest"):
        for part in scheme.answering(verb):
            raise ValueError(f"scheme.flex: {spell(part)} answers {verb}, which no score_mod can do; use attend")
    device = index.device if device is None else torch.device(device)
    i, j = _batched(index).to(device), _batched(key_index).to(device)
    mine, own = (None, None)
    if documents is not None:
        mine, own = _documents("flex", documents.to(device), i.shape[1], j.shape[1])
    longest, _ = over_keys(j, "amax", mine, own)
    sharpness = scheme.sharpen(i, longest + 1)
    rows = max(i.shape[0], j.shape[0], 1 if own is None else own.shape[0])
    heads = scheme.heads if any(getattr(part, "by_head", False) for part in scheme.answering("see")) else None
    mask = mask_mod(scheme, i, j, mine, own)
    return (
        score_mod(scheme, i, j, longest + 1, sharpness),
        make_block_mask(mask, rows if rows > 1 else None, heads, i.shape[1], j.shape[1], device),
    )


def _documents(piece: str, documents: Tensor, t: int, s: int) -> tuple[Tensor, Tensor]:
    """The documents of the queries and of the keys; the queries are the last t."""
    own = _batched(documents, "documents")
    if own.shape[1] != s:
        raise ValueError(
            f"scheme.{piece}: documents has {own.shape[1]} entries, but there are {s} keys; give one for each key"
        )
    return own[:, s - t :], own


def _batched(values: Tensor, name: str = "index") -> Tensor:
    values = exact(f"scheme.bias and scheme.flex: {name}", values, fractions=name == "index")
    return values[None] if values.dim() == 1 else values
