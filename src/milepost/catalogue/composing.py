"""Rules for combining a method with others, from its verbs and facets, as `Scheme` applies them."""

import inspect
from collections.abc import Iterator

from milepost.seams.arguments import Learner

BY_VERB = {
    "embed": "Acts before the first layer: scheme.embed(x). Inside attend it does nothing.",
    "frequencies": "An argument of a rotation, not a part by itself: Rope(head_dim, stretch={name}(…)).",
    "slopes": "An argument of ALiBi, not a part by itself: Alibi(heads, stretch={name}(…)).",
    "sample": "Not a part of a scheme: it draws positions for attend(…, position=…, key_position=…).",
    "place": "One part remaps positions; the others must depend on distances alone, as relative ones do.",
    "turn": "Acts inside attend, which is given raw queries and keys.",
    "relate": "Adds to the dot product before the softmax scale, from raw queries and keys.",
    "scale": "Sets the softmax scale, so there can be one such part.",
    "sharpen": "Multiplies the softmax scale; factors of several parts multiply. Biases are not scaled.",
    "bend": "Acts after the softmax scale; parts with this verb act in the order listed.",
    "bend_rows": "Acts on rows of masked scores, after every part that changes single ones.",
    "rest": "Adds to the softmax's denominator; several such parts add up.",
    "see": "A key is visible only if every such part shows it.",
}


def composes(name: str, each: object, verbs: tuple[str, ...]) -> tuple[str, ...]:
    """Return sentences about what the method requires in a scheme, and what it excludes."""
    of_verbs = (BY_VERB[verb].format(name=name) for verb in verbs if verb in BY_VERB)
    return (*of_verbs, *(_of_facets(each, verbs) if inspect.isclass(each) else ()))


def _of_facets(method: type, verbs: tuple[str, ...]) -> Iterator[str]:
    if _holds(method, "rotary") or _depends(method, "rotary"):
        yield "One rotation a scheme: a second would rotate every pair of channels twice."
    if _holds(method, "needs_causal"):
        yield "Needs a visible part that hides the keys ahead, such as causal."
    if _holds(method, "is_causal"):
        yield "Hides the keys ahead by itself; causal is not needed."
    moved = {"turn", "relate", "bend"} & set(verbs)
    if moved and _holds(method, "relative"):
        yield "Depends on distances alone, so it combines with Rerope(window) and other places."
    elif moved and not _depends(method, "relative"):
        yield "Depends on more than distances, so it does not combine with places such as Rerope(window)."
    if _holds(method, "additive"):
        yield "scheme.bias(index, key_index) gives it as one tensor, for an attention of your own."
    if "heads" in inspect.signature(method).parameters:
        yield "Made for a number of query heads; all parts of a scheme must agree on it."
    if _holds(method, "by_length"):
        yield "Depends on the length of the text; Cache keeps keys raw for that."
    elif _depends(method, "by_length"):
        yield "With some arguments it depends on the length of the text; Cache keeps keys raw for that."
    if hasattr(method, "axes"):
        yield "Positions may have several coordinates: [b t axes]."
    if issubclass(method, Learner):
        yield "One object in several layers shares its weights; make one for each layer to keep them apart."


def _holds(method: type, facet: str) -> bool:
    return not _depends(method, facet) and bool(getattr(method, facet, False))


def _depends(method: type, facet: str) -> bool:
    """True if a facet depends on the arguments."""
    return isinstance(inspect.getattr_static(method, facet, None), property)
