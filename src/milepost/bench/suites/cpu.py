"""What is timed on a CPU: the rotation, decoding, windows, ALiBi and ReRoPE without a dense bias, torch.compile."""

from __future__ import annotations

import torch

import milepost as mp
from milepost.bench.harness.contest import Contest, Entry, Works, passes
from milepost.bench.harness.settings import Settings, shaped
from milepost.bench.suites import decoding, rotary
from milepost.bench.suites.attention import COLD, LIMIT, against_plain, entry, tensors
from milepost.bench.suites.schemes import Make, made

NEAR = 1024
"""How far back keys keep their places."""


def on_cpu(settings: Settings) -> list[Contest]:
    """Return the contests that need no GPU."""
    shape, (b, h, t, d, n) = settings.sizes.cpu_chunked, settings.sizes.cpu_window
    width, words = shape[3], f"{shaped(*shape)}, {settings.words}"

    def moved(part: object) -> Make:
        return lambda: mp.Scheme(mp.Rope(width), part, mp.causal)

    windows: dict[str, Make] = {
        f"window({n})": lambda: mp.Scheme(mp.causal & mp.window(n)),
        f"window({n}) with 4 sinks": lambda: mp.Scheme(mp.causal & (mp.window(n) | mp.sinks(4))),
    }
    alibi: dict[str, Make] = {"chunked with ALiBi": lambda: mp.Scheme(mp.Alibi(shape[1]), mp.causal)}
    near_far = {
        "ReRoPE": moved(mp.Rerope(NEAR)),
        "with Pivot, sinks kept": moved(mp.Pivot(mp.KeepSinks(mp.Rerope(NEAR)), 2 * NEAR)),
    }
    rows = against_plain(settings, "cpu", (b, h, t, d), windows, LIMIT, COLD[:1])
    rows.title = f"windows, {rows.title}"
    dense = against_plain(settings, "cpu", shape, alibi, LIMIT, COLD, backend="chunked")
    dense.title = f"ALiBi without a dense bias, {words}"
    far = against_plain(settings, "cpu", shape, near_far, LIMIT, COLD[:1], backend="chunked")
    far.title = f"near and far keys, {words}, without gradients"
    return [*rotary.on_cpu(settings), *decoding.on_cpu(settings), rows, dense, far]


def compiled(settings: Settings) -> list[Contest]:
    """Return five schemes, each in eager mode and compiled."""
    h, d = settings.sizes.compiled[1::2]
    schemes: dict[str, Make] = {
        "RoPE": lambda: mp.Scheme(mp.Rope(d), mp.causal),
        "RoPE, YaRN and LogN": lambda: mp.Scheme(mp.Rope(d, stretch=mp.Yarn(4, trained=512)), mp.LogN(512), mp.causal),
        "ALiBi and a soft cap": lambda: mp.Scheme(mp.Alibi(h), mp.SoftCap(30.0), mp.causal),
        "T5": lambda: mp.Scheme(mp.T5Bias(h), mp.causal),
        "RoPE, ReRoPE, window and sinks": lambda: mp.Scheme(
            mp.Rope(d), mp.Rerope(256), mp.causal & (mp.window(512) | mp.sinks(4))
        ),
    }

    def contest(name: str, make: Make) -> Contest:
        def entries() -> list[Entry]:
            q, k, v, grad = tensors(settings, *settings.sizes.compiled)

            def works() -> Works:
                scheme = made(make, settings.device)
                torch.compiler.reset()
                fast = torch.compile(lambda: mp.attend(q, k, v, scheme), fullgraph=True)
                with torch.no_grad():
                    torch.testing.assert_close(fast(), mp.attend(q, k, v, scheme), rtol=1e-3, atol=1e-4)
                return Works(passes(fast), None, "compiled")

            return [entry("eager", make, (q, k, v, grad), settings), Entry("compiled", "milepost", works)]

        title = f"{name}, {shaped(*settings.sizes.compiled)}, {settings.words}"
        return Contest("compiled", title, COLD[:1], entries, "eager")

    return [contest(name, make) for name, make in schemes.items()]
