"""What the kernels are held against: the same formulas, dense, in the dtype they are given."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GPU = DEVICE == "cuda"
WEIGHTS = ("slopes", "slopes_ahead", "table", "sharpen")


@dataclass
class Case:
    """q, k, v and the options of one call."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def leaves(self) -> dict[str, Tensor]:
        weights = {name: self.options[name] for name in WEIGHTS if self.options.get(name) is not None}
        return {"q": self.q, "k": self.k, "v": self.v, **weights}

    def to(self, dtype: torch.dtype, weights: torch.dtype) -> Case:
        """The same numbers in other dtypes, as leaves of their own that want a gradient."""
        moved = {
            name: each.detach().to(dtype if name in "qkv" else weights).requires_grad_()
            for name, each in self.leaves.items()
        }
        options = {**self.options, **{name: each for name, each in moved.items() if name not in "qkv"}}
        return replace(self, q=moved["q"], k=moved["k"], v=moved["v"], options=options)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, offset: int = 0, behind: int | None = None,
    ahead: int | None = None, sinks: int = 0, slopes: Tensor | None = None, slopes_ahead: Tensor | None = None,
    table: Tensor | None = None, first: int = 0, cap: float | None = None, cap_first: bool = False,
    sharpen: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out_i = Σ_j softmax_j(score) v_j over the keys that i sees, and the log of each row's sum of exponentials."""
    (_, h, t, _), (_, g, s, _) = q.shape, k.shape
    k, v = k.repeat_interleave(h // g, 1), v.repeat_interleave(h // g, 1)
    i = (offset + torch.arange(t, device=q.device))[:, None]
    j = torch.arange(s, device=q.device)[None]
    score = q @ k.mT * scale
    if sharpen is not None:
        score = score * (sharpen if sharpen.dim() == 2 else sharpen[None]).to(score.dtype)[:, None, :, None]
    if cap is not None and cap_first:
        score = cap * torch.tanh(score / cap)
    if slopes is not None:
        other = slopes if slopes_ahead is None else slopes_ahead
        slope = torch.where(j <= i, slopes[:, None, None], other[:, None, None])
        score = score - (slope * (i - j).abs()).to(score.dtype)
    if table is not None:
        last = first + table.shape[1] - 1
        score = score + table[:, (i - j).clamp(first, last) - first].to(score.dtype)
    if cap is not None and not cap_first:
        score = cap * torch.tanh(score / cap)
    visible = torch.ones(t, s, dtype=torch.bool, device=q.device)
    if ahead is not None:
        visible = visible & (j - i <= ahead)
    if behind is not None:
        visible = visible & ((i - j < behind) | (j < sinks))
    score = score.masked_fill(~visible, -math.inf)
    # A row that sees nothing: zeros and −∞, and no gradient.
    blind = ~visible.any(-1, keepdim=True)
    weights = torch.softmax(score.masked_fill(blind, 0.0), -1).masked_fill(blind, 0.0)
    lse = torch.logsumexp(score.masked_fill(blind, 0.0).to(torch.promote_types(score.dtype, torch.float32)), -1)
    return weights @ v, lse.masked_fill(blind[:, 0], -math.inf)


def random_case(seed: int) -> Case:
    """A call drawn at random: small here, larger on a GPU."""
    pick = Random(seed)
    torch.manual_seed(seed)
    b, g = pick.choice([1, 2]), pick.choice([1, 2])
    h = g * pick.choice([1, 1, 3])
    t = pick.choice([1, 63, 128, 300, 517, 700] if GPU else [1, 5, 33, 40, 66])
    s = pick.choice([t, t, t + 9, t + 64, 200 if GPU else 20])
    d = pick.choice([64, 64, 128, 40, 96, 256] if GPU else [16, 24])
    dv = pick.choice([d, d, 48 if GPU else 20])
    options: dict[str, Any] = {
        "scale": d**-0.5,
        "offset": pick.choice([0, s - t, s - t, 5, -3]),
        "behind": pick.choice([None, None, 7, 40, 129]),
        "ahead": pick.choice([0, 0, 0, None, None, 3, -2]),
        "sinks": pick.choice([0, 2, 20]),
    }
    if pick.random() < 0.4:
        options["slopes"] = torch.rand(h, device=DEVICE) * 0.2
        if pick.random() < 0.5:
            options["slopes_ahead"] = torch.rand(h, device=DEVICE) * 0.2
    if pick.random() < 0.4:
        n = pick.choice([1, 9, 50, 300])
        options.update(table=torch.randn(h, n, device=DEVICE), first=pick.choice([0, -(n // 2), 3, 1 - n]))
    if pick.random() < 0.25:
        options.update(cap=3.0, cap_first=pick.random() < 0.5)
    if pick.random() < 0.25:
        options["sharpen"] = torch.rand(*pick.choice([(t,), (b, t)]), device=DEVICE) + 0.5
    return Case(*drawn(b, h, g, t, s, d, dv, turned=pick.random() < 0.5), options)


def drawn(b: int, h: int, g: int, t: int, s: int, d: int, dv: int, turned: bool = False) -> tuple[Tensor, ...]:
    """q, k and v; turned: tokens before heads in memory."""
    shapes = ((b, h, t, d), (b, g, s, d), (b, g, s, dv))
    tensors = tuple(torch.randn(shape, device=DEVICE) for shape in shapes)
    return tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors) if turned else tensors


def off(ours: Tensor, exact: Tensor) -> float:
    """The norm of the error, as a share of the norm; what is not finite must agree."""
    ours, exact = ours.detach().double(), exact.detach().double()
    finite = exact.isfinite()
    assert torch.equal(ours.isfinite(), finite)
    ours, exact = ours[finite], exact[finite]
    return float((ours - exact).norm() / exact.norm().clamp(min=1e-3 * max(1, exact.numel()) ** 0.5))
