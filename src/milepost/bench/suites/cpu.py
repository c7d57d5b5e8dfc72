"""What is timed on a CPU: the rotation, decoding, windows, ALiBi and ReRoPE without a dense bias, torch.compile."""

from __future__ import annotations

import torch

from milepost import (
    Alibi,
    KeepSinks,
    LogN,
    Pivot,
    Rerope,
    Rope,
    Scheme,
    SoftCap,
    T5Bias,
    Yarn,
    attend,
    causal,
    sinks,
    window,
)
from milepost.bench.harness.contest import FORWARD, Contest, Entry, Works
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
        return lambda: Scheme(Rope(width), part, causal)

    windows: dict[str, Make] = {
        f"window({n})": lambda: Scheme(causal & window(n)),
        f"window({n}) with 4 sinks": lambda: Scheme(causal & (window(n) | sinks(4))),
    }
    alibi: dict[str, Make] = {"chunked with ALiBi": lambda: Scheme(Alibi(shape[1]), causal)}
    near_far = {
        "ReRoPE": moved(Rerope(NEAR)),
        "with Pivot, sinks kept": moved(Pivot(KeepSinks(Rerope(NEAR)), 2 * NEAR)),
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
        "RoPE": lambda: Scheme(Rope(d), causal),
        "RoPE, YaRN and LogN": lambda: Scheme(Rope(d, stretch=Yarn(4, trained=512)), LogN(512), causal),
        "ALiBi and a soft cap": lambda: Scheme(Alibi(h), SoftCap(30.0), causal),
        "T5": lambda: Scheme(T5Bias(h), causal),
        "RoPE, ReRoPE, window and sinks": lambda: Scheme(Rope(d), Rerope(256), causal & (window(512) | sinks(4))),
    }

    def contest(name: str, make: Make) -> Contest:
        def entries() -> list[Entry]:
            q, k, v, grad = tensors(settings, *settings.sizes.compiled)

            def works() -> Works:
                scheme = made(make, settings.device)
                torch.compiler.reset()
                fast = torch.compile(lambda: attend(q, k, v, scheme), fullgraph=True)
                with torch.no_grad():
                    torch.testing.assert_close(fast(), attend(q, k, v, scheme), rtol=1e-3, atol=1e-4)

                def forward() -> object:
                    with torch.no_grad():
                        return fast()

                return Works({FORWARD: forward}, None, "compiled")

            return [entry("eager", make, (q, k, v, grad), settings), Entry("compiled", "milepost", works)]

        title = f"{name}, {shaped(*settings.sizes.compiled)}, {settings.words}"
        return Contest("compiled", title, COLD[:1], entries, "eager")

    return [contest(name, make) for name, make in schemes.items()]
