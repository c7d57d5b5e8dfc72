"""Other people's modules, made small and random in float64, and what their float32 steps may cost at most."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
Tables = tuple[Tensor, ...]
EXACT = 1e-10
"""How far apart two float64 results may be."""
U = 2.0**-24
"""Half a unit in the last place of float32: rounding a number costs it this share of itself at most."""


def random(module: M, seed: int = 0) -> M:
    """The module in float64, every weight drawn anew, so that none of them is zero or one."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double().eval()
    for weight in module.parameters():
        std = 0.5 if weight.dim() == 1 else weight.shape[-1] ** -0.5
        weight.data.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) * std)
    return module


def tokens(b: int, t: int, width: int, seed: int = 1) -> Tensor:
    """Hidden states [b t width]."""
    return torch.randn(b, t, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def split(x: Tensor, dim: int) -> Tensor:
    """[b t h·dim] as heads [b h t dim]."""
    return x.unflatten(-1, (-1, dim)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """Heads [b h t dim] side by side, [b t h·dim]."""
    return x.transpose(1, 2).flatten(2)


def hides(seen: Tensor) -> Tensor:
    """What transformers adds to scores: 0 where a key is seen, the least float64 where it is not."""
    return torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, torch.finfo(torch.float64).min)


def behind(t: int, s: int | None = None) -> Tensor:
    """Which of s keys the last t queries see, [t s]: those up to their own."""
    s = t if s is None else s
    return torch.arange(s) <= torch.arange(s - t, s)[:, None]


def left_padded(b: int, t: int, pads: tuple[int, ...]) -> Tensor:
    """Which tokens are real, [b t] of 0 and 1; row n begins with pads[n] that are not."""
    return (torch.arange(t) >= torch.tensor(pads)[:, None]).long().expand(b, t)


def turns(position: Tensor, dim: int, theta: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines of position · θ^(−2n/dim) in float64, [… t dim/2]."""
    n = torch.arange(dim // 2, dtype=torch.float64)
    angle = position.double()[..., None] * theta ** (-2 * n / dim)
    return angle.cos(), angle.sin()


def halves(cos: Tensor, sin: Tensor) -> Tables:
    """[c₀ c₁ … c₀ c₁ …], as Llama has them."""
    return torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)


def twice(cos: Tensor, sin: Tensor) -> Tables:
    """[c₀ c₀ c₁ c₁ …]."""
    return cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)


def image_ids() -> Tensor:
    """The ids [3 b t] that Qwen2-VL gives text, an image of 2 × 3 merged patches, text, a video of 2 frames, text."""
    from transformers import Qwen2VLConfig, Qwen2VLModel

    config = Qwen2VLConfig(text_config={"num_hidden_layers": 0}, vision_config={"depth": 0})
    with torch.device("meta"):
        model = Qwen2VLModel(config)
    kinds = [0] * 4 + [1] * 6 + [0] * 3 + [2] * 8 + [0] * 2
    kinds = torch.tensor([kinds, [0] * len(kinds)])
    grids = {"image_grid_thw": torch.tensor([[1, 4, 6]]), "video_grid_thw": torch.tensor([[2, 4, 4]])}
    ids, _ = model.get_rope_index(torch.zeros_like(kinds), kinds, **grids)
    return ids


def score_sizes(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The most that the scaled dot product of a query with any key can be, [b h t 1]."""
    longest = k.norm(dim=-1).amax(-1).repeat_interleave(q.shape[1] // k.shape[1], 1)
    return (q.norm(dim=-1) * longest[..., None])[..., None] * scale


def weight_error(size: Tensor, keys: int) -> Tensor:
    """The relative error of softmax weights taken in float32, for scores of at most that size, [b h t 1].

    A score is rounded (size · U), the row's largest is taken off and that rounded too (2 · size · U), and e^x is good
    to two U. The sum of the row carries as much and U for each addition, and the division two U more.
    """
    return (6 * size + keys + 6) * U


def output_error(error: Tensor, weights: Tensor, v: Tensor, project: Tensor) -> Tensor:
    """What such errors of the weights [b h t s] cost the output, after a projection [out in]: [b t out]."""
    v = v.abs().repeat_interleave(weights.shape[1] // v.shape[1], 1)
    return merge(error * (weights.abs() @ v)) @ project.abs().T + EXACT


def assert_within(ours: Tensor, theirs: Tensor, allowed: Tensor) -> None:
    """No two numbers further apart than allowed for them; NaN never passes."""
    apart = (ours - theirs).abs()
    assert (apart <= allowed).all(), f"apart by {float((apart / allowed).max()):.3g} times what is allowed"


def table_error(position: Tensor, dim: int, theta: float) -> Tensor:
    """How far float32 cosines and sines are from the true ones, [… t dim/2].

    θ^(2n/dim) with its exponent rounded is off by ln θ · 2n/dim · U; the power, its inverse and the product with the
    position add two U each at most. The angle is off by so much of itself (that of n = 0, the position itself, is
    exact), and its cosine by two U more.
    """
    share = 2 * torch.arange(dim // 2, dtype=torch.float64) / dim
    angle = position.double()[..., None] * theta**-share
    return angle.abs() * torch.where(share > 0, math.log(theta) * share + 6, 0) * U + 2 * U
