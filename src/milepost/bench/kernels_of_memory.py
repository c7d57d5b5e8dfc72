# pyright: basic, reportMissingImports=false
"""What is bound by memory, on a GPU: rotation beside a copy. Run by `python -m milepost.bench.kernels`."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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


def rotation(results: list[dict[str, Any]]) -> None:
    """Rotating q and k beside copying them, in the layouts [b h t d] and [b t h d]."""
    for b, t, h, g, d in ((4, 4096, 32, 8, 128), (1, 32768, 32, 8, 128), (8, 2048, 16, 16, 64)):
        for layout in ("bhtd", "bthd"):
            q, k = inputs(b, h, t, d, g=g)[:2]
            if layout == "bthd":
                q, k = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k))
            times = timed(rotations(q, k), rounds=2)
            copy = times.pop("copy")
            print(f"\nrotation b{b} t{t} h{h} g{g} d{d} {layout}: copy {copy * 1e3:.1f} µs; warps, heads:")
            for name, ms in sorted(times.items(), key=lambda x: x[1]):
                print(f"  {name}: {ms * 1e3:.1f} µs, {copy / ms:.0%} of a copy's speed")
                row = {"what": "rotation", "shape": [b, t, h, g, d], "layout": layout, "config": str(name)}
                results.append({**row, "ms": ms, "copy": copy})


def rotations(q: Tensor, k: Tensor) -> dict[Any, Work]:
    """A copy of q and k, and their rotation under several settings."""
    from milepost.backends.triton import rotary

    t, d = q.shape[2:]
    pair = torch.arange(d // 2, device="cuda", dtype=torch.float64)
    angle = torch.arange(t, device="cuda")[:, None] * 10000.0 ** (-2 * pair / d)
    cos, sin = angle.cos().float()[None], angle.sin().float()[None]
    copies = torch.empty_like(q), torch.empty_like(k)

    def rotate(setting: tuple[int, int], neighbours: bool) -> object:
        rotary.SETTINGS.update(zip(("warps", "heads"), setting, strict=True))
        return torch.ops.milepost.rotate_qk(q, k, cos, sin, None, None, neighbours, False)

    contenders: dict[Any, Work] = {"copy": lambda: (copies[0].copy_(q), copies[1].copy_(k))}
    for setting in ((4, 4), (4, 2), (4, 1), (4, 8), (8, 4), (8, 2), (2, 4)):
        contenders[(*setting, "halves")] = functools.partial(rotate, setting, False)
        contenders[(*setting, "neighbours")] = functools.partial(rotate, setting, True)
    return contenders
