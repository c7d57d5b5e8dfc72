# pyright: basic, reportMissingImports=false, reportArgumentType=false
"""What is bound by memory, on a GPU: rotation, decoding; plain attention, too. `python -m milepost.bench.kernels`."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

Work = Callable[[], object]
SEED = 7


def inputs(b: int, h: int, t: int, d: int, s: int | None = None, g: int | None = None) -> list[Tensor]:
    """q, k, v and a gradient of the output, in bfloat16."""
    made = torch.Generator("cuda").manual_seed(SEED)
    shapes = ((b, h, t, d), (b, g or h, s or t, d), (b, g or h, s or t, d), (b, h, t, d))
    return [torch.randn(shape, device="cuda", generator=made).bfloat16() for shape in shapes]


def timed(contenders: dict[Any, Work], rounds: int = 3, rep: int = 20) -> dict[Any, float]:
    """The median milliseconds of each; they take turns."""
    from triton.testing import do_bench

    times: dict[Any, list[float]] = {}
    for _ in range(rounds):
        for name, work in contenders.items():
            try:
                times.setdefault(name, []).append(do_bench(work, warmup=5, rep=rep, return_mode="median"))
            except Exception as error:
                print(f"  failed: {name}: {short(error)}")
    return {name: statistics.median(each) for name, each in times.items() if each}


def short(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def limits(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> tuple[float, float]:
    """Plain causal SDPA, by the vendor's kernel: forward, forward and backward."""
    leaves = [each.detach().requires_grad_() for each in (q, k, v)]

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    times = timed(
        {
            "forward": lambda: plain(q, k, v),
            "both": lambda: torch.autograd.grad(plain(leaves[0], leaves[1], leaves[2]), leaves, grad),
        },
        rep=50,
    )
    return times["forward"], times["both"]


def rotation(results: list[dict[str, Any]]) -> None:
    """Rotating q and k beside copying them, in the layouts [b h t d] and [b t h d]."""
    for b, t, h, g, d in ((4, 4096, 32, 8, 128), (1, 32768, 32, 8, 128), (8, 2048, 16, 16, 64)):
        for layout in ("bhtd", "bthd"):
            q, k = inputs(b, h, t, d, g=g)[:2]
            if layout == "bthd":
                q, k = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k))
            times, recorded = timed(rotations(q, k), rounds=2), in_graphs(rotations(q, k))
            copy = times.pop("copy")
            print(f"\nrotation b{b} t{t} h{h} g{g} d{d} {layout}: copy {copy * 1e3:.1f} µs; warps, heads:")
            for name, ms in sorted(times.items(), key=lambda x: x[1]):
                graph = recorded.get(name, float("nan"))
                print(
                    f"  {name}: {ms * 1e3:.1f} µs ({copy / ms:.0%} of a copy's speed), in a graph {graph * 1e3:.1f} µs"
                )
                row = {"what": "rotation", "shape": [b, t, h, g, d], "layout": layout, "config": str(name)}
                results.append({**row, "ms": ms, "graph": graph, "copy": copy, "copy graph": recorded.get("copy")})


