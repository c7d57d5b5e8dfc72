"""One decoding step through `Cache`, and windows over a long text: beside torch's attention on keys already turned."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from milepost import Alibi, Cache, Rerope, Rope, Scheme, Yarn, attend, causal, explain, sinks, window
from milepost.bench import bounds
from milepost.bench.agreement import FLOORS, compared
from milepost.bench.attention import LIMIT, entry, plain_entry, tensors
from milepost.bench.contest import FORWARD, Column, Contest, Entry, Works
from milepost.bench.flex_peers import compiled_flex
from milepost.bench.report import Agreement
from milepost.bench.schemes import made
from milepost.bench.settings import Grouped, Settings, grouped, shaped

PLAIN = "SDPA on keys already turned"
EAGER, GRAPH = Column("eager", FORWARD, "burst"), Column("graph", FORWARD, "graph")


def decoding(settings: Settings) -> list[Contest]:
    """A step of a large batch over many keys, and of one row."""
    return [_step(settings, "decoding", shape, (EAGER, GRAPH)) for shape in settings.sizes.steps]


def on_cpu(settings: Settings) -> list[Contest]:
    """The same on the CPU, and windows: a scheme that hides most keys must be faster for it."""
    steps = [_step(settings, "cpu", shape, (EAGER,)) for shape in settings.sizes.cpu_steps]
    b, h, t, d, n = settings.sizes.cpu_window

    def entries() -> list[Entry]:
        q, k, v, grad = tensors(settings, b, h, t, d)
        schemes = {
            f"window({n})": lambda: Scheme(causal & window(n)),
            f"window({n}) with 4 sinks": lambda: Scheme(causal & (window(n) | sinks(4))),
        }
        limit = plain_entry(LIMIT, "limit", (q, k, v), grad)
        return [limit, *(entry(name, make, (q, k, v, grad), settings) for name, make in schemes.items())]

    windows = Contest(
        "cpu", f"windows, {shaped(b, h, t, d)}, {settings.words}", (Column(FORWARD, FORWARD, "cold"),), entries, LIMIT
    )
    return [*steps, windows]


def _step(settings: Settings, group: str, shape: Grouped, columns: tuple[Column, ...]) -> Contest:
    """One token after all the others."""
    b, h, g, s, d = shape
    schemes = {
        "RoPE": lambda: Scheme(Rope(d), causal),
        "RoPE with YaRN": lambda: Scheme(Rope(d, stretch=Yarn(8, 4096)), causal),
        "ALiBi": lambda: Scheme(Alibi(h), causal),
        "ReRoPE (raw keys, turned at every step)": lambda: Scheme(Rope(d), Rerope(512), causal),
    }

    def entries() -> list[Entry]:
        maker = torch.Generator(settings.device).manual_seed(0)
        q, k, v = (
            torch.randn(b, n, t, d, device=settings.device, generator=maker).to(settings.dtype)
            for n, t in ((h, 1), (g, s), (g, s))
        )
        found = [Entry(PLAIN, "limit", lambda: _works(lambda: sdpa(q, k, v, enable_gqa=h != g), "torch"))]
        found += [Entry(name, "milepost", _stepping(q, k, v, make, settings)) for name, make in schemes.items()]
        if settings.peers and settings.device == "cuda":
            flex = compiled_flex(settings.device)
            run: Callable[[], Tensor] = lambda: flex(q, k, v, enable_gqa=h != g)  # noqa: E731
            check = _checking(run, q, k, v, Scheme())
            found.append(
                Entry("FlexDecoding on keys already turned", "FlexAttention", lambda: _works(run, "compiled", check))
            )
        return found

    title = f"one token, {grouped(b, h, g, s, d).replace(' t', ' keys ')}, {settings.words}"
    wanted = bounds.STEPS["many" if b > 1 else "one"] if group == "decoding" else {}

    def bound(name: str, column: str, limit: float) -> float | None:
        return wanted.get(column) if name in schemes else None

    return Contest(group, title, columns, entries, PLAIN, bound=bound)


def _works(run: Callable[[], Tensor], backend: str, check: Callable[[], Agreement] | None = None) -> Works:
    def forward() -> object:
        with torch.no_grad():
            return run()

    return Works({FORWARD: forward}, check, backend)


def _stepping(q: Tensor, k: Tensor, v: Tensor, make: Callable[[], Scheme], settings: Settings) -> Callable[[], Works]:
    def works() -> Works:
        scheme = made(make, settings.device)
        cache = Cache(scheme)
        cache.append(k, v)

        def run() -> Tensor:
            return attend(q, cache.keys, cache.values, scheme)

        backend = explain(scheme, q, cache.keys, cache.values).backend
        return _works(run, backend, _checking(run, q, k, v, scheme))

    return works


def _checking(run: Callable[[], Tensor], q: Tensor, k: Tensor, v: Tensor, scheme: Scheme) -> Callable[[], Agreement]:
    """The first row, from raw keys, without a cache."""

    def check() -> Agreement:
        with torch.no_grad():
            ours = run()[:1]
            one = q[:1], k[:1], v[:1]
            exact = attend(one[0].double(), one[1].double(), one[2].double(), scheme, backend="reference")
            plain = attend(*one, scheme, backend="reference")
        return compared([ours], [exact], [plain], FLOORS[q.dtype])

    return check
