"""One scheme for every method, sized for the laws: 4 heads of 8 channels."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import milepost as mp
from milepost import causal
from tests.layers import WIDTH, D, H


def rope(stretch: object = None) -> mp.Rope:
    return mp.Rope(D, theta=100.0, stretch=stretch)  # pyright: ignore


CASES: dict[str, Callable[[], mp.Scheme]] = {
    "Alibi": lambda: mp.Scheme(mp.Alibi(H), causal),
    "AlibiDynamicNtk": lambda: mp.Scheme(mp.Alibi(H, stretch=mp.AlibiDynamicNtk(5, factor=1.5)), causal),
    "AlibiInterpolate": lambda: mp.Scheme(mp.Alibi(H, stretch=mp.AlibiInterpolate(3.0)), causal),
    "AlibiNtk": lambda: mp.Scheme(mp.Alibi(H, stretch=mp.AlibiNtk(3.0)), causal),
    "AxialRope": lambda: mp.Scheme(mp.AxialRope(D, (2, 1, 1)), causal),
    "ByParts": lambda: mp.Scheme(rope(mp.ByParts(4.0, 16)), causal),
    "ComplexOrder": lambda: mp.Scheme(mp.ComplexOrder(11, WIDTH // 2), causal),
    "Cope": lambda: mp.Scheme(mp.Cope(D, 6), causal),
    "Deberta": lambda: mp.Scheme(mp.Deberta(10, H, D, reach=5), causal),
    "DeepseekScale": lambda: mp.Scheme(mp.DeepseekScale(40, weight=0.7), causal),
    "Dilute": lambda: mp.Scheme(rope(), mp.Dilute(mp.Rerope(4), trained=6), causal),
    "DualChunk": lambda: mp.Scheme(rope(), mp.DualChunk(6, 2), causal),
    "DynamicLinear": lambda: mp.Scheme(rope(mp.DynamicLinear(5)), causal),
    "DynamicNtk": lambda: mp.Scheme(rope(mp.DynamicNtk(5, factor=2.0)), causal),
    "DynamicYarn": lambda: mp.Scheme(rope(mp.DynamicYarn(5)), causal),
    "Fire": lambda: mp.Scheme(mp.Fire(H, trained=6, width=5), causal),
    "Floater": lambda: mp.Scheme(mp.Floater(WIDTH, step=0.001), causal),
    "FloaterLayer": lambda: mp.Scheme(mp.FloaterLayer(H, D, values=False, step=0.001), causal),
    "FusedRope": lambda: mp.Scheme(mp.FusedRope(D, theta=100.0), causal),
    "Hierarchical": lambda: mp.Scheme(mp.Hierarchical((7, WIDTH)), causal),
    "Interpolate": lambda: mp.Scheme(rope(mp.Interpolate(4)), causal),
    "KeepSinks": lambda: mp.Scheme(rope(), mp.Pivot(mp.KeepSinks(mp.Rerope(4), sinks=2), trained=5), causal),
    "Kerple": lambda: mp.Scheme(mp.Kerple(H), causal),
    "LeakyRerope": lambda: mp.Scheme(rope(), mp.LeakyRerope(4, 3.0), causal),
    "Learned": lambda: mp.Scheme(mp.Learned(64, WIDTH), causal),
    "LearnedAlibi": lambda: mp.Scheme(mp.LearnedAlibi(H), causal),
    "LearnedRope": lambda: mp.Scheme(mp.LearnedRope(D, theta=100.0), causal),
    "Llama3": lambda: mp.Scheme(rope(mp.Llama3(8.0, 64)), causal),
    "Llama4Scale": lambda: mp.Scheme(mp.Llama4Scale(3, weight=0.5), causal),
    "LogN": lambda: mp.Scheme(mp.LogN(5), causal),
    "LongRope": lambda: mp.Scheme(rope(mp.LongRope((1.0, 1.1, 1.2, 1.3), (1.5, 2.0, 3.0, 4.0), 7, factor=4.0)), causal),
    "Multiplied": lambda: mp.Scheme(mp.Multiplied(mp.Learned(64, WIDTH)), causal),
    "Nezha": lambda: mp.Scheme(mp.Nezha(D, reach=3, value_dim=6), causal),
    "Nope": lambda: mp.Scheme(mp.Nope(), causal),
    "Ntk": lambda: mp.Scheme(rope(mp.Ntk(4)), causal),
    "NtkMixed": lambda: mp.Scheme(rope(mp.NtkMixed(4)), causal),
    "OffsetAlibi": lambda: mp.Scheme(mp.OffsetAlibi(H), causal),
    "Partial": lambda: mp.Scheme(mp.Partial(mp.Rope(4), of=D), causal),
    "Pivot": lambda: mp.Scheme(rope(), mp.Pivot(mp.Rerope(4), trained=5), causal),
    "Proportional": lambda: mp.Scheme(rope(mp.Proportional(0.5)), causal),
    "QkNorm": lambda: mp.Scheme(rope(), mp.QkNorm(D), causal),
    "Recurrent": lambda: mp.Scheme(mp.Recurrent(WIDTH), causal),
    "Rerope": lambda: mp.Scheme(rope(), mp.Rerope(4), causal),
    "Rerope, far keys nearer": lambda: mp.Scheme(rope(), mp.Rerope(4, at=2), causal),
    "Rope": lambda: mp.Scheme(rope(), causal),
    "Sandwich": lambda: mp.Scheme(mp.Sandwich(H, 12), causal),
    "Scale": lambda: mp.Scheme(mp.Scale(0.5), causal),
    "SelfExtend": lambda: mp.Scheme(rope(), mp.SelfExtend(2, 4), causal),
    "Shaw": lambda: mp.Scheme(mp.Shaw(D, reach=3, value_dim=6), causal),
    "SinkLogit": lambda: mp.Scheme(mp.SinkLogit(H), causal),
    "Sinusoidal": lambda: mp.Scheme(mp.Sinusoidal(WIDTH), causal),
    "SoftCap": lambda: mp.Scheme(mp.SoftCap(0.7), causal),
    "SoftmaxOne": lambda: mp.Scheme(mp.SoftmaxOne(H), causal),
    "SplitAlibi": lambda: mp.Scheme(mp.SplitAlibi(H), causal),
    "Stream": lambda: mp.Scheme(rope(), mp.Stream(2, 4)),
    "T5Bias": lambda: mp.Scheme(mp.T5Bias(H, buckets=8, reach=9), causal),
    "TransformerXL": lambda: mp.Scheme(mp.TransformerXL(10, H, D), causal),
    "TwoPartRope": lambda: mp.Scheme(mp.TwoPartRope(D, theta=100.0), causal),
    "Xpos": lambda: mp.Scheme(mp.Xpos(D), causal),
    "Yarn": lambda: mp.Scheme(rope(mp.Yarn(4.0, 16)), causal),
    # Variants whose code is their own
    "Cope, gates on keys": lambda: mp.Scheme(mp.Cope(D, 6, gates="keys"), mp.Shaw(D, reach=3, values=False), causal),
    "Deberta, log buckets, paper's index": lambda: mp.Scheme(
        mp.Deberta(10, H, D, reach=9, buckets=4, index="paper"), causal
    ),
    "Kerple, power": lambda: mp.Scheme(mp.Kerple(H, form="power"), causal),
    "LogN by length": lambda: mp.Scheme(mp.LogN(5, clip=False, count="length"), causal),
    "Partial, temperature on the logits": lambda: mp.Scheme(
        mp.Partial(mp.Rope(4, stretch=mp.DynamicYarn(5)), of=D, temperature="logits"), causal
    ),
    "Recurrent, tanh": lambda: mp.Scheme(mp.Recurrent(WIDTH, cell="tanh"), causal),
    "Rope, neighbours": lambda: mp.Scheme(mp.Rope(D, pairs="neighbours"), causal),
    "Stream, evicting after": lambda: mp.Scheme(rope(), mp.Stream(1, 3, evict="after")),
    "T5Bias, bidirectional": lambda: mp.Scheme(mp.T5Bias(H, buckets=8, reach=9, bidirectional=True), causal),
    "TransformerXL, clamped": lambda: mp.Scheme(mp.TransformerXL(10, H, D, reach=4), causal),
    "window and sinks": lambda: mp.Scheme(rope(), causal & (mp.window(4) | mp.sinks(2))),
    "chunks": lambda: mp.Scheme(rope(), causal & mp.chunks(4)),
}


QUICK = (
    "Alibi", "Cope", "Deberta", "DynamicNtk", "Fire", "Kerple", "Learned", "LogN", "Partial", "QkNorm", "Rerope",
    "Rope", "Shaw", "SinkLogit", "SoftCap", "T5Bias", "TransformerXL", "Xpos",
    "window and sinks",
)  # fmt: skip
"""For laws that cost much, the methods that a quick run has them for: each verb and each facet is among them."""


def exported_methods() -> dict[str, type]:
    """The methods that the package exports, by name."""
    found = {name: getattr(mp, name) for name in mp.__all__}
    return {
        name: each
        for name, each in found.items()
        if inspect.isclass(each) and each.__module__.startswith("milepost.methods.")
    }
