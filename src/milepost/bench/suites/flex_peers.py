"""FlexAttention as a user writes it: compiled, each variant as the documentation shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from milepost import Alibi, Scheme, T5Bias, causal, sinks, window
from milepost.bench.harness.agreement import against_float64, learned
from milepost.bench.harness.contest import Entry, Works, passes
from milepost.bench.suites.schemes import Make, made

WHO = "FlexAttention"
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Bend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def before(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """True if a key is not ahead."""
    return j <= i


def causal_peers(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, with_window: bool) -> list[Entry]:
    """Return plain causal, ALiBi and T5; and a window with sinks."""
    heads = q.shape[1]

    def alibi(scheme: Scheme) -> Bend:
        slopes = torch.tensor([2.0 ** (-8 * (n + 1) / heads) for n in range(heads)], device=q.device)
        return lambda score, b, h, i, j: score - slopes[h] * (i - j)

    def t5(scheme: Scheme) -> Bend:
        part = cast("T5Bias", scheme.parts[0])
        table, buckets = part.table, part.bucket(torch.arange(q.shape[2], device=q.device))
        return lambda score, b, h, i, j: score + table[buckets[(i - j).clamp(min=0)], h]

    def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & ((i - j < 1024) | (j < 4))

    given = q, k, v, grad
    found = [
        _peer("FlexAttention, plain causal", lambda: Scheme(causal), given),
        _peer("FlexAttention, ALiBi", lambda: Scheme(Alibi(heads), causal), given, alibi),
        _peer("FlexAttention, T5", lambda: Scheme(T5Bias(heads), causal), given, t5),
    ]
    if with_window:
        seen = causal & (window(1024) | sinks(4))
        found.append(_peer("FlexAttention, window of 1024 with 4 sinks", lambda: Scheme(seen), given, mask=near))
    return found


def documents(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, of: Tensor, first: int) -> Entry:
    """Return packed documents by a block mask."""

    def own(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (of[i] == of[j])

    name = "FlexAttention, documents, no position"
    return _peer(name, lambda: Scheme(causal), (q, k, v, grad), mask=own, first=first)


def _peer(
    name: str, make: Make, given: tuple[Tensor, Tensor, Tensor, Tensor], bend: Callable[[Scheme], Bend] | None = None,
    mask: Mask = before, first: int = 0,
) -> Entry:  # fmt: skip
    """Return a peer. make: the scheme that it should compute, with its weights."""
    q, k, v, grad = given

    def works() -> Works:
        # Imported here, because torch's compiler brings much along.
        from torch.nn.attention.flex_attention import create_block_mask

        scheme = made(make, q.device.type)
        score = None if bend is None else bend(scheme)
        blocks = create_block_mask(mask, None, None, q.shape[2], k.shape[2], device=q.device.type)
        flex: Any = compiled_flex(q.device.type)

        def run() -> Tensor:
            return flex(q, k, v, score_mod=score, block_mask=blocks)

        return Works(
            passes(run, (q, k, v, *learned(scheme)), grad),
            lambda: against_float64(run, q, k, v, grad, scheme, first),
            "compiled" if q.is_cuda else "eager",
        )

    return Entry(name, WHO, works)


def compiled_flex(device: str) -> Callable[..., Tensor]:
    """Return FlexAttention compiled for fixed shapes; on the CPU, where that may not work, as it is."""
    from torch.nn.attention.flex_attention import flex_attention

    if device == "cpu":
        return cast("Callable[..., Tensor]", flex_attention)
    from torch._dynamo import config

    # Every variant is a graph; past the usual limit torch continues unfused, without a warning.
    settings: Any = config
    settings.recompile_limit, settings.accumulated_recompile_limit = 256, 1024
    return cast("Callable[..., Tensor]", torch.compile(flex_attention, dynamic=False, fullgraph=True))
