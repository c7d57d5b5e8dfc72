"""Five schemes inside torch.compile with Inductor, beside themselves in eager mode."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from milepost import Alibi, LogN, Rerope, Rope, Scheme, SoftCap, T5Bias, Yarn, attend, causal, sinks, window
from milepost.bench.timing import race

SCHEMES = {
    "Rope": Scheme(Rope(64), causal),
    "Rope, Yarn and LogN": Scheme(Rope(64, stretch=Yarn(factor=4, trained=512)), LogN(512), causal),
    "Alibi and SoftCap": Scheme(Alibi(8), SoftCap(30.0), causal),
    "T5Bias": Scheme(T5Bias(8), causal),
    "Rope, Rerope, window and sinks": Scheme(Rope(64), Rerope(256), causal & (window(512) | sinks(4))),
}


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 8, 1024, 64) for _ in range(3))
    print("\nfive schemes with Inductor, b1 h8 t1024 d64, float32, forward")
    print(f"  {'':<34} {'eager':>9}   {'compiled':>9}   {'compiling':>9}   {'largest difference':>18}")
    with torch.no_grad():
        for name, scheme in SCHEMES.items():

            def eager(scheme: Scheme = scheme) -> Tensor:
                return attend(q, k, v, scheme)

            torch.compiler.reset()
            fast = torch.compile(eager, fullgraph=True)
            start = time.perf_counter()
            apart = float((fast() - eager()).abs().max())
            compiling = time.perf_counter() - start
            seconds = race({"eager": eager, "compiled": fast}, 5)
            print(
                f"  {name:<34} {seconds['eager'] * 1e3:>6.1f} ms   {seconds['compiled'] * 1e3:>6.1f} ms   "
                f"{compiling:>7.1f} s   {apart:>18.1e}"
            )
