"""Attention as `attend` chooses to run it, compared with plain attention and with peers on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from milepost import Scheme, attend, causal, explain
from milepost.bench.harness.agreement import against_float64, learned
from milepost.bench.harness.contest import BOTH, FORWARD, Column, Contest, Entry, Works, passes
from milepost.bench.harness.settings import Settings, Shape, shaped
from milepost.bench.suites import bounds, flex_peers
from milepost.bench.suites.schemes import (
    PLAIN,
    WINDOW,
    Make,
    causal_schemes,
    encoder_schemes,
    host_schemes,
    made,
    packed_schemes,
    short_schemes,
)

COLD = Column(FORWARD, FORWARD, "cold"), Column(BOTH, BOTH, "cold")
EAGER = Column(FORWARD, FORWARD, "burst"), Column(BOTH, BOTH, "burst")
LIMIT = "plain causal SDPA"
UNMASKED = "SDPA without a mask"
APART = "the documents as a batch, plain causal SDPA"


def attention(settings: Settings) -> list[Contest]:
    """Return every causal scheme at A and at B."""
    return [_causal(settings, "A", settings.sizes.a), _causal(settings, "B", settings.sizes.b)]


def _causal(settings: Settings, letter: str, shape: Shape) -> Contest:
    schemes = causal_schemes(*shape[1::2])
    if letter == "A":
        # A window that is a quarter of the row shows little.
        del schemes[WINDOW]

    def entries() -> list[Entry]:
        q, k, v, grad = tensors(settings, *shape)
        found = [plain_entry(LIMIT, "limit", (q, k, v), grad)]
        found.append(entry(PLAIN, lambda: Scheme(causal), (q, k, v, grad), settings, backend="triton"))
        found += [entry(name, make, (q, k, v, grad), settings) for name, make in schemes.items()]
        return found + flex_peers.causal_peers(q, k, v, grad, with_window=letter == "B")

    wanted = {name: pair["AB".index(letter)] for name, pair in bounds.CAUSAL.items()}
    title = f"{letter}, {shaped(*shape)}, {settings.words}"
    return Contest("attention", title, COLD, entries, LIMIT, bound=bounds.of_rows(wanted))


def packed(settings: Settings) -> list[Contest]:
    """Return B as several documents in one row."""
    shape, count = settings.sizes.b, settings.sizes.documents
    ours = packed_schemes(*shape[1::2])

    def entries() -> list[Entry]:
        q, k, v, grad = tensors(settings, *shape)
        documents = torch.arange(shape[2], device=settings.device) * count // shape[2]
        # The last document is compared: its first token.
        first = shape[2] - shape[2] // count
        found = [plain_entry(LIMIT, "limit", (q, k, v), grad), _as_a_batch(q, k, v, grad, count)]
        for name, make in ours.items():
            found.append(entry(name, make, (q, k, v, grad), settings, first, documents=documents))
        return [*found, flex_peers.documents(q, k, v, grad, documents, first)]

    title = f"B as {count} documents, {shaped(*shape)}, {settings.words}"
    bound = bounds.of_rows(dict.fromkeys(ours, bounds.PACKED))
    return [Contest("packed", title, COLD, entries, LIMIT, bound=bound)]


def encoder(settings: Settings) -> list[Contest]:
    """Return encoders, and short causal rows called eagerly."""
    sizes = settings.sizes
    whole = against_plain(settings, "encoder", sizes.encoder, encoder_schemes(*sizes.encoder[1::2]), UNMASKED, COLD)
    whole.title, whole.bound = f"encoder, {whole.title}", bounds.of_rows(bounds.ENCODER)
    short = against_plain(settings, "encoder", sizes.short, short_schemes(*sizes.short[1::2]), LIMIT, EAGER)
    short.title = f"short, {short.title}, called eagerly"
    short.bound = bounds.of_rows(dict.fromkeys(("ALiBi", "T5"), bounds.SHORT))
    return [whole, short]


def host(settings: Settings) -> list[Contest]:
    """Return short rows in which the host decides the time."""
    shape = settings.sizes.host
    found = against_plain(settings, "host", shape, host_schemes(*shape[1::2]), LIMIT, EAGER)
    microseconds = bounds.of_rows(bounds.HOST)
    # Of the call itself, and not of its ratio.
    found.bound = lambda name, column, limit: (most := microseconds(name, column, limit)) and most * 1e-3 / limit
    return [found]


def against_plain(
    settings: Settings, group: str, shape: Shape, schemes: dict[str, Make], limit: str, columns: tuple[Column, ...],
    **options: Any,
) -> Contest:  # fmt: skip
    """Return schemes compared with SDPA, without peers."""

    def entries() -> list[Entry]:
        q, k, v, grad = tensors(settings, *shape)
        found = [plain_entry(limit, "limit", (q, k, v), grad, limit == LIMIT)]
        return found + [entry(name, make, (q, k, v, grad), settings, **options) for name, make in schemes.items()]

    return Contest(group, f"{shaped(*shape)}, {settings.words}", columns, entries, limit)


def tensors(settings: Settings, b: int, h: int, t: int, d: int, g: int | None = None) -> list[Tensor]:
    """Return q, k, v, which have gradients, and a gradient of the output; the same every time."""
    maker = torch.Generator(settings.device).manual_seed(0)
    shapes = (b, h, t, d), (b, g or h, t, d), (b, g or h, t, d), (b, h, t, d)
    found = [torch.randn(each, device=settings.device, generator=maker).to(settings.dtype) for each in shapes]
    return [*(each.requires_grad_() for each in found[:3]), found[3]]


def entry(
    name: str, make: Make, given: tuple[Tensor, Tensor, Tensor, Tensor], settings: Settings, first: int = 0,
    checked: bool = True, **options: Any,
) -> Entry:  # fmt: skip
    """Return a scheme through `attend`. first: where the text that is compared begins."""
    q, k, v, grad = given

    def works() -> Works:
        scheme = made(make, settings.device)

        def run() -> Tensor:
            return cast("Tensor", attend(q, k, v, scheme, **options))

        found = passes(run, (q, k, v, *learned(scheme)), grad)
        backend = options.get("backend") or chosen(scheme, q, k, v, **options)
        if "documents" in options and settings.device == "cuda":
            backend += _waits(found[FORWARD])
        return Works(found, (lambda: against_float64(run, q, k, v, grad, scheme, first)) if checked else None, backend)

    return Entry(name, "milepost", works)


def chosen(scheme: Scheme, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> str:
    """Return the backend that runs it; also the one with gradients, where that is another."""
    with torch.no_grad():
        alone = explain(q, k, v, scheme, **options).backend
    both = explain(q, k, v, scheme, **options).backend
    return alone if alone == both else f"{alone}, {both}"


def _waits(work: Callable[[], object]) -> str:
    """Return a note on calls that wait for the device before they return."""
    work()
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    except RuntimeError as error:
        return " (waits for the device)" if "synchronizing" in str(error) else ""
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


def plain_entry(name: str, who: str, given: tuple[Tensor, ...], grad: Tensor, is_causal: bool = True) -> Entry:
    """Return torch's own attention, with the kernel that torch picks."""
    q, k, v = given

    def run() -> Tensor:
        return sdpa(q, k, v, is_causal=is_causal, enable_gqa=q.shape[1] != k.shape[1])

    return Entry(name, who, lambda: Works(passes(run, given, grad), backend="torch"))


def _as_a_batch(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, count: int) -> Entry:
    """Return each document as a row of its own."""
    b, h, _, d = q.shape
    apart = [
        each.detach().view(b, h, count, -1, d).transpose(1, 2).flatten(0, 1).contiguous() for each in (q, k, v, grad)
    ]
    return plain_entry(APART, "torch", tuple(each.requires_grad_() for each in apart[:3]), apart[3])
