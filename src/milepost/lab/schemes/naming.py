"""What schemes and rows are called: names that can be trained, those of the trivial rows, and the field's spelling."""

from __future__ import annotations

TRAINED: dict[str, str] = {
    "nope": "Nope()",
    "learned": "Learned(longest, width)",
    "sinusoidal": "Sinusoidal(width, amplitude=width ** -0.5)",
    "rope": "Rope(dim)",
    "partial": "Partial(Rope(dim // 2), of=dim)",
    "p-rope": "Rope(dim, stretch=Proportional(0.5))",
    "xpos": "Xpos(dim)",
    "rope-logn": "Rope(dim) + LogN(trained, clip=False)",
    "learned-rope": "LearnedRope(dim)",
    "alibi": "Alibi(heads)",
    "alibi-steep": "Alibi(heads, AlibiInterpolate(trained / 512))",
    "t5": "T5Bias(heads, reach=min(128, max(32, trained // 2)))",
    "kerple": "Kerple(heads)",
    "kerple-power": 'Kerple(heads, "power")',
    "sandwich": "Sandwich(heads, dim)",
    "fire": "Fire(heads, trained)",
    "shaw": "Shaw(dim, values=False)",
    "transformer-xl": "TransformerXL(width, heads, dim)",
    "deberta": "Deberta(width, heads, dim, reach=64)",
    "cope": "Cope(dim, 64)",
    "floater": "Floater(width, longest=longest)",
    "alibi-rope": "Rope(dim) + Alibi(heads)",
    "kerple-power-rope": 'Rope(dim) + Kerple(heads, "power")',
    "kerple-nope": '[Kerple(heads, "power")] * (layers - 1) + [Nope() + LogN(trained, clip=False)]',
    "kerple-nope-sharp": '[Kerple(heads, "power")] * (layers - 1) + '
    "[Nope() + LogN(trained, clip=False) + LogN(trained, clip=False)]",
    "kerple-logn": "Kerple(heads) + LogN(trained, clip=False)",
    "window-rope": "Rope(dim) + (causal & window(trained // 4))",
    "softmax1-rope": "Rope(dim) + SoftmaxOne(heads)",
    "hwfa": "[Rope(dim) + (causal & window(max(1, (3 * trained // 4 - 1) // max(1, layers - 1) + 1)))] * (layers - 1) "
    "+ [Nope() + LogN(trained, clip=False)]",
}
"""What can be trained, by name. `dim`, `heads`, `width`, `trained`, `layers` and `longest` are the model's own. A list
has a scheme for each layer."""

WINDOW, WINDOW_AND_SINKS = "window", "window and sinks"
TRIVIAL = (WINDOW, WINDOW_AND_SINKS)
"""What anybody can do without a method: forget all but the last bytes, and perhaps keep the first few."""

SPELLED = {
    "alibi": "ALiBi", "cope": "CoPE", "deberta": "DeBERTa", "fire": "FIRE", "floater": "FLOATER", "hwfa": "HWFA",
    "kerple": "KERPLE", "logn": "log-n", "nope": "NoPE", "rope": "RoPE", "shaw": "Shaw", "softmax1": "softmax₁",
    "t5": "T5", "transformer": "Transformer", "xl": "XL", "xpos": "xPos",
}  # fmt: skip


def proper(name: str) -> str:
    """Return a scheme's name with the field's own spelling, word by word; an expression is left as it is."""
    return "-".join(SPELLED.get(word, word) for word in name.split("-")) if name in TRAINED else name
