"""Composed schemes as a story, so that they can be exported: the lengths can be moved, all else stands."""

from __future__ import annotations

from typing import Any

from milepost.explore.composer import views
from milepost.explore.composer.reading import python_of, text_of
from milepost.explore.composer.settings import SETTINGS
from milepost.explore.controls import Slider
from milepost.explore.scene import Say, Scene
from milepost.explore.stories.story import Guess, Story

KEPT = ("score", "weights", "distances", "maps", "angles")
MOVES = ("trained", "length")
"""The controls that an exported composition has."""


def composed(schemes: list[str], state: dict[str, Any]) -> Story:
    """Return the schemes as a story; a NotPossibleError names the one that cannot be read."""
    first = views.asked({"schemes": schemes, "state": state})
    # What a text leaves to the lengths is settled by those that it was set up with.
    texts = [text_of(each) for each in first.schemes]
    moving = tuple(each for each in SETTINGS if each.name in MOVES and isinstance(each, Slider))
    fixed = {name: value for name, value in state.items() if name not in MOVES}

    def compute(**lengths: Any) -> Scene:
        scenes = [views.VIEWS[name](views.asked({"schemes": texts, "state": fixed | lengths})) for name in KEPT]
        said = dict.fromkeys(scene.says for scene in scenes if scene.says.en)
        return Scene(
            tuple(figure for scene in scenes for figure in scene.figures),
            Say(" ".join(each.en for each in said), "".join(each.zh for each in said)),
            "import milepost as mp\n\n"
            + "\n".join(f"{'ABCD'[n]} = {python_of(s)}" for n, s in enumerate(first.schemes)),
        )

    starts = {"trained": first.trained, "length": first.length}
    return Story(
        "schemes",
        Say("Schemes side by side", "方案对比"),
        Say(
            "; ".join(f"{'ABCD'[n]}: {text}" for n, text in enumerate(texts)),
            "；".join(f"{'ABCD'[n]}：{text}" for n, text in enumerate(texts)),
        ),
        Say(
            "Where a curve goes past the trained length, and which scheme shows the rotation nothing new: no distance "
            "past the trained length, or, where it is stretched, no new angle.",
            "看曲线在训练长度之外如何变化，哪个方案不给旋转任何新东西：没有超出训练长度的距离，或者（旋转被拉伸时）没有新角度。",
        ),
        tuple(Slider(e.name, e.label, e.low, e.high, starts[e.name], e.step, e.scale) for e in moving),
        Guess(Say("", "")),
        compute,
        tuple(texts),
        first.trained,
        first.length,
    )


__all__ = ["composed"]
