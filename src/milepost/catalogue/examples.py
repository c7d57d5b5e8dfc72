"""One example for every method: the parts of a scheme that shows it at work.

Heads are 8 of 64 channels, embeddings 512 wide. `written` makes a whole program of the parts.
"""

WIDEST = 76

EXAMPLES: dict[str, tuple[str, ...]] = {
    "Alibi": ("mp.Alibi(heads=8)", "mp.causal"),
    "AlibiDynamicNtk": ("mp.Alibi(heads=8, stretch=mp.AlibiDynamicNtk(trained=64))", "mp.causal"),
    "AlibiInterpolate": ("mp.Alibi(heads=8, stretch=mp.AlibiInterpolate(factor=2))", "mp.causal"),
    "AlibiNtk": ("mp.Alibi(heads=8, stretch=mp.AlibiNtk(factor=2))", "mp.causal"),
    "AxialRope": ("mp.AxialRope(head_dim=64, sections=(16, 8, 8))",),
    "ByParts": ("mp.Rope(64, stretch=mp.ByParts(factor=8, trained=4096))", "mp.causal"),
    "ComplexOrder": ("mp.ComplexOrder(vocabulary=1000, model_dim=256)", "mp.causal"),
    "Cope": ("mp.Cope(head_dim=64, positions=32)", "mp.causal"),
    "Deberta": ("mp.Deberta(model_dim=512, heads=8, head_dim=64, reach=128)",),
    "DeepseekScale": (
        "mp.Rope(64, stretch=mp.Yarn(40, 4096, scaled=1.0))",
        "mp.DeepseekScale(factor=40, weight=0.707)",
        "mp.causal",
    ),
    "Dilute": ("mp.Rope(64)", "mp.Dilute(mp.Rerope(32), trained=64)", "mp.causal"),
    "DualChunk": ("mp.Rope(64)", "mp.DualChunk(chunk=48, local=8)", "mp.causal"),
    "DynamicLinear": ("mp.Rope(64, stretch=mp.DynamicLinear(trained=64))", "mp.causal"),
    "DynamicNtk": ("mp.Rope(64, stretch=mp.DynamicNtk(trained=64))", "mp.causal"),
    "DynamicYarn": ("mp.Rope(64, stretch=mp.DynamicYarn(trained=64))", "mp.causal"),
    "Fire": ("mp.Fire(heads=8)", "mp.causal"),
    "Floater": ("mp.Floater(model_dim=512)", "mp.causal"),
    "FloaterLayer": ("mp.FloaterLayer(heads=8, head_dim=64)", "mp.causal"),
    "FusedRope": ("mp.FusedRope(head_dim=64)", "mp.causal"),
    "Hierarchical": ("mp.Hierarchical(mp.Learned(length=64, model_dim=512))", "mp.causal"),
    "Interpolate": ("mp.Rope(64, stretch=mp.Interpolate(factor=4))", "mp.causal"),
    "KeepSinks": ("mp.Rope(64)", "mp.Dilute(mp.KeepSinks(mp.Rerope(32)), trained=64)", "mp.causal"),
    "Kerple": ("mp.Kerple(heads=8)", "mp.causal"),
    "LeakyRerope": ("mp.Rope(64)", "mp.LeakyRerope(window=32, factor=16)", "mp.causal"),
    "Learned": ("mp.Learned(length=128, model_dim=512)", "mp.causal"),
    "LearnedAlibi": ("mp.LearnedAlibi(heads=8)",),
    "LearnedRope": ("mp.LearnedRope(head_dim=64)", "mp.causal"),
    "Llama3": ("mp.Rope(64, theta=5e5, stretch=mp.Llama3(factor=8, trained=8192))", "mp.causal"),
    "Llama4Scale": ("mp.Nope()", "mp.Llama4Scale(chunk=8192)", "mp.causal"),
    "LogN": ("mp.Rope(64)", "mp.LogN(trained=64)", "mp.causal"),
    "LongRope": ("mp.Rope(64, stretch=mp.LongRope((1.0,) * 32, (4.0,) * 32, trained=64))", "mp.causal"),
    "Multiplied": ("mp.Multiplied(mp.Learned(length=128, model_dim=512))", "mp.causal"),
    "Nezha": ("mp.Nezha(head_dim=64)",),
    "Nope": ("mp.Nope()", "mp.causal"),
    "Ntk": ("mp.Rope(64, stretch=mp.Ntk(factor=4))", "mp.causal"),
    "NtkMixed": ("mp.Rope(64, stretch=mp.NtkMixed(factor=4))", "mp.causal"),
    "OffsetAlibi": ("mp.OffsetAlibi(heads=8)",),
    "Partial": ("mp.Partial(mp.Rope(16), of=64)", "mp.causal"),
    "Pivot": ("mp.Rope(64)", "mp.Pivot(mp.Rerope(32), trained=64)", "mp.causal"),
    "Pose": ("mp.Pose(target=4096)",),
    "Proportional": ("mp.Rope(64, stretch=mp.Proportional(share=0.25))", "mp.causal"),
    "QkNorm": ("mp.Rope(64)", "mp.QkNorm(head_dim=64)", "mp.causal"),
    "Randomized": ("mp.Randomized(longest=2048)",),
    "Recurrent": ("mp.Recurrent(model_dim=512)", "mp.causal"),
    "Rerope": ("mp.Rope(64)", "mp.Rerope(window=32)", "mp.causal"),
    "Rope": ("mp.Rope(head_dim=64)", "mp.causal"),
    "Sandwich": ("mp.Sandwich(heads=8, head_dim=128)", "mp.causal"),
    "Scale": ("mp.T5Bias(heads=8)", "mp.Scale(1.0)", "mp.causal"),
    "SelfExtend": ("mp.Rope(64)", "mp.SelfExtend(group=4, neighbours=32)", "mp.causal"),
    "Shaw": ("mp.Shaw(head_dim=64, reach=16)",),
    "SinkLogit": ("mp.Rope(64)", "mp.SinkLogit(heads=8)", "mp.causal & mp.window(128)"),
    "Sinusoidal": ("mp.Sinusoidal(model_dim=512)", "mp.causal"),
    "SoftCap": ("mp.Rope(64)", "mp.SoftCap(50.0)", "mp.causal"),
    "SoftmaxOne": ("mp.Rope(64)", "mp.SoftmaxOne(heads=8)", "mp.causal"),
    "SplitAlibi": ("mp.SplitAlibi(heads=8)",),
    "Stream": ("mp.Rope(64)", "mp.Stream(sinks=4, window=60)"),
    "T5Bias": ("mp.T5Bias(heads=8)", "mp.Scale(1.0)", "mp.causal"),
    "TransformerXL": ("mp.TransformerXL(model_dim=512, heads=8, head_dim=64)", "mp.causal"),
    "TwoPartRope": ("mp.TwoPartRope(head_dim=64)", "mp.causal"),
    "Xpos": ("mp.Xpos(head_dim=64)", "mp.causal"),
    "Yarn": ("mp.Rope(64, stretch=mp.Yarn(factor=8, trained=4096))", "mp.causal"),
    # What is visible
    "causal": ("mp.Rope(64)", "mp.causal"),
    "chunks": ("mp.Rope(64)", "mp.causal & mp.chunks(32)"),
    "everything": ("mp.Rope(64)", "mp.everything"),
    "sinks": ("mp.Rope(64)", "mp.causal & (mp.window(60) | mp.sinks(4))"),
    "window": ("mp.Rope(64)", "mp.window(32)"),
    # No part of a scheme, but it learns
    "MaskDecoder": ("mp.MaskDecoder(length=128, model_dim=512)",),
}

