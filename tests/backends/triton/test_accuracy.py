"""Rounding: of random calls, outputs and every gradient are off by at most twice what plain torch is off by.

All against float64, as root mean squares. Memory that is handed out again holds NaN, so that a number nobody wrote is
seen.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.bench.harness.plain_torch import plain_attention
from tests.backends.triton.dense import DEVICE, GPU

pytest.importorskip("triton")

TIMES = 2.0
COUNT = 300 if GPU else 5
FEW = 64
VECTORS = ("Shaw", "DeBERTa", "Transformer-XL")
LONGEST = 900 if GPU else 40
Parts = Callable[[int, int], tuple[Any, ...]]
causal = mp.causal


@dataclass(frozen=True)
class Family:
    """Calls that the same kernels serve: a scheme of so many heads and channels, a dtype, and widths."""

    name: str
    parts: Parts
    dtype: torch.dtype
    width: int
    values: int


def families() -> list[Family]:
    """Twenty-five, of which no kernel is compiled more than a few times."""
    half, brain, single = torch.float16, torch.bfloat16, torch.float32
    rope = lambda h, d: (mp.Rope(d), causal)  # noqa: E731
    alibi = lambda h, d: (mp.Alibi(h), causal)  # noqa: E731
    t5 = lambda h, d: (mp.T5Bias(h), causal)  # noqa: E731
    rows: list[tuple[str, Parts, torch.dtype, int, int]] = [
        ("RoPE", rope, brain, 64, 64),
        ("YaRN", lambda h, d: (mp.Rope(d, stretch=mp.Yarn(factor=4, trained=128)), causal), brain, 128, 128),
        ("ALiBi", alibi, brain, 64, 64),
        ("T5", t5, brain, 64, 64),
        ("KERPLE", lambda h, d: (mp.Kerple(h), causal), brain, 80, 80),
        ("ReRoPE", lambda h, d: (mp.Rope(d), mp.Rerope(32), causal), brain, 64, 64),
        ("Self-Extend", lambda h, d: (mp.Rope(d), mp.SelfExtend(4, 32), causal), brain, 128, 128),
        ("Pivot", lambda h, d: (mp.Rope(d), mp.Pivot(mp.Rerope(32), 64), causal), brain, 64, 64),
        ("Dilute", lambda h, d: (mp.Rope(d), mp.Dilute(mp.Pivot(mp.Rerope(32), 64), 64), causal), brain, 64, 64),
        ("CoPE", lambda h, d: (mp.Cope(d, 16), causal), brain, 64, 64),
        ("window", lambda h, d: (mp.Rope(d), causal & (mp.window(48) | mp.sinks(2))), brain, 64, 64),
        ("soft cap", lambda h, d: (mp.Rope(d), mp.SoftCap(20.0), causal), brain, 128, 128),
        ("rest", lambda h, d: (mp.Rope(d), mp.SinkLogit(h), causal), brain, 64, 64),
        ("log-n", lambda h, d: (mp.Rope(d), mp.LogN(64), causal), brain, 64, 64),
        ("both ways", lambda h, d: (mp.Alibi(h),), brain, 64, 64),
        ("Shaw", lambda h, d: (mp.Shaw(d, reach=32, values=False), causal), brain, 64, 64),
        ("DeBERTa", lambda h, d: (mp.Deberta(32, h, d, reach=64),), brain, 64, 64),
        ("Transformer-XL", lambda h, d: (mp.TransformerXL(32, h, d, reach=64), causal), brain, 128, 128),
        ("RoPE", rope, half, 96, 64),
        ("ALiBi", alibi, half, 128, 128),
        ("T5", t5, half, 64, 32),
        ("RoPE", rope, brain, 256, 256),
        ("RoPE", rope, single, 64, 64),
        ("ALiBi", alibi, single, 16, 48),
        ("T5", t5, single, 64, 64),
    ]
    made = [Family(*row) for row in rows]
    return made if GPU else [Family(each.name, each.parts, single, 16, 16) for each in made[:: len(made) // COUNT]]


FAMILIES = families()


@dataclass
class Drawn:
    """One call."""

    scheme: mp.Scheme
    given: list[Tensor]
    grad: Tensor
    options: dict[str, Any]


def drawn(number: int, again: int = 0) -> Drawn:
    """The call of a number: sizes, grouped queries, packed rows or indices that begin far out.

    again: the same call with other numbers in its tensors.
    """
    family, luck = FAMILIES[number % len(FAMILIES)], Random(number)
    torch.manual_seed(number + 1000 * again)
    groups = luck.choice([1, 2, 3])
    heads = groups * luck.choice([1, 2, 4])
    # Plain torch makes vectors by distance for every pair.
    longest = LONGEST if family.name not in VECTORS else LONGEST // 3
    b, t = luck.choice([1, 2, 3]), luck.randint(1, longest)
    options: dict[str, Any] = {}
    s = t
    kind = luck.choice(["counted", "packed", "far", "later"])
    if kind == "packed":
        names = sorted(luck.choices(range(-1, 5), k=t))
        options["documents"] = torch.tensor([names], device=DEVICE)
    elif kind == "far":
        options |= {"index": range(10**6, 10**6 + t), "key_index": range(10**6, 10**6 + t)}
    elif kind == "later":
        s = t + luck.randint(1, longest)
    sizes = ((heads, t, family.width), (groups, s, family.width), (groups, s, family.values), (heads, t, family.values))
    *given, grad = (torch.randn(b, *each, device=DEVICE).to(family.dtype) for each in sizes)
    return Drawn(mp.Scheme(*family.parts(heads, family.width)).to(DEVICE), given, grad, options)


def answers(call: Drawn, dtype: torch.dtype, by: Callable[..., Tensor]) -> list[Tensor]:
    """The output, and the gradients of q, k, v and of what the scheme learned, in a dtype."""
    scheme = copy.deepcopy(call.scheme).to(torch.promote_types(dtype, torch.float32))
    leaves = [each.detach().to(dtype).requires_grad_() for each in call.given]
    weights = [each for each in scheme.parameters() if each.requires_grad]
    out = by(*leaves, scheme, **call.options)
    return [out, *torch.autograd.grad(out, (*leaves, *weights), call.grad.to(dtype), materialize_grads=True)]


def exactly(*given: Any, **options: Any) -> Tensor:
    return mp.attend(*given, **options, backend="reference")


def by_kernels(*given: Any, **options: Any) -> Tensor:
    return mp.attend(*given, **options, backend="triton")


def off(found: list[Tensor], exact: list[Tensor]) -> float:
    """The root mean square of the differences."""
    apart = [(a.detach().double() - b.detach()).square().mean() for a, b in zip(found, exact, strict=True)]
    return float(torch.stack(apart).mean().sqrt())


def poisoned() -> None:
    """Let go of memory that holds NaN: what is allocated next is that."""
    if GPU:
        for size in (1 << 24, 1 << 20, 1 << 16):
            del [torch.full((size,), torch.nan, device=DEVICE) for _ in range(4)][:]


@pytest.mark.parametrize("number", range(COUNT))
def test_rounding_is_at_most_twice_that_of_plain_torch(number: int):
    calls = [drawn(number)]
    dtype = calls[0].given[0].dtype
    if GPU and any(each.numel() < FEW for each in calls[0].scheme.parameters()):
        # The error of a handful of numbers is luck: there are more of them in several calls.
        calls += [drawn(number, again) for again in range(1, 8)]
    exact = [answers(call, torch.float64, exactly) for call in calls]
    plain = [answers(call, dtype, plain_attention) for call in calls]
    for by in (by_kernels, mp.attend) if GPU else (by_kernels,):
        poisoned()
        ours = [answers(call, dtype, by) for call in calls]
        for n, (a, b, c) in enumerate(zip(*(zip(*each, strict=True) for each in (ours, plain, exact)), strict=True)):
            # In float32 plain torch may be off by less than a last place, and weights here are powers of 2 and not of
            # e: no slope is a short number then. The gradient of what a scheme learned sums up all pairs, which
            # cancel, and the order of a sum is luck.
            size = off(c, [torch.zeros_like(each) for each in c])
            # Of a row that sees one key plain torch has no gradient at all, and a kernel has two sums that differ.
            least = torch.finfo(torch.float32).eps * max((16 if n > 3 else 4) * size, 4.0)
            assert off(a, c) <= TIMES * max(off(b, c), least), (FAMILIES[number % len(FAMILIES)].name, n)


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(len(FAMILIES)))
def test_the_same_bits_twice(number: int):
    call = drawn(number)
    dtype = call.given[0].dtype
    with torch.no_grad():
        first, second = (mp.attend(*call.given, call.scheme, **call.options) for _ in range(2))
    assert torch.equal(first, second)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (answers(call, dtype, mp.attend) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in itertools.zip_longest(first, second))
