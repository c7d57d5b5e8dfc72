"""The schemes that are measured, by the name of their row."""

from __future__ import annotations

from collections.abc import Callable

import torch

from milepost import (
    Alibi,
    Cope,
    Deberta,
    Dilute,
    DualChunk,
    KeepSinks,
    Kerple,
    LeakyRerope,
    LearnedAlibi,
    Pivot,
    Rerope,
    Rope,
    Sandwich,
    Scheme,
    SelfExtend,
    Shaw,
    SoftCap,
    T5Bias,
    TransformerXL,
    Yarn,
    causal,
    sinks,
    window,
)

Make = Callable[[], Scheme]
PLAIN = "plain causal"
WINDOW = "RoPE, window of 1024 with 4 sinks"


def causal_schemes(h: int, d: int) -> dict[str, Make]:
    """Return decoders, with everything that is learned."""
    return {
        "RoPE": lambda: Scheme(Rope(d), causal),
        "RoPE with YaRN": lambda: Scheme(Rope(d, stretch=Yarn(8, 4096)), causal),
        "ALiBi": lambda: Scheme(Alibi(h), causal),
        "ALiBi, learned slopes": lambda: Scheme(LearnedAlibi(h), causal),
        "T5": lambda: Scheme(T5Bias(h), causal),
        "KERPLE, log": lambda: Scheme(Kerple(h), causal),
        "KERPLE, power": lambda: Scheme(Kerple(h, form="power"), causal),
        "Sandwich": lambda: Scheme(Sandwich(h, d), causal),
        "Shaw's keys, reach 128": lambda: Scheme(Shaw(d, reach=128, values=False), causal),
        "DeBERTa, reach 512": lambda: Scheme(Deberta(h * d, h, d, reach=512), causal),
        "Transformer-XL, reach 512": lambda: Scheme(TransformerXL(h * d, h, d, reach=512), causal),
        "ReRoPE": lambda: Scheme(Rope(d), Rerope(512), causal),
        "Leaky ReRoPE": lambda: Scheme(Rope(d), LeakyRerope(512, 8), causal),
        "Self-Extend": lambda: Scheme(Rope(d), SelfExtend(8, 1024), causal),
        "dual chunk": lambda: Scheme(Rope(d), DualChunk(3072, 512), causal),
        "ReRoPE with Pivot": lambda: Scheme(Rope(d), Pivot(Rerope(512), 4096), causal),
        "ReRoPE with Pivot and Dilute": lambda: Scheme(Rope(d), Dilute(Pivot(Rerope(512), 4096), 4096), causal),
        "the same, sinks kept": lambda: Scheme(Rope(d), Dilute(Pivot(KeepSinks(Rerope(512)), 4096), 4096), causal),
        "soft cap": lambda: Scheme(SoftCap(30.0), causal),
        WINDOW: lambda: Scheme(Rope(d), causal & (window(1024) | sinks(4))),
        "CoPE, 64 positions": lambda: Scheme(Cope(d, 64), causal),
    }


def packed_schemes(h: int, d: int) -> dict[str, Make]:
    """Return decoders over several documents in a row."""
    return {
        "no position": lambda: Scheme(causal),
        "RoPE": lambda: Scheme(Rope(d), causal),
        "ALiBi": lambda: Scheme(Alibi(h), causal),
        "T5": lambda: Scheme(T5Bias(h), causal),
        "KERPLE, log": lambda: Scheme(Kerple(h), causal),
        "RoPE, window of 256 with 4 sinks": lambda: Scheme(Rope(d), causal & (window(256) | sinks(4))),
        "ReRoPE": lambda: Scheme(Rope(d), Rerope(512), causal),
    }


def encoder_schemes(h: int, d: int) -> dict[str, Make]:
    """Return encoders: everything is visible."""
    return {
        "symmetric ALiBi": lambda: Scheme(Alibi(h)),
        "T5, both sides": lambda: Scheme(T5Bias(h, bidirectional=True)),
        "DeBERTa, reach 512": lambda: Scheme(Deberta(h * d, h, d, reach=512)),
    }


def short_schemes(h: int, d: int) -> dict[str, Make]:
    """Return decoders of short rows, where the host's part of a call counts."""
    return {name: make for name, make in causal_schemes(h, d).items() if name in ("RoPE", "ALiBi", "T5")}


def host_schemes(h: int, d: int) -> dict[str, Make]:
    """Return decoders of rows so short that the host decides the time."""
    far = Pivot(KeepSinks(Rerope(128)), 256, strength=0.5)
    return short_schemes(h, d) | {
        "ReRoPE": lambda: Scheme(Rope(d), Rerope(128), causal),
        "ReRoPE with Pivot, sinks kept": lambda: Scheme(Rope(d), far, causal),
    }


def made(make: Make, device: str) -> Scheme:
    """Return a scheme on a device, always with the same weights; those that start at zero get some numbers."""
    torch.manual_seed(1)
    scheme = make()
    with torch.no_grad():
        for weight in scheme.parameters():
            if not weight.any():
                weight.normal_(std=0.1)
    return scheme.to(device)