TOKENS = "q, k, v = torch.randn(3, 1, 8, 100, 64)  # [b h t d] each"
ROPE = "scheme = mp.Scheme(mp.Rope(64), mp.causal)"

CALLS: dict[str, tuple[str, ...]] = {
    "Cache": (
        ROPE,
        "cache = mp.Cache()",
        "for q, k, v in torch.randn(100, 3, 1, 8, 1, 64):  # one token at a time",
        "    cache.append(k, v)",
        "    out = mp.attend(",
        "        q, cache.keys, cache.values, scheme",
        "    )",
    ),
    "ComplexOrder": (
        "scheme = mp.Scheme(mp.ComplexOrder(1000, model_dim=256), mp.causal)",
        "x = scheme.embed(torch.randint(1000, (1, 100)))  # [b t D]",
    ),
    "MaskDecoder": (
        "decoder = mp.MaskDecoder(length=128, model_dim=512)",
        "last = torch.nn.MultiheadAttention(512, 8, batch_first=True)",
        "hidden = torch.randn(1, 100, 512)",
        "states = decoder(hidden, lambda query, keys: last(query, keys, keys)[0])",
    ),
    "Schedule": (
        "near = mp.Scheme(mp.Rope(64), mp.window(32))",
        "layers = mp.Schedule([near, near, near, mp.Scheme(mp.Nope(), mp.causal)])",
        TOKENS,
        "for scheme in layers:",
        "    q = mp.attend(q, k, v, scheme)",
    ),
    "Scheme": (
        "scheme = mp.Scheme(mp.Rope(64), mp.LogN(trained=64), mp.causal)",
        "print(scheme)",
        "same = mp.Scheme.from_dict(scheme.to_dict())",
    ),
    "attend": (ROPE, TOKENS, "out = mp.attend(q, k, v, scheme)"),
    "complex_attend": (
        "q, k, v = torch.randn(3, 1, 8, 100, 64, dtype=torch.complex64)",
        "out = mp.complex_attend(q, k, v, mp.Scheme(mp.causal))",
    ),
    "critical_base": ("print(mp.critical_base(trained=4096, target=16384))",),
    "critical_dimension": ("print(mp.critical_dimension(head_dim=128, trained=4096))",),
    "documents_of": (
        ROPE,
        "lengths = torch.tensor([0, 60, 100])  # a text of 60 tokens, one of 40",
        "documents, index = mp.documents_of(lengths)",
        TOKENS,
        "out = mp.attend(q, k, v, scheme, documents=documents)",
    ),
    "explain": (TOKENS, "print(mp.explain(q, k, v, mp.Scheme(mp.Alibi(8), mp.causal)))"),
    "hwfa": ("layers = mp.hwfa(layers=24, head_dim=64, trained=512)", "print(layers[0], layers[23])"),
    "hwfa2": ("layers = mp.hwfa2(layers=24, head_dim=64, trained=512, keys=64)", "print(layers[12])"),
    "linear_attend": (ROPE, TOKENS, "out = mp.linear_attend(q, k, v, scheme)"),
    "llama4": ("layers = mp.llama4(layers=8, head_dim=64)", "print(layers[0], layers[3])"),
    "merge": (
        "scheme = mp.Scheme(mp.Rope(64))",
        TOKENS,
        "near, far = slice(50, 100), slice(0, 50)",
        "call = {'index': range(100), 'return_lse': True}",
        "ka, va, kb, vb = k[:, :, far], v[:, :, far], k[:, :, near], v[:, :, near]",
        "a = mp.attend(q, ka, va, scheme, key_index=range(50), **call)",
        "b = mp.attend(q, kb, vb, scheme, key_index=range(50, 100), **call)",
        "out, lse = mp.merge(*a, *b)",
    ),
    "methods": ("print([entry.name for entry in mp.methods() if 'bend' in entry.verbs])",),
    "padding_leak": ("print(mp.padding_leak(length=21, depth=3))",),
    "reach_of": ("print(mp.reach_of(base=1e6, head_dim=128, trained=4096))",),
    "rotate": (
        "angle = torch.arange(100)[:, None] * 10000.0 ** (-torch.arange(32) / 32)",
        "turned = mp.rotate(torch.randn(1, 8, 100, 64), angle.cos(), angle.sin())",
    ),
    "scores": (ROPE, TOKENS, "print(mp.scores(q, k, scheme, rows=[10, 99]).shape)  # [b h 2 s]"),
    "weights": (ROPE, TOKENS, "print(mp.weights(q, k, scheme, rows=-1).sum(-1))"),
}
"""Whole programs for what a scheme does not show."""

HEAD = ("import torch", "import milepost as mp", "")


def written(parts: tuple[str, ...], verbs: tuple[str, ...]) -> str:
    """Return a program that builds the example and calls it, by what the method does."""
    if "sample" in verbs:
        body = (
            f"at = {parts[0]}.sample(100)",
            ROPE,
            TOKENS,
            "out = mp.attend(q, k, v, scheme, position=at, key_position=at)",
        )
    elif "embed" in verbs:
        body = (*scheme_of(parts), "x = scheme.embed(torch.randn(1, 100, 512))  # [b t D]")
    else:
        body = (*scheme_of(parts), TOKENS, "out = mp.attend(q, k, v, scheme)  # [b h t d]")
    return "\n".join((*HEAD, *body))


def scheme_of(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines that make the scheme: one where they fit, else one for each part."""
    line = f"scheme = mp.Scheme({', '.join(parts)})"
    if len(line) <= WIDEST:
        return (line,)
    return ("scheme = mp.Scheme(", *(f"    {part}," for part in parts), ")")
