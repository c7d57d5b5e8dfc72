"""For every method its arguments, all of them, and for each argument another value that it may have."""

from __future__ import annotations

from typing import Any

import milepost as mp

ARGUMENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Alibi": (
        {"heads": 4, "stretch": mp.AlibiNtk(3.0), "bias_max": 8.0},
        {"heads": 6, "stretch": mp.AlibiNtk(3.5), "bias_max": 7.0},
    ),
    "AlibiDynamicNtk": ({"trained": 5, "factor": 1.5}, {"trained": 6, "factor": 2.5}),
    "AlibiInterpolate": ({"factor": 3.0}, {"factor": 2.5}),
    "AlibiNtk": ({"factor": 3.0}, {"factor": 2.5}),
    "AxialRope": (
        {"head_dim": 8, "sections": (2, 1, 1), "theta": 100.0, "order": "blocks", "own": False,
         "pairs": "halves", "stretch": None},
        # As many channels as the sections have pairs: the two change together.
        {"head_dim": {"head_dim": 10, "sections": (3, 1, 1)}, "sections": (1, 2, 1), "theta": 50.0,
         "order": "interleaved",
         "own": True, "pairs": "neighbours", "stretch": mp.Interpolate(2.0)},
    ),
    "ByParts": (
        {"factor": 4.0, "trained": 16, "ramp": "code", "fast": 32.0, "slow": 1.0, "truncate": True},
        {"factor": 5.0, "trained": 17, "ramp": "paper", "fast": 31.0, "slow": 0.5, "truncate": False},
    ),
    "ComplexOrder": (
        {"vocabulary": 11, "model_dim": 6, "frequencies": "words", "phases": "words", "real": True},
        {"vocabulary": 12, "model_dim": 5, "frequencies": "shared", "phases": "none", "real": False},
    ),
    "Cope": (
        {"head_dim": 8, "positions": 6, "after_scale": False, "gates": "own", "model_dim": 10, "key_heads": 2},
        {"head_dim": 6, "positions": 7, "after_scale": True, "gates": "keys", "model_dim": 12, "key_heads": 4},
    ),
    "Deberta": (
        {"model_dim": 10, "heads": 4, "head_dim": 8, "reach": 9, "buckets": 4, "index": "code", "bias": "none"},
        {"model_dim": 12, "heads": 2, "head_dim": 6, "reach": 8, "buckets": None, "index": "paper", "bias": "both"},
    ),
    "DeepseekScale": ({"factor": 40.0, "weight": 0.7}, {"factor": 41.0, "weight": 0.5}),
    "Dilute": (
        {"method": mp.Rerope(4), "trained": 6, "strength": 0.25},
        {"method": mp.Rerope(3), "trained": 7, "strength": 0.5},
    ),
    "DualChunk": ({"chunk": 6, "local": 2}, {"chunk": 7, "local": 3}),
    "DynamicLinear": ({"trained": 5}, {"trained": 6}),
    "DynamicNtk": ({"trained": 5, "factor": 2.0}, {"trained": 6, "factor": 3.0}),
    "DynamicYarn": (
        {"trained": 5, "ramp": "code", "fast": 32.0, "slow": 1.0, "truncate": True},
        {"trained": 6, "ramp": "paper", "fast": 31.0, "slow": 0.5, "truncate": False},
    ),
    "Fire": ({"heads": 4, "trained": 6, "width": 5}, {"heads": 2, "trained": 7, "width": 3}),
    "Floater": ({"model_dim": 6, "step": 0.01, "longest": 64}, {"model_dim": 8, "step": 0.02, "longest": 65}),
    "FloaterLayer": (
        {"heads": 4, "head_dim": 8, "values": True, "step": 0.01, "longest": 64},
        {"heads": 2, "head_dim": 6, "values": False, "step": 0.02, "longest": 65},
    ),
    "FusedRope": (
        {"head_dim": 4, "theta": 100.0, "frequencies": None, "values": True, "pairs": "halves"},
        {"head_dim": 6, "theta": 50.0, "frequencies": (1.0, 0.25), "values": False, "pairs": "neighbours"},
    ),
    "Hierarchical": ({"table": (7, 6), "alpha": 0.4}, {"table": (7, 8), "alpha": 0.3}),
    "Interpolate": ({"factor": 4.0}, {"factor": 5.0}),
    "KeepSinks": ({"method": mp.Rerope(4), "sinks": 2}, {"method": mp.Rerope(3), "sinks": 1}),
    "Kerple": ({"heads": 4, "form": "log"}, {"heads": 2, "form": "power"}),
    "LeakyRerope": ({"window": 4, "factor": 3.0}, {"window": 5, "factor": 2.0}),
    "Learned": ({"length": 64, "model_dim": 6}, {"length": 65, "model_dim": 8}),
    "LearnedAlibi": ({"heads": 4}, {"heads": 2}),
    "LearnedRope": (
        {"head_dim": 8, "theta": 100.0, "pairs": "halves"},
        {"head_dim": 6, "theta": 50.0, "pairs": "neighbours"},
    ),
    "Llama3": (
        {"factor": 8.0, "trained": 64, "low": 1.5, "high": 4.5},
        {"factor": 7.0, "trained": 65, "low": 0.5, "high": 5.0},
    ),
    "Llama4Scale": ({"chunk": 3, "weight": 0.5, "offset": 1}, {"chunk": 4, "weight": 0.25, "offset": 0}),
    "LogN": (
        {"trained": 5, "clip": True, "count": "index", "most": 9},
        {"trained": None, "clip": False, "count": "length", "most": None},
    ),
    "LongRope": (
        {"short": (1.0, 1.1, 1.2, 1.3, 1.4), "long": (1.5, 2.0, 3.0, 4.0, 5.0), "trained": 7, "factor": 4.0,
         "scaled": None},
        {"short": (1.0, 1.1, 1.2, 1.3, 1.5), "long": (1.5, 2.0, 3.0, 4.0, 6.0), "trained": 8, "factor": 5.0,
         "scaled": 1.25},
    ),
    "Multiplied": ({"method": mp.Sinusoidal(6)}, {"method": mp.Sinusoidal(6, theta=100.0)}),
    "Nezha": (
        {"head_dim": 8, "reach": 3, "values": True, "value_dim": 6, "count": "row"},
        {"head_dim": 6, "reach": 4, "values": False, "value_dim": 8, "count": "distance"},
    ),
    "Nope": ({}, {}),
    "Ntk": ({"factor": 4.0}, {"factor": 5.0}),
    "NtkMixed": ({"factor": 4.0, "b": 0.5}, {"factor": 5.0, "b": 0.25}),
    "OffsetAlibi": ({"heads": 4, "offset": 0.25}, {"heads": 6, "offset": -0.5}),
    "Partial": (
        {"method": mp.Rope(4), "of": 8, "temperature": "rotary"},
        {"method": mp.Rope(6), "of": 10, "temperature": "logits"},
    ),
    "Pivot": (
        {"method": mp.Rerope(4), "trained": 5, "strength": 0.25, "count": "index"},
        {"method": mp.Rerope(3), "trained": 6, "strength": 0.5, "count": "length"},
    ),
    "Pose": ({"target": 64}, {"target": 65}),
    "Proportional": ({"share": 0.5, "factor": 2.0}, {"share": 0.75, "factor": 3.0}),
    "QkNorm": ({"head_dim": 8, "eps": 1e-6}, {"head_dim": 6, "eps": 1e-5}),
    "Randomized": ({"longest": 64}, {"longest": 65}),
    "Recurrent": ({"model_dim": 6, "cell": "gru", "longest": 64}, {"model_dim": 8, "cell": "tanh", "longest": 65}),
    "Rerope": ({"window": 4, "at": 2}, {"window": 5, "at": 3}),
    "Rope": (
        {"head_dim": 8, "theta": 100.0, "pairs": "halves", "stretch": mp.Ntk(2.0)},
        {"head_dim": 6, "theta": 50.0, "pairs": "neighbours", "stretch": mp.Ntk(3.0)},
    ),
    "Sandwich": (
        {"heads": 4, "head_dim": 12, "theta": 100.0, "start": 0, "zeroed": False},
        {"heads": 2, "head_dim": 10, "theta": 50.0, "start": 1, "zeroed": True},
    ),
    "Scale": ({"value": 0.5}, {"value": 0.25}),
    "SelfExtend": ({"group": 2, "neighbours": 4}, {"group": 4, "neighbours": 6}),
    "Shaw": (
        {"head_dim": 8, "reach": 3, "values": True, "value_dim": 6},
        {"head_dim": 6, "reach": 4, "values": False, "value_dim": 8},
    ),
    "SinkLogit": ({"heads": 4}, {"heads": 2}),
    "Sinusoidal": (
        {"model_dim": 6, "layout": "interleaved", "theta": 100.0, "denominator": None, "amplitude": 0.5, "start": None},
        {"model_dim": 8, "layout": "concatenated", "theta": 50.0, "denominator": 4.0, "amplitude": 0.25, "start": 2},
    ),
    "SoftCap": ({"cap": 0.5}, {"cap": 0.75}),
    "SoftmaxOne": ({"heads": 4}, {"heads": 2}),
    "SplitAlibi": ({"heads": 4}, {"heads": 6}),
    "Stream": ({"sinks": 2, "window": 4, "evict": "before"}, {"sinks": 1, "window": 3, "evict": "after"}),
    "T5Bias": (
        {"heads": 4, "buckets": 8, "reach": 9, "bidirectional": False},
        {"heads": 2, "buckets": 12, "reach": 10, "bidirectional": True},
    ),
    "TransformerXL": (
        {"model_dim": 10, "heads": 4, "head_dim": 8, "reach": 5, "spacing": "open"},
        {"model_dim": 12, "heads": 2, "head_dim": 6, "reach": None, "spacing": "closed"},
    ),
    "TwoPartRope": (
        {"head_dim": 8, "theta": 100.0, "pairs": "halves"},
        {"head_dim": 4, "theta": 50.0, "pairs": "neighbours"},
    ),
    "Xpos": (
        {"head_dim": 8, "theta": 100.0, "fade": 256.0, "pairs": "halves"},
        {"head_dim": 6, "theta": 50.0, "fade": 128.0, "pairs": "neighbours"},
    ),
    "Yarn": (
        {"factor": 4.0, "trained": 16, "ramp": "code", "fast": 32.0, "slow": 1.0, "truncate": True, "scaled": None},
        {"factor": 5.0, "trained": 17, "ramp": "paper", "fast": 31.0, "slow": 0.5, "truncate": False, "scaled": 1.25},
    ),
}  # fmt: skip
"""A method's name, its arguments, and another value for each; a dict where others have to change with it."""


def made(name: str, **changed: Any) -> Any:
    """The method with its arguments, but for those that are changed."""
    return getattr(mp, name)(**(ARGUMENTS[name][0] | changed))


def one_changed(name: str, argument: str) -> Any:
    """The method with another value for one argument."""
    other = ARGUMENTS[name][1][argument]
    return made(name, **(other if isinstance(other, dict) else {argument: other}))


def inside(method: Any) -> mp.Scheme:
    """A scheme around a method: a stretch is one of a rotation or of ALiBi."""
    if hasattr(method, "frequencies") and hasattr(method, "magnitude"):
        method = mp.Rope(10, theta=100.0, stretch=method)
    elif hasattr(method, "slopes") and not hasattr(method, "bend"):
        method = mp.Alibi(4, stretch=method)
    return mp.Scheme(method, mp.causal)
