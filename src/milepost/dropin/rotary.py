"""RoPE as transformers' Llama applies it, by tables of cosines and sines, and as one call on queries and keys."""

import torch
from torch import Tensor

from milepost.dropin.tables import count, paired
from milepost.methods.rope import Rope
from milepost.numerics.rotation import rotate
from milepost.seams import demand
from milepost.seams.rotary import over_heads

ALIKE = 2**-6
"""How far the halves of a row may differ: twice the step of bfloat16 below 2."""


def rotary_position_embedding(q: Tensor, k: Tensor, *, start: int = 0) -> tuple[Tensor, Tensor]:
    """Rotate neighbouring channels of queries and keys by their positions.

    q: [b h t d], k: [b g s d]; returns both in their own shapes and dtypes. Keys are at start … start + s − 1,
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


def rotate_half(x: Tensor) -> Tensor:
    """Rotate each pair (n, n + d/2) of the last axis by a right angle: (a, b) becomes (−b, a)."""
    paired("rotate_half", x=x)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def apply_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor | int | None = None, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """Rotate pairs (n, n + d/2) of queries and keys by cosines and sines.

    q: [b h t d], k: [b g t d]; returns both in their own shapes and dtypes, whatever the dtype of the tables. With
    unsqueeze_dim=2 they are [b t h d] and [b t g d].
    cos, sin: the rows of the tokens, [b t d] or [1 t d], as LlamaRotaryEmbedding(config)(x, position_ids) gives them;
    position_ids are ignored then. Or a table [1 1 n d] or [n d], as older code has it, with position_ids, integers [t],
    [1 t] or [b t], for the row that each token takes; a table of t rows needs none. Both halves of a row are alike.
    Narrower ones rotate the first channels and leave the others (GPT-NeoX, Phi-3).
    A number as the fifth argument is unsqueeze_dim, as in today's transformers.
    """
    if isinstance(position_ids, int):
        position_ids, unsqueeze_dim = None, position_ids
    axis = _token_axis(unsqueeze_dim)
    given = f"q {list(q.shape)}, k {list(k.shape)}"
    if q.dim() != 4 or k.dim() != 4 or any(q.shape[n] != k.shape[n] for n in (0, axis, 3)):
        laid = "q is [b h t d] and k [b g t d]" if axis == 2 else "with unsqueeze_dim=2 q is [b t h d] and k [b t g d]"
        raise ValueError(f"apply_rotary_pos_emb: {laid}; given {given}")
    paired("apply_rotary_pos_emb", q=q, cos=cos)
    _check_tables(cos, sin, q.shape[0], q.shape[axis], q.shape[3])
    width = cos.shape[-1]
    cos, sin = (_row_of_each(table, position_ids, q.shape[0], q.shape[axis]) for table in (cos, sin))
    _check_halves(cos, sin, q.shape[3])
    cos, sin = cos[..., : width // 2], sin[..., : width // 2]
    cos, sin = (each.unsqueeze(-2) if axis == 1 else over_heads(each) for each in (cos, sin))
    turned = (rotate(x[..., :width], cos, sin) for x in (q, k))
    if width == q.shape[3]:
        q, k = turned
    else:
        q, k = (torch.cat((part, x[..., width:]), -1) for part, x in zip(turned, (q, k), strict=True))
    return q, k


def _token_axis(unsqueeze_dim: int) -> int:
    """Return the token axis of q and k, given where cos [b t d] gets an axis for the heads."""
    axes = {1: 2, -3: 2, 2: 1, -2: 1}
    if isinstance(unsqueeze_dim, bool) or unsqueeze_dim not in axes:
        raise ValueError(
            f"apply_rotary_pos_emb(unsqueeze_dim={unsqueeze_dim!r}): heads are on axis 1, [b h t d], or on axis 2, "
            f"[b t h d]"
        )
    return axes[unsqueeze_dim]


def _check_tables(cos: Tensor, sin: Tensor, b: int, t: int, d: int) -> None:
    """Raise unless there are two tables of one known shape, no wider than the channels."""
    chosen = cos.dim() == 3 and cos.shape[0] in (1, b) and cos.shape[1] == t
    whole = cos.dim() == 2 or (cos.dim() == 4 and cos.shape[:2].numel() == 1)
    if cos.shape != sin.shape or cos.shape[-1] > d or not (chosen or whole):
        raise ValueError(
            f"apply_rotary_pos_emb: cos and sin are [{b}, {t}, {d}], a row for each token, or a table [1, 1, n, {d}] "
            f"or [n, {d}]; given {list(cos.shape)} and {list(sin.shape)}"
        )


def _check_halves(cos: Tensor, sin: Tensor, d: int) -> None:
    """Raise where the halves of a row differ: other functions of this name read such rows in another way."""
    if not cos.numel() or not demand.checking_values(cos, sin):
        return
    by = max(float((a - b).abs().max()) for a, b in (each.detach().chunk(2, -1) for each in (cos, sin)))
    if by > ALIKE:
        raise ValueError(
            f"apply_rotary_pos_emb: the halves of a row of cos and sin differ, by {by:.2g}; a row is (angles, angles) "
            f"for pairs (n, n + {cos.shape[-1] // 2}) of {d} channels. Rows with each angle twice in a row turn "
            f"neighbours, as in Cohere: Rope(…, pairs='neighbours').turn; of rows with each angle once, as in gpt-oss, "
            f"give torch.cat((cos, cos), -1), and sin alike"
        )


def _row_of_each(table: Tensor, position_ids: Tensor | None, b: int, t: int) -> Tensor:
    """Return the row of each token, [t d] or [b t d]."""
    if table.dim() == 3:
        return table
    table = table.reshape(table.shape[-2:])
    if position_ids is not None:
        _check_ids(position_ids, b, t, len(table))
        return table[position_ids]
    if len(table) != t:
        raise ValueError(
            f"apply_rotary_pos_emb: cos and sin have {len(table)} rows for {t} tokens; give position_ids, the row that "
            f"each token takes"
        )
    return table


def _check_ids(position_ids: Tensor, b: int, t: int, rows: int) -> None:
    """Raise unless position_ids are integers of a known shape that index the tables."""
    if position_ids.is_floating_point() or position_ids.is_complex() or position_ids.dtype == torch.bool:
        raise TypeError(f"apply_rotary_pos_emb: position_ids must be integers, given {position_ids.dtype}")
    if position_ids.shape not in ((t,), (1, t), (b, t)):
        raise ValueError(
            f"apply_rotary_pos_emb: position_ids must be [{t}], [1, {t}] or [{b}, {t}], "
            f"given {list(position_ids.shape)}"
        )
    if not demand.checking_values(position_ids) or not position_ids.numel():
        return
    least, most = int(position_ids.min()), int(position_ids.max())
    if least < 0:
        raise ValueError(f"apply_rotary_pos_emb: position_ids has {least}; positions count from 0, also for padding")
    if most >= rows:
        raise ValueError(
            f"apply_rotary_pos_emb: position_ids has {most}, but cos and sin have {rows} rows; "
            f"ask LlamaRotaryEmbedding for more: seq_len={most + 1}"
        )
