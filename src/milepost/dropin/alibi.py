"""ALiBi as tensors to add: the slopes, BLOOM's row for each head, and Baichuan's mask."""

import torch
from torch import Tensor

from milepost.methods.alibi import Alibi
from milepost.scheme import Scheme
from milepost.seams import demand
from milepost.seams.visible import causal


def get_slopes(n: int) -> list[float]:
    """Return the slope of each of n heads, by the authors' rule where n is not a power of two."""
    demand.whole(get_slopes, "n", n)
    return [float(slope) for slope in Alibi(n).slopes().behind]


def build_alibi_tensor(attention_mask: Tensor, num_heads: int, dtype: torch.dtype) -> Tensor:
    """BLOOM's form: slope times the position of each key, [b·h 1 s].

        alibi[b·h, 0, j]  =  slope_h · (number of tokens of row b before j),  0 for padding

    attention_mask: [b s], 1 for a token and 0 for padding, on either side; with a cache, of all tokens so far.
    It grows with the position where the paper's penalty grows with the distance; under a softmax these are the same.
    Padding must be masked as well. A half dtype is too coarse far from 0: there gen_alibi_mask keeps near keys exact.
    """
    demand.whole(build_alibi_tensor, "num_heads", num_heads)
    if attention_mask.dim() != 2:
        raise ValueError(f"build_alibi_tensor: attention_mask is [b s]; given {list(attention_mask.shape)}")
    if demand.checking_values(attention_mask):
        wrong = attention_mask[(attention_mask != 0) & (attention_mask != 1)]
        if wrong.numel():
            raise ValueError(
                f"build_alibi_tensor: attention_mask has {wrong[0].item():g}; it is 1 for a token and 0 for padding"
            )
    # Counted in integers: a bfloat16 mask could not count past 256.
    token = attention_mask.long()
    position = (token.cumsum(-1) - 1) * token
    slopes = Alibi(num_heads).slopes().behind.to(position.device)
    return (slopes[:, None] * position[:, None, :]).to(dtype).reshape(-1, 1, position.shape[1])


def gen_alibi_mask(n_head: int, max_pos: int, *, queries: int | None = None) -> Tensor:
    """Baichuan's form: penalty and causal mask in one, [n_head max_pos max_pos].

        mask[h, i, j]  =  −slope_h · (i − j) for j ≤ i,  −∞ ahead of the query

    Each row differs by a constant from slope · j, so a softmax gives the same, but this one survives a cast to
    bfloat16: close keys keep small, exact numbers. With a cache, the last t queries want the last t rows,
    mask[:, −t:], or queries=t, which builds no others.
    """
    demand.whole(gen_alibi_mask, "n_head", n_head)
    demand.whole(gen_alibi_mask, "max_pos", max_pos)
    t = max_pos if queries is None else queries
    demand.whole(gen_alibi_mask, "queries", t)
    if t > max_pos:
        raise ValueError(f"gen_alibi_mask(queries={t}): queries are the last of max_pos={max_pos} tokens, so not more")
    index = torch.arange(max_pos)
    return Scheme(Alibi(n_head), causal).bias(index[max_pos - t :], index)[0]
