"""`extend`: let a model of transformers read longer texts, by a method that was named or by the best that is found."""

from __future__ import annotations

from typing import Any

from torch import nn

from milepost.hf.choosing.choose import choose
from milepost.hf.model.extension import Model, Path, extended
from milepost.hf.model.parts import BEST
from milepost.hf.model.t5 import has_buckets
from milepost.hf.model.tables import table_of


def extend(
    model: Model,
    *given: object,
    to: int | None = None,
    through: Path | None = None,
    text: object = None,
    tokenizer: object = None,
    **measuring: Any,
) -> Model:
    """Let a model of transformers read longer texts; it is changed in place and returned.

        extend(model, mp.Yarn(4, trained=8192), mp.LogN(8192))   # parts change each layer's own scheme
        extend(model, "ReRoPE, pivot")                           # a row of the lab by its name
        extend(model, mp.Schedule([…]))                          # a scheme for every layer
        extend(model, to=32768, text=text, tokenizer=tokenizer)  # the best of all, measured on a text

    A stretch of the rotation goes to every layer that rotates; where a model has rope settings for each type of layers
    (Gemma 3, OLMo 3), to those alone that see past the trained length. A Schedule gives each layer what it says.

    to: the length to reach, for rows that go by it. With a text in place of a method, candidates of `plan` are measured
    at that length and one is chosen by the rule of `choose`, which returns the scores as well; where the rule chooses
    none, or the model as it is, an error says so and nothing is changed.
    text, tokenizer: as in `measure`; windows, last, names, thorough and progress are passed on to `choose`.
    through: "rotary" where only cosines and sines change, which is what transformers' own attention then goes on with;
    "attend" for everything else: queries, keys and caches stay raw. Chosen where it is left out.

    Nothing of transformers is changed but this model: its registries gain one name each. An extended model is extended
    from what it was at first. On an error nothing is changed.
    """
    if text is not None:
        # Sized for the length already.
        given, to = best(model, given, to, text, tokenizer, measuring), None
    elif tokenizer is not None or measuring:
        named = ", ".join(["tokenizer"] * (tokenizer is not None) + list(measuring))
        raise TypeError(f"extend({named}=…): this is for measuring, and there is no text; give text=… as well")
    elif not given and to is not None and measurable(model):
        raise ValueError(
            f"extend(to={to}): which method is best is found by measuring, so give a text: extend(model, to={to}, "
            f"text=…, tokenizer=…). Or name a method, such as the one that led the lab: "
            f"extend(model, {BEST!r}, to={to})"
        )
    return extended(model, given, to, through)


def measurable(model: object) -> bool:
    """Whether there are methods to choose between; a table is grown in one way, and so are buckets."""
    return not has_buckets(model) and not (
        isinstance(model, nn.Module) and hasattr(model, "config") and table_of(model) is not None
    )


def best(
    model: Any, given: tuple[object, ...], to: int | None, text: object, tokenizer: object, measuring: dict[str, Any]
) -> tuple[object, ...]:
    """The parts of the candidate that did best on a text."""
    if given or to is None:
        raise ValueError(
            "extend(text=…): a text is for choosing by measuring, which needs the length to reach, to=…, and no "
            "method; to measure what was chosen already, milepost.hf.measure(model, text, tokenizer)"
        )
    if not measurable(model):
        raise ValueError(
            "extend(text=…): a learned table and buckets change in one way; nothing is measured, leave it out"
        )
    found = choose(model, text, tokenizer, to=to, **measuring)
    if found.best is not None:
        return found.best.parts
    other = "" if found.nearest is None else (
        f'. To extend it all the same: extend(model, *plan(model, to={to})["{found.nearest.row}"].parts)'
    )  # fmt: skip
    raise ValueError(f"extend(to={to}, text=…): {found.verdict()}{other}")
