"""One decoding step through `Cache`, compared with torch's attention on keys already rotated."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from milepost import Alibi, Cache, Rerope, Rope, Scheme, Yarn, attend, causal, explain
from milepost.bench.harness.agreement import FLOORS, compared
from milepost.bench.harness.contest import FORWARD, Column, Contest, Entry, Works, passes
from milepost.bench.harness.report import Agreement
from milepost.bench.harness.settings import Grouped, Settings, grouped
from milepost.bench.suites import bounds
from milepost.bench.suites.flex_peers import compiled_flex
from milepost.bench.suites.schemes import made

PLAIN = "SDPA on keys already rotated"
EAGER, GRAPH = Column("eager", FORWARD, "burst"), Column("graph", FORWARD, "graph")


def decoding(settings: Settings) -> list[Contest]:
    """Return a step of a large batch over many keys, and of one row."""
    return [_step(settings, "decoding", shape, (EAGER, GRAPH)) for shape in settings.sizes.steps]


def on_cpu(settings: Settings) -> list[Contest]:
    """Return the same on the CPU."""
    return [_step(settings, "cpu", shape, (EAGER,)) for shape in settings.sizes.cpu_steps]


def _step(settings: Settings, group: str, shape: Grouped, columns: tuple[Column, ...]) -> Contest:
    """Return one token after all the others."""
    b, h, g, s, d = shape
    schemes = {
        "RoPE": lambda: Scheme(Rope(d), causal),
        "RoPE with YaRN": lambda: Scheme(Rope(d, stretch=Yarn(8, 4096)), causal),
        "ALiBi": lambda: Scheme(Alibi(h), causal),
        "ReRoPE (raw keys, rotated at every step)": lambda: Scheme(Rope(d), Rerope(512), causal),
    }

    def entries() -> list[Entry]:
        maker = torch.Generator(settings.device).manual_seed(0)
        q, k, v = (
            torch.randn(b, n, t, d, device=settings.device, generator=maker).to(settings.dtype)
            for n, t in ((h, 1), (g, s), (g, s))
        )
        found = [Entry(PLAIN, "limit", lambda: Works(passes(lambda: sdpa(q, k, v, enable_gqa=h != g)), None, "torch"))]
        found += [Entry(name, "milepost", _stepping(q, k, v, make, settings)) for name, make in schemes.items()]
        if settings.peers != "without" and settings.device == "cuda":
            flex = compiled_flex(settings.device)
            run: Callable[[], Tensor] = lambda: flex(q, k, v, enable_gqa=h != g)  # noqa: E731
            works = Works(passes(run), _checking(run, q, k, v, Scheme()), "compiled")
            found.append(Entry("FlexDecoding on keys already rotated", "FlexAttention", lambda: works))
        return found

    title = f"one token, {grouped(b, h, g, s, d).replace(' t', ' keys ')}, {settings.words}"
    wanted = bounds.STEPS["many" if b > 1 else "one"] if group == "decoding" else {}

    def bound(name: str, column: str, limit: float) -> float | None:
        return wanted.get(column) if name in schemes else None

    return Contest(group, title, columns, entries, PLAIN, bound=bound)


def _stepping(q: Tensor, k: Tensor, v: Tensor, make: Callable[[], Scheme], settings: Settings) -> Callable[[], Works]:
    def works() -> Works:
        scheme = made(make, settings.device)
        cache = Cache(scheme)
        cache.append(k, v)

        def run() -> Tensor:
            return attend(q, cache.keys, cache.values, scheme)

        backend = explain(q, cache.keys, cache.values, scheme).backend
        return Works(passes(run), _checking(run, q, k, v, scheme), backend)

    return works


def _checking(run: Callable[[], Tensor], q: Tensor, k: Tensor, v: Tensor, scheme: Scheme) -> Callable[[], Agreement]:
    """Compare the first row with raw keys, without a cache."""

    def check() -> Agreement:
        with torch.no_grad():
            ours = run()[:1]
            one = q[:1], k[:1], v[:1]
            exact = attend(one[0].double(), one[1].double(), one[2].double(), scheme, backend="reference")
            plain = attend(*one, scheme, backend="reference")
        return compared([ours], [exact], [plain], FLOORS[q.dtype])

    return check
