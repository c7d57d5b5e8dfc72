"""The groups of the catalogue, one for each seam, in the order of the equation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """The methods of one seam."""

    title: str
    about: str
    verbs: tuple[str, ...] = ()


NOTHING = Group("No position", "the baseline")
FUNCTIONS = Group("Functions", "what else the package offers, with the arguments each one needs")
GROUPS = (
    Group("Input", "token embeddings get their positions before the first layer", ("embed",)),
    Group("Turns", "RoPE and its kin: queries and keys turned before the dot product", ("turn",)),
    Group("Stretches of RoPE", "held by a rotation: Rope(dim, stretch=…)", ("frequencies", "magnitude")),
    Group("Relations", "tables looked up by distance, inside the dot product", ("relate",)),
    Group("Biases", "each score changed by itself, after the softmax scale", ("bend",)),
    Group("Stretches of ALiBi", "held by ALiBi: Alibi(heads, stretch=…)", ("slopes",)),
    Group("Counting", "whole rows of scores changed together", ("bend_rows",)),
    Group("Places", "where tokens stand, near and far", ("place",)),
    Group("Scale and softmax", "how sharply a query chooses, and whether it must", ("scale", "sharpen", "rest")),
    NOTHING,
    Group("Visible", "which keys a query may see; combine with &, | and ~", ("see",)),
    Group("Samplers", "positions to train with: attend(…, position=…)", ("sample",)),
    FUNCTIONS,
)

# A method with several verbs stands where it is looked for first: Transformer-XL among the relations, though it also
# turns; DeBERTa there too, though it also sets the scale; StreamingLLM among the places, though it also hides keys.
LEADING = ("embed", "place", "relate", "turn", "bend_rows", "bend")


def group_of(verbs: tuple[str, ...]) -> Group:
    """The group of a method with these verbs."""
    first = next((verb for verb in LEADING if verb in verbs), verbs[0] if verbs else None)
    return next((group for group in GROUPS if first in group.verbs), NOTHING)
