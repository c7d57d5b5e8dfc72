"""RoPE as the Hugging Face Llama had it, tables of cosines and sines, and as one call on queries and keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from milepost.dropin.tables import Tabled, count, paired
from milepost.methods.rope import Rope
from milepost.numerics.rotation import rotate
from milepost.seams import demand
from milepost.seams.rotary import over_heads


def rotary_position_embedding(q: Tensor, k: Tensor, *, start: int = 0) -> tuple[Tensor, Tensor]:
    """Turn neighbouring channels of queries and keys by their positions.

    q: [b h t d], k: [b g s d]; returns both in their own shapes and dtypes. Keys stand at start … start + s − 1 and
    queries are the last t of them, so raw cached keys may be given whole; or only the new ones, with start the number
    of tokens before them.
    """
    given = f"q {list(q.shape)}, k {list(k.shape)}"
    if q.dim() != 4 or k.dim() != 4 or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"rotary_position_embedding: q is [b h t d] and k [b g s d]; given {given}")
    paired("rotary_position_embedding", q=q)
    t, s = q.shape[2], k.shape[2]
    if t > s:
        raise ValueError(
            f"rotary_position_embedding: queries are the last of the keys, but there are {t} queries and {s} keys; "
            f"given {given}"
        )
    start = count("rotary_position_embedding", "start", start)
    rope = Rope(q.shape[3], pairs="neighbours")
    position = torch.arange(start, start + s, device=q.device)
    return rope.turn(q, position[s - t :]), rope.turn(k, position, "key")


class LlamaRotaryEmbedding(Tabled):
    """Cosines and sines of every position, for apply_rotary_pos_emb.

    The tables grow where a longer text needs them. Nothing is saved in the state_dict; an `inv_freq` in one that was
    saved by older code is passed over. Angles are formed in float64, and casting the module does not touch them.
    """

    cos_cached: Tensor
    sin_cached: Tensor

    def __init__(
        self,
        head_dim: int,
        max_position_embeddings: int = 2048,
        base: float = 10000,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        demand.even(self, "head_dim", head_dim, "channels are turned in pairs")
        demand.whole(self, "max_position_embeddings", max_position_embeddings)
        demand.finite(self, "base", base, above=1)
        self.rope = Rope(head_dim, theta=base)
        self.hold(max_position_embeddings, device)
        self.register_load_state_dict_pre_hook(_pass_over)

    @property
    def max_seq_len_cached(self) -> int:
        """How many positions the tables hold now."""
        return self.cos_cached.shape[2]

    def tables(self, position: Tensor) -> dict[str, Tensor]:
        cos, sin = (torch.cat((each, each), -1)[None, None] for each in self.rope.cos_sin(position))
        return {"cos_cached": cos, "sin_cached": sin}

    def forward(self, x: Tensor, seq_len: int | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Cosines and sines [1 1 seq_len head_dim] of positions 0 … seq_len − 1, in the dtype of x.

        x: [b h t d]. seq_len is t if left out; with a cache it counts the cached tokens too.
        """
        if not x.is_floating_point():
            raise TypeError(f"LlamaRotaryEmbedding: x must be of a floating dtype, given {x.dtype}")
        if seq_len is None and x.dim() < 2:
            raise ValueError(f"LlamaRotaryEmbedding: x is [b h t d]; given {list(x.shape)}")
        end = x.shape[-2] if seq_len is None else count("LlamaRotaryEmbedding", "seq_len", seq_len)
        self.need(end, x.device)
        return self.cos_cached[:, :, :end].to(x.dtype), self.sin_cached[:, :, :end].to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    """Turn each pair (n, n + d/2) of the last axis by a right angle: (a, b) becomes (−b, a)."""
    paired("rotate_half", x=x)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Turn pairs (n, n + d/2) of queries and keys by the rows of two tables.

    q: [b h t d], k: [b g t d]; returns both in their own shapes and dtypes, whatever the dtype of the tables.
    cos, sin: [1 1 n d] from LlamaRotaryEmbedding, or [n d]; both halves of a row hold the same d/2 numbers.
    position_ids: integers [t], [1 t] or [b t]: which row each token takes.
    """
    given = f"q {list(q.shape)}, k {list(k.shape)}"
    if q.dim() != 4 or k.dim() != 4 or (q.shape[0], *q.shape[2:]) != (k.shape[0], *k.shape[2:]):
        raise ValueError(f"apply_rotary_pos_emb: q is [b h t d] and k [b g t d]; given {given}")
    paired("apply_rotary_pos_emb", q=q)
    b, t, d = q.shape[0], q.shape[2], q.shape[3]
    if cos.shape != sin.shape or cos.dim() < 2 or cos.shape[-1] != d or cos.shape[:-2].numel() != 1:
        raise ValueError(
            f"apply_rotary_pos_emb: cos and sin are [1, 1, n, {d}] or [n, {d}]; "
            f"given {list(cos.shape)} and {list(sin.shape)}"
        )
    rows = cos.shape[-2]
    _check_ids(position_ids, b, t, rows)
    cos, sin = (over_heads(table.reshape(rows, d)[:, : d // 2][position_ids]) for table in (cos, sin))
    return rotate(q, cos, sin), rotate(k, cos, sin)


def _check_ids(position_ids: Tensor, b: int, t: int, rows: int) -> None:
    """Demand integers of a known shape that name rows of the tables."""
    if position_ids.is_floating_point() or position_ids.is_complex() or position_ids.dtype == torch.bool:
        raise TypeError(f"apply_rotary_pos_emb: position_ids must be integers, given {position_ids.dtype}")
    if position_ids.shape not in ((t,), (1, t), (b, t)):
        raise ValueError(
            f"apply_rotary_pos_emb: position_ids must be [{t}], [1, {t}] or [{b}, {t}], "
            f"given {list(position_ids.shape)}"
        )
    if not demand.checking_values(position_ids.device) or not position_ids.numel():
        return
    least, most = int(position_ids.min()), int(position_ids.max())
    if least < 0:
        raise ValueError(f"apply_rotary_pos_emb: position_ids holds {least}; positions count from 0, also for padding")
    if most >= rows:
        raise ValueError(
            f"apply_rotary_pos_emb: position_ids holds {most}, but cos and sin have {rows} rows; "
            f"ask LlamaRotaryEmbedding for more: seq_len={most + 1}"
        )


def _pass_over(module: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Forget what older code saved and nobody needs: it follows from the constructor's arguments."""
    state_dict.pop(f"{prefix}inv_freq", None)