def rotations(q: Tensor, k: Tensor) -> dict[Any, Work]:
    """A copy of q and k, and their rotation under several settings."""
    from milepost.backends.triton import rotary

    t, d = q.shape[2:]
    pair = torch.arange(d // 2, device="cuda", dtype=torch.float64)
    angle = torch.arange(t, device="cuda")[:, None] * 10000.0 ** (-2 * pair / d)
    cos, sin = angle.cos().float()[None], angle.sin().float()[None]
    copies = torch.empty_like(q), torch.empty_like(k)

    def rotate(setting: tuple[int, int, int], neighbours: bool) -> object:
        chosen, rotary.shares_of = rotary.shares_of, lambda *_: rotary.Shares(*setting)
        try:
            return torch.ops.milepost.rotate_qk(q, k, cos, sin, None, None, neighbours, False)
        finally:
            rotary.shares_of = chosen

    contenders: dict[Any, Work] = {"copy": lambda: (copies[0].copy_(q), copies[1].copy_(k))}
    for setting in ((4, 4, 16), (4, 4, 4), (4, 2, 8), (8, 8, 4), (8, 4, 8), (2, 4, 16), (2, 2, 4)):
        contenders[(*setting, "halves")] = functools.partial(rotate, setting, False)
        contenders[(*setting, "neighbours")] = functools.partial(rotate, setting, True)
    return contenders


def decoding(results: list[dict[str, Any]]) -> None:
    """One query a row against many keys, beside the time it takes to read them, and beside SDPA."""
    for b, s, h, g, d in ((16, 32768, 32, 8, 128), (1, 8192, 32, 8, 128), (1, 131072, 32, 8, 128)):
        q, k, v = inputs(b, h, 1, d, s, g)[:3]
        eager = timed(steps(q, k, v), rounds=2)
        recorded = in_graphs(steps(q, k, v))
        # A copy reads and writes, so half of it reads all keys, and as much again all values.
        floor = eager.pop("copy of k")
        recorded.pop("copy of k", None)
        print(
            f"\ndecoding b{b} s{s} h{h} g{g} d{d}: reading takes {floor * 1e3:.1f} µs; keys, warps, stages, programs:"
        )
        for name, ms in sorted(eager.items(), key=lambda x: recorded.get(x[0], x[1])):
            graph = recorded.get(name, float("nan"))
            print(f"  {name}: {ms * 1e3:.1f} µs, in a graph {graph * 1e3:.1f} µs, {floor / graph:.0%} of reading speed")
            row = {"what": "decoding", "shape": [b, s, h, g, d], "config": str(name), "ms": ms, "graph": graph}
            results.append({**row, "floor": floor})


def steps(q: Tensor, k: Tensor, v: Tensor) -> dict[Any, Work]:
    """A step of decoding under several settings, with raw keys, with a table, and SDPA's."""
    from milepost.backends.triton import decode

    (_, h, _, _), s = q.shape, k.shape[2]
    angle = torch.rand(1, s, q.shape[3] // 2, device="cuda")
    cos, sin = angle.cos(), angle.sin()
    table = torch.randn(h, 256, device="cuda")
    other = torch.empty_like(k)

    def step(setting: tuple[int, int, int, int], **options: Any) -> object:
        decode.SETTINGS.update(dict.fromkeys(decode.SETTINGS, decode.Setting(*setting)))
        return decode.decode(q, k, v, **options)

    tried = (
        (32, 2, 3, 512), (32, 4, 3, 264), (64, 4, 3, 528), (64, 4, 4, 528), (128, 8, 3, 264), (32, 4, 4, 528),
        (64, 4, 3, 264), (64, 8, 3, 528), (64, 4, 3, 1056), (128, 4, 2, 528),
    )  # fmt: skip
    contenders: dict[Any, Work] = {
        "copy of k": lambda: other.copy_(k),
        "SDPA": lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True),
    }
    for setting in tried:
        contenders[setting] = functools.partial(step, setting)
    for setting in tried[:2]:
        contenders[(*setting, "raw keys")] = functools.partial(step, setting, key_cos=cos, key_sin=sin)
        contenders[(*setting, "table")] = functools.partial(step, setting, table=table)
        contenders[(*setting, "window")] = functools.partial(step, setting, behind=1024, sinks=4)
    return contenders


def in_graphs(contenders: dict[Any, Work]) -> dict[Any, float]:
    """Milliseconds of each, replayed from a CUDA graph, so that the host's time is left out."""
    from triton.testing import do_bench_cudagraph

    times: dict[Any, float] = {}
    for name, work in contenders.items():
        try:
            times[name] = do_bench_cudagraph(work, rep=20, return_mode="median")
        except Exception as error:
            print(f"  failed in a graph: {name}: {short(error)}")
    return times
