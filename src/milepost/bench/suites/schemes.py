"""The schemes that are measured, by the name of their row."""

from __future__ import annotations

from collections.abc import Callable

import torch

import milepost as mp

Make = Callable[[], mp.Scheme]
PLAIN = "plain causal"
WINDOW = "RoPE, window of 1024 with 4 sinks"


def causal_schemes(h: int, d: int) -> dict[str, Make]:
    """Return decoders, with everything that is learned."""
    return {
        "RoPE": lambda: mp.Scheme(mp.Rope(d), mp.causal),
        "RoPE with YaRN": lambda: mp.Scheme(mp.Rope(d, stretch=mp.Yarn(8, 4096)), mp.causal),
        "ALiBi": lambda: mp.Scheme(mp.Alibi(h), mp.causal),
        "ALiBi, learned slopes": lambda: mp.Scheme(mp.LearnedAlibi(h), mp.causal),
        "T5": lambda: mp.Scheme(mp.T5Bias(h), mp.causal),
        "KERPLE, log": lambda: mp.Scheme(mp.Kerple(h), mp.causal),
        "KERPLE, power": lambda: mp.Scheme(mp.Kerple(h, form="power"), mp.causal),
        "Sandwich": lambda: mp.Scheme(mp.Sandwich(h, d), mp.causal),
        "Shaw's keys, reach 128": lambda: mp.Scheme(mp.Shaw(d, reach=128, values=False), mp.causal),
        "DeBERTa, reach 512": lambda: mp.Scheme(mp.Deberta(h * d, h, d, reach=512), mp.causal),
        "Transformer-XL, reach 512": lambda: mp.Scheme(mp.TransformerXL(h * d, h, d, reach=512), mp.causal),
        "ReRoPE": lambda: mp.Scheme(mp.Rope(d), mp.Rerope(512), mp.causal),
        "Leaky ReRoPE": lambda: mp.Scheme(mp.Rope(d), mp.LeakyRerope(512, 8), mp.causal),
        "Self-Extend": lambda: mp.Scheme(mp.Rope(d), mp.SelfExtend(8, 1024), mp.causal),
        "dual chunk": lambda: mp.Scheme(mp.Rope(d), mp.DualChunk(3072, 512), mp.causal),
        "ReRoPE with Pivot": lambda: mp.Scheme(mp.Rope(d), mp.Pivot(mp.Rerope(512), 4096), mp.causal),
        "ReRoPE with Pivot and Dilute": lambda: mp.Scheme(
            mp.Rope(d), mp.Dilute(mp.Pivot(mp.Rerope(512), 4096), 4096), mp.causal
        ),
        "the same, sinks kept": lambda: mp.Scheme(
            mp.Rope(d), mp.Dilute(mp.Pivot(mp.KeepSinks(mp.Rerope(512)), 4096), 4096), mp.causal
        ),
        "soft cap": lambda: mp.Scheme(mp.SoftCap(30.0), mp.causal),
        WINDOW: lambda: mp.Scheme(mp.Rope(d), mp.causal & (mp.window(1024) | mp.sinks(4))),
        "CoPE, 64 positions": lambda: mp.Scheme(mp.Cope(d, 64), mp.causal),
    }


def packed_schemes(h: int, d: int) -> dict[str, Make]:
    """Return decoders over several documents in a row."""
    return {
        "no position": lambda: mp.Scheme(mp.causal),
        "RoPE": lambda: mp.Scheme(mp.Rope(d), mp.causal),
        "ALiBi": lambda: mp.Scheme(mp.Alibi(h), mp.causal),
        "T5": lambda: mp.Scheme(mp.T5Bias(h), mp.causal),
        "KERPLE, log": lambda: mp.Scheme(mp.Kerple(h), mp.causal),
        "RoPE, window of 256 with 4 sinks": lambda: mp.Scheme(mp.Rope(d), mp.causal & (mp.window(256) | mp.sinks(4))),
        "ReRoPE": lambda: mp.Scheme(mp.Rope(d), mp.Rerope(512), mp.causal),
    }


def encoder_schemes(h: int, d: int) -> dict[str, Make]:
    """Return encoders: everything is visible."""
    return {
        "symmetric ALiBi": lambda: mp.Scheme(mp.Alibi(h)),
        "T5, both sides": lambda: mp.Scheme(mp.T5Bias(h, bidirectional=True)),
        "DeBERTa, reach 512": lambda: mp.Scheme(mp.Deberta(h * d, h, d, reach=512)),
    }


def short_schemes(h: int, d: int) -> dict[str, Make]:
    """Return decoders of short rows, where the host's part of a call counts."""
    return {name: make for name, make in causal_schemes(h, d).items() if name in ("RoPE", "ALiBi", "T5")}


def host_schemes(h: int, d: int) -> dict[str, Make]:
    """Return decoders of rows so short that the host decides the time."""
    far = mp.Pivot(mp.KeepSinks(mp.Rerope(128)), 256, strength=0.5)
    return short_schemes(h, d) | {
        "ReRoPE": lambda: mp.Scheme(mp.Rope(d), mp.Rerope(128), mp.causal),
        "ReRoPE with Pivot, sinks kept": lambda: mp.Scheme(mp.Rope(d), far, mp.causal),
    }


def made(make: Make, device: str) -> mp.Scheme:
    """Return a scheme on a device, always with the same weights; those that start at zero get some numbers."""
    torch.manual_seed(1)
    scheme = make()
    with torch.no_grad():
        for weight in scheme.parameters():
            if not weight.any():
                weight.normal_(std=0.1)
    return scheme.to(device)
