"""What `check` returns: the differences between two models, what was compared and what was not, as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from milepost.schedule import ranges

WIDTH = 80
TEXTS: dict[str, tuple[str, str]] = {
    "attention sink": ("Part of the attention goes to nothing in one of them.", ""),
    "base": ("Every pair rotates at another speed.", "Set rope_theta alike."),
    "cos and sin": ("Angles are π/2 − pθ.", "Exchange the two tensors that the rotary module returns."),
    "first position": ("Scores change only where queries and keys differ in it.", "Start position_ids alike."),
    "head size": ("Channels of a head. These are different models.", ""),
    "layers": ("Only the layers that both have are compared.", ""),
    "magnitude": ("Scores of the rotated channels grow with its square.", "Set attention_factor (mscale) alike."),
    "mask": ("Queries see other keys.", "Set sliding_window, layer_types or is_causal alike."),
    "order of biases": ("A soft cap before a bias is not one after it.", ""),
    "pairs": (
        "A checkpoint works with one pairing of channels only.",
        "Permute the rows of the query and key projections, or change the rotary function.",
    ),
    "position embedding": ("What positions add to the embeddings differs.", ""),
    "position encoding": ("Positions are encoded in other ways; no weights make these agree.", ""),
    "position remapping": ("Distances are changed before they are encoded.", ""),
    "position table length": ("Longer texts run past the end of the shorter table.", ""),
    "position table offset": (
        "Every token gets the embedding of another position.",
        "Copy the rows to the other offset (RoBERTa starts at padding_idx + 1, OPT and BART at 2).",
    ),
    "position table order": ("Tokens read the rows in another order.", ""),
    "QK norm": ("Queries and keys are normalised in one of them.", ""),
    "rotary channels": ("Other channels carry the position.", ""),
    "rotary width": (
        "The other channels carry no position.",
        "Set partial_rotary_factor (rotary_pct, rotary_dim) alike.",
    ),
    "rotation": ("Without a rotation a layer does not know the order of tokens.", ""),
    "sign": ("Distances count backwards: a key behind looks like one ahead.", "Negate sin in one of them."),
    "soft cap": ("Large scores are squashed to another size.", "Set attn_logit_softcapping alike."),
    "softmax scale": ("Scores are multiplied by another number.", "Set the attention scaling alike."),
    "softmax temperature": ("Scores are multiplied by another number as the text grows.", ""),
    "stretch": (
        "Frequencies or their magnitude are changed in other ways, to reach past the trained length.",
        "Set rope_parameters (rope_type, factor) alike.",
    ),
    "T5 direction": ("Keys ahead are looked up as keys behind.", "Negate the relative position."),
}
"""What a difference means and how to fix it, where that is always the same."""


@dataclass(frozen=True)
class Difference:
    """One convention in which two models differ: what each does, what that means, how to fix it, and in which layers.

    layers is empty where it is about the whole model.
    """

    convention: str
    a: str
    b: str
    means: str = ""
    fix: str = ""
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        means, fix = TEXTS.get(self.convention, ("", ""))
        object.__setattr__(self, "means", self.means or means)
        object.__setattr__(self, "fix", self.fix or fix)

    def __str__(self) -> str:
        head = f"{self.convention} ({named(self.layers)})" if self.layers else self.convention
        lines = [*wrapped(head, ""), *wrapped(self.a, "  A  "), *wrapped(self.b, "  B  ")]
        lines += wrapped(self.means, "  ") if self.means else []
        return "\n".join(lines + (wrapped(self.fix, "  Fix: ") if self.fix else []))


@dataclass(frozen=True)
class Checked:
    """The differences between A and B; false where there are none.

    No difference means that logits agree where weights do, but for what `not_compared` names. Where `not_run` names a
    model that failed to run, that is not known.
    """

    a: str
    b: str
    differences: tuple[Difference, ...]
    compared: tuple[str, ...]
    not_compared: tuple[str, ...]
    not_run: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.differences)

    @property
    def conventions(self) -> tuple[str, ...]:
        """The names of the conventions that differ."""
        return tuple(each.convention for each in self.differences)

    def to_dict(self) -> dict[str, Any]:
        """Return every field as JSON can hold it."""
        return asdict(self)

    def __str__(self) -> str:
        count = len(self.differences)
        none = "whether they differ is not known: a model could not be run" if self.not_run else "no difference found"
        found = f"{count} difference{'s' * (count > 1)}" if count else none
        lines = [*wrapped(self.a, "A  "), *wrapped(self.b, "B  "), "", found, ""]
        for each in self.differences:
            lines += [str(each), ""]
        lines += wrapped("; ".join(self.compared) or "nothing", "compared: ")
        return "\n".join([*lines, *(line for each in self.not_compared for line in wrapped(each, "not compared: "))])


def between(convention: str, words: Iterable[str], means: str = "", fix: str = "") -> Difference:
    """Make a difference of two words, A's and B's."""
    a, b = words
    return Difference(convention, a, b, means, fix)


def wrapped(text: str, head: str) -> list[str]:
    """Break text at 80 columns, indented under its head."""
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def named(layers: Iterable[str]) -> str:
    """Name layers by stack, those that follow one another as a range: `layers 0–2, 4`."""
    stacks: dict[tuple[str, str], list[int]] = {}
    for layer in layers:
        before, _, after = layer.partition("layer ")
        count, _, tail = after.partition(" ")
        stacks.setdefault((before, f" {tail}" if tail else ""), []).append(int(count))
    words = (
        f"{stack}layer{'s' * (len(each) > 1)} {ranges(sorted(each))}{tail}" for (stack, tail), each in stacks.items()
    )
    return "; ".join(words)


def number(value: float) -> str:
    """Write a number to five digits: 500,000, 0.17783, 1e-05."""
    value = float(f"{value:.5g}")
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e12 else f"{value:.5g}"


def together(found: Iterable[Difference]) -> tuple[Difference, ...]:
    """Merge the same difference in several layers."""
    grouped: dict[tuple[str, ...], Difference] = {}
    for each in found:
        before = grouped.setdefault((each.convention, each.a, each.b, each.means), each)
        layers = tuple(dict.fromkeys((*before.layers, *each.layers)))
        grouped[each.convention, each.a, each.b, each.means] = replace(before, layers=layers)
    return tuple(grouped.values())
