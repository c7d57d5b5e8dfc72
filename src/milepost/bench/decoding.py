"""One decoding step through `Cache`, and windows over a long text: beside torch's attention on keys already turned."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from milepost import Alibi, Cache, Rerope, Rope, Scheme, Yarn, attend, causal, sinks, window
from milepost.bench.timing import race, table

PLAIN = "SDPA on keys already turned"


def main() -> None:
    """Print the tables."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.no_grad():
        shapes = ((1, 32, 8, 4096, 128), (1, 4, 4, 4096, 64))
        for shape in ((16, 32, 8, 32768, 128), *shapes) if device == "cuda" else shapes:
            _step(*shape, device, dtype)
        _window(*((1, 16, 16384, 128, 1024) if device == "cuda" else (1, 8, 8192, 64, 512)), device, dtype)


def _step(b: int, h: int, g: int, s: int, d: int, device: str, dtype: torch.dtype) -> None:
    """One token after s − 1 others."""
    q, k, v = (torch.randn(b, n, t, d, device=device, dtype=dtype) for n, t in ((h, 1), (g, s), (g, s)))
    schemes = {
        "RoPE": Scheme(Rope(d), causal),
        "RoPE with YaRN": Scheme(Rope(d, stretch=Yarn(8, 4096)), causal),
        "ALiBi": Scheme(Alibi(h), causal).to(device),
        "ReRoPE (raw keys, turned at every step)": Scheme(Rope(d), Rerope(512), causal),
    }
    contenders: dict[str, Callable[[], object]] = {PLAIN: lambda: sdpa(q, k, v, enable_gqa=h != g)}
    for name, scheme in schemes.items():
        cache = Cache(scheme)
        cache.append(k, v)
        contenders[name] = _decoding(q, cache, scheme)
    table(f"one token, b{b}, {h} heads on {g}, d{d}, {s} keys, {dtype}", race(_waited(contenders, device), 31), PLAIN)


def _decoding(q: Tensor, cache: Cache, scheme: Scheme) -> Callable[[], object]:
    return lambda: attend(q, cache.keys, cache.values, scheme, key_index=cache.index)


def _window(b: int, h: int, t: int, d: int, n: int, device: str, dtype: torch.dtype) -> None:
    """A scheme that hides most keys must be faster for it."""
    q, k, v = torch.randn(3, b, h, t, d, device=device, dtype=dtype)
    schemes = {
        f"window({n})": Scheme(causal & window(n)),
        f"window({n}) with 4 sinks": Scheme(causal & (window(n) | sinks(4))),
    }
    full = "plain causal SDPA"
    contenders: dict[str, Callable[[], object]] = {full: lambda: sdpa(q, k, v, is_causal=True)}
    for name, scheme in schemes.items():
        contenders[name] = _attending(q, k, v, scheme)
    table(f"windows, b{b} h{h} t{t} d{d}, {dtype}, forward", race(_waited(contenders, device), 5), full)


def _attending(q: Tensor, k: Tensor, v: Tensor, scheme: Scheme) -> Callable[[], object]:
    return lambda: attend(q, k, v, scheme)


def _waited(contenders: dict[str, Callable[[], object]], device: str) -> dict[str, Callable[[], object]]:
    """The same, each waiting for the device."""
    if device == "cpu":
        return contenders

    def waited(work: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            work()
            torch.cuda.synchronize()

        return run

    return {name: waited(work) for name, work in contenders.items()}
