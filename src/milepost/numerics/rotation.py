"""Rotating pairs of channels: the one operation behind RoPE and all its kin."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor

from milepost.memory.internals import transformed

Pairs = Literal["halves", "neighbours"]
PAIRS: tuple[Pairs, ...] = ("halves", "neighbours")


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, pairs: Pairs = "halves") -> Tensor:
    """Rotate each pair of channels of x by an angle given as its cosine and sine.

        (a, b)  ←  (a·cos − b·sin, b·cos + a·sin)

    x: [b h t d]; cos, sin: [t d/2], [b 1 t d/2] or whatever broadcasts. pairs="halves" pairs channel n with n + d/2
    (Llama, NeoX), "neighbours" pairs 2n with 2n + 1 (RoFormer, GPT-J). The product is formed in float32 or better
    and returned in the dtype of x. The gradient is the same rotation turned back.
    """
    if pairs not in PAIRS:
        raise ValueError(f"rotate(pairs={pairs!r}): pairs must be one of {', '.join(map(repr, PAIRS))}")
    wide = torch.promote_types(torch.promote_types(x.dtype, cos.dtype), torch.float32)
    # Under torch.func a tensor does not show that an outer level, or autograd outside, asks for its gradient.
    if cos.requires_grad or sin.requires_grad or torch.compiler.is_compiling() or transformed():
        turned = _flipped(x.to(wide), cos.to(wide), sin.to(wide), pairs)
    elif not (x.requires_grad and torch.is_grad_enabled()):
        # Nothing is to be remembered for a gradient, and remembering is most of what one token costs.
        turned = _eager(x.to(wide), cos.to(wide), sin.to(wide), pairs)
    else:
        turned = cast("Tensor", _Rotation.apply(x.to(wide), cos.to(wide), sin.to(wide), pairs))
    return turned.to(x.dtype)


def in_pairs(x: Tensor, pairs: Pairs) -> Tensor:
    """View channels [… d] as pairs: [… 2 d/2] for halves, [… d/2 2] for neighbours."""
    half = x.shape[-1] // 2
    return x.reshape(*x.shape[:-1], *((2, half) if pairs == "halves" else (half, 2)))


def _flipped(x: Tensor, cos: Tensor, sin: Tensor, pairs: Pairs) -> Tensor:
    """One expression over all channels: Inductor makes a single vectorised loop of it, and of its gradient."""
    axis = -2 if pairs == "halves" else -1
    pair = in_pairs(x, pairs)
    signed = torch.stack((-sin, sin), axis)
    return (pair * cos.unsqueeze(axis) + pair.flip(axis) * signed).flatten(-2)


def _eager(x: Tensor, cos: Tensor, sin: Tensor, pairs: Pairs) -> Tensor:
    """The same in the fewest passes over memory that eager torch can make."""
    if pairs == "neighbours":
        x = x if _lies_in_pairs(x) else x.clone(memory_format=torch.contiguous_format)
        pair = torch.view_as_complex(in_pairs(x, pairs))
        return torch.view_as_real(pair * torch.complex(cos, sin)).flatten(-2)
    a, b = x.chunk(2, -1)
    out = x * torch.cat((cos, cos), -1)
    out_a, out_b = out.chunk(2, -1)
    out_a.addcmul_(b, sin, value=-1)
    out_b.addcmul_(a, sin)
    return out


def _lies_in_pairs(x: Tensor) -> bool:
    """Whether neighbours can be read as complex numbers where they lie; queries and keys of a model nearly always can.

    A copy of them would take longer than the rotation.
    """
    *others, last = x.stride()
    return last == 1 and x.storage_offset() % 2 == 0 and all(each % 2 == 0 for each in others)


def waves(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of float64 angles, made once.

    Left to itself, a compiler for GPUs makes them again, in float64, for every channel of every head they turn.
    """
    if angle.is_cuda and torch.compiler.is_compiling() and not angle.requires_grad:
        return torch.ops.milepost.waves(angle)
    return angle.cos(), angle.sin()


def _waves(angle: Tensor) -> tuple[Tensor, Tensor]:
    return angle.cos(), angle.sin()


torch.library.custom_op(
    "milepost::waves", _waves, mutates_args=(), schema="(Tensor angle) -> (Tensor, Tensor)"
).register_fake(_waves)


class _Rotation(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor, pairs: Pairs) -> Tensor:
        return _eager(x, cos, sin, pairs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Pairs], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], inputs[2])
        ctx.pairs = inputs[3]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore
        cos, sin = ctx.saved_tensors
        return rotate(grad, cos, -sin, pairs=ctx.pairs), None, None, None
