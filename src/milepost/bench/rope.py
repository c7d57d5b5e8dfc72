"""The turn itself: q and k rotated and differentiated, beside transformers' eager code."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost import Rope, rotate
from milepost.bench.timing import race, table


def main() -> None:
    """Print the table."""
    try:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb  # pyright: ignore
    except ImportError as missing:
        raise ImportError("this benchmark runs beside transformers: pip install 'milepost[bench]'") from missing

    torch.manual_seed(0)
    q, k = (torch.randn(2, 32, 2048, 128, requires_grad=True) for _ in range(2))
    grads = torch.randn_like(q), torch.randn_like(k)
    cos, sin = Rope(128).cos_sin(torch.arange(2048))
    wide_cos, wide_sin = (torch.cat((each, each), -1)[None] for each in (cos, sin))

    def theirs(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return apply_rotary_pos_emb(q, k, wide_cos, wide_sin)  # pyright: ignore

    def ours(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rotate(q, cos, sin), rotate(k, cos, sin)

    compiled = torch.compile(ours, fullgraph=True)
    contenders = {"transformers, eager": theirs, "milepost, eager": ours, "milepost, compiled": compiled}
    forward = race({name: lambda turn=turn: turn(q.detach(), k.detach()) for name, turn in contenders.items()}, 9)
    table("RoPE on q and k [2, 32, 2048, 128], float32, cos and sin given, forward", forward, "transformers, eager")
    both = race(
        {name: lambda turn=turn: torch.autograd.grad(turn(q, k), (q, k), grads) for name, turn in contenders.items()}, 9
    )
    table("the same, forward and backward", both, "transformers, eager")
    ratio = both["transformers, eager"] / both["milepost, compiled"]
    print(f"  compiled, milepost is {ratio:.1f} times as fast as transformers' eager code")
