"""Attention as `attend` chooses to run it, beside plain causal attention without positions: needs a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from milepost import (
    Alibi,
    Kerple,
    Pivot,
    Rerope,
    Rope,
    Sandwich,
    Scheme,
    SelfExtend,
    SoftCap,
    T5Bias,
    Yarn,
    attend,
    causal,
    explain,
    sinks,
    window,
)

SHAPES = {"A, b4 h16 t4096 d64": (4, 16, 4096, 64), "B, b1 h16 t16384 d128": (1, 16, 16384, 128)}
ROUNDS = 15
CACHE = 256 << 20
"""Bytes that are written between two calls, more than the device keeps."""
DOCUMENTS = 16
"""How many texts of equal length are packed into a row."""


def schemes(heads: int, dim: int) -> dict[str, Scheme]:
    """What is measured."""
    return {
        "RoPE": Scheme(Rope(dim), causal),
        "RoPE with YaRN": Scheme(Rope(dim, stretch=Yarn(8, 4096)), causal),
        "ALiBi": Scheme(Alibi(heads), causal),
        "T5": Scheme(T5Bias(heads), causal),
        "KERPLE": Scheme(Kerple(heads), causal),
        "Sandwich": Scheme(Sandwich(heads, dim), causal),
        "soft cap": Scheme(SoftCap(30.0), causal),
        "RoPE, window of 1024 with 4 sinks": Scheme(Rope(dim), causal & (window(1024) | sinks(4))),
        "RoPE with ReRoPE": Scheme(Rope(dim), Rerope(512), causal),
        "RoPE with ReRoPE and Pivot": Scheme(Rope(dim), Pivot(Rerope(512), 4096), causal),
        "RoPE with Self-Extend": Scheme(Rope(dim), SelfExtend(8, 1024), causal),
    }


def packed_schemes(heads: int, dim: int) -> dict[str, Scheme]:
    """What is measured on packed documents."""
    return {
        "nothing": Scheme(causal),
        "RoPE": Scheme(Rope(dim), causal),
        "ALiBi": Scheme(Alibi(heads), causal),
        "T5": Scheme(T5Bias(heads), causal),
        "KERPLE": Scheme(Kerple(heads), causal),
        "RoPE, window of 256 with 4 sinks": Scheme(Rope(dim), causal & (window(256) | sinks(4))),
        "RoPE with ReRoPE": Scheme(Rope(dim), Rerope(512), causal),
    }


def main() -> None:
    """Print the tables."""
    if not torch.cuda.is_available():
        print("\nattention as attend chooses: needs a GPU, skipped")
        return
    for title, (b, h, t, d) in SHAPES.items():
        torch.manual_seed(0)
        q, k, v = (torch.randn(b, h, t, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        grad = torch.randn_like(q)
        plain = _times(lambda q=q, k=k, v=v: sdpa(q, k, v, is_causal=True), (q, k, v), grad)
        print(f"\n{title}, bfloat16, × plain causal SDPA ({plain[0]:.3f} and {plain[1]:.3f} ms)")
        print(f"  {'':<36} {'backend':<10} {'forward':>8} {'forward and backward':>22}")
        for name, scheme in schemes(h, d).items():
            _row(name, scheme.cuda(), q, k, v, grad, plain)
        _packed(q, k, v, grad)


def _packed(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> None:
    """Rows of several documents, beside the same documents as a batch of plain causal attention."""
    b, h, t, d = q.shape
    documents = torch.arange(t, device=q.device) * DOCUMENTS // t
    apart = [
        each.detach().view(b, h, DOCUMENTS, -1, d).transpose(1, 2).flatten(0, 1).contiguous()
        for each in (q, k, v, grad)
    ]
    alone = [each.requires_grad_() for each in apart[:3]]
    plain = _times(lambda: sdpa(alone[0], alone[1], alone[2], is_causal=True), tuple(alone), apart[3])
    print(
        f"  {DOCUMENTS} documents a row, × plain causal SDPA of them as a batch ({plain[0]:.3f} and {plain[1]:.3f} ms)"
    )
    for name, scheme in packed_schemes(h, d).items():
        _row(name, scheme.cuda(), q, k, v, grad, plain, documents)


def _row(
    name: str, scheme: Scheme, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, plain: tuple[float, float],
    documents: Tensor | None = None,
) -> None:  # fmt: skip
    """Measure one scheme, and print its times as multiples of plain attention's."""
    run = _attending(q, k, v, scheme, documents)
    ours = _times(run, (q, k, v, *scheme.parameters()), grad)
    backend = explain(scheme, q, k, v, documents=documents).backend
    print(f"  {name:<36} {backend:<10} {ours[0] / plain[0]:>8.2f} {ours[1] / plain[1]:>22.2f}")


def _attending(q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, documents: Tensor | None) -> Callable[[], Tensor]:
    return lambda: attend(q, k, v, scheme, documents=documents)


def _times(run: Callable[[], Tensor], leaves: tuple[Tensor, ...], grad: Tensor) -> tuple[float, float]:
    """Median milliseconds forward, and forward with backward, by the device's own clock."""

    def forward() -> None:
        with torch.no_grad():
            run()

    def both() -> None:
        torch.autograd.grad(run(), leaves, grad)

    return _median(forward), _median(both)


def _median(work: Callable[[], None]) -> float:
    """The median over calls that follow one another without waiting, each with a cold cache."""
    for _ in range(3):
        work()
    cold = torch.empty(CACHE, dtype=torch.int8, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(ROUNDS)]
    for start, end in events:
        cold.zero_()
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)
