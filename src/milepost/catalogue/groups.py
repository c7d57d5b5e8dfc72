"""The groups of the catalogue, one for each seam, in the order of the equation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """The methods of one seam."""

    title: str
    about: str
    verbs: tuple[str, ...] = ()


NOTHING = Group("No position", "the baseline")
FUNCTIONS = Group("Functions", "other exports, with the arguments that each requires")
GROUPS = (
    Group("Input", "positions added to the token embeddings before the first layer", ("embed",)),
    Group("Turns", "RoPE and its kin: queries and keys rotated before the dot product", ("turn",)),
    Group("Stretches of RoPE", "an argument of a rotation: Rope(head_dim, stretch=…)", ("frequencies", "magnitude")),
    Group("Relations", "tables looked up by distance, inside the dot product", ("relate",)),
    Group("Biases", "each score changed by itself (score_mod), after the softmax scale", ("bend",)),
    Group("Stretches of ALiBi", "an argument of ALiBi: Alibi(heads, stretch=…)", ("slopes",)),
    Group("Counting", "whole rows of scores changed together", ("bend_rows",)),
    Group("Places", "position remapping: the distances of near and far pairs", ("place",)),
    Group("Scale and softmax", "softmax scale, temperature and attention sinks", ("scale", "sharpen", "rest")),
    NOTHING,
    Group("Visible", "which keys are visible (mask_mod); combine with &, | and ~", ("see",)),
    Group("Samplers", "positions to train with: attend(…, position=…)", ("sample",)),
    FUNCTIONS,
)

# A method with several verbs is listed where it is looked for first: Transformer-XL among the relations, though it also
# turns; DeBERTa there too, though it also sets the scale; StreamingLLM among the places, though it also hides keys.
LEADING = ("embed", "place", "relate", "turn", "bend_rows", "bend")


def group_of(verbs: tuple[str, ...]) -> Group:
    """Return the group of a method with these verbs."""
    first = next((verb for verb in LEADING if verb in verbs), verbs[0] if verbs else None)
    return next((group for group in GROUPS if first in group.verbs), NOTHING)
