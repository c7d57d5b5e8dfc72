"""What a page is told when it opens: the stories, the controls and the menus, as JSON has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from importlib import import_module, util
from typing import Any

from milepost.explore.controls import Control
from milepost.explore.scene import Lines, Scene, plain
from milepost.explore.stories.story import Story


def stories() -> tuple[Story, ...]:
    """Return the stories, in their order."""
    package = "milepost.explore.stories"
    found: Any = getattr(import_module(package), "STORIES", None)
    if found is None and util.find_spec(f"{package}.all") is not None:
        found = import_module(f"{package}.all").STORIES
    return tuple(found or ())


def control(each: Control) -> dict[str, Any]:
    """Return a control with its kind; numbers with every digit."""
    return {"kind": type(each).__name__.lower(), **asdict(each)}


def controls(each: Iterable[Control]) -> list[dict[str, Any]]:
    """Return controls, in their order."""
    return [control(one) for one in each]


def story(each: Story) -> dict[str, Any]:
    """Return all of a story but what it computes."""
    return {
        "name": each.name,
        "question": plain(each.question),
        "lead": plain(each.lead),
        "look_for": plain(each.look_for),
        "controls": controls(each.controls),
        "guess": plain(each.guess),
        "try_own": list(each.try_own),
        "try_trained": each.try_trained,
        "try_length": each.try_length,
    }


def axes(each: Story, scene: Scene) -> dict[str, Any] | None:
    """Return the empty axes of the figure that is guessed, or None where an answer is chosen."""
    figure = scene.figures[each.guess.figure] if each.guess.figure < len(scene.figures) else None
    if not isinstance(figure, Lines) or each.guess.answers:
        return None
    span = figure.y_range or _span(figure)
    marks = () if each.guess.bare else figure.marks
    return plain(replace(figure, lines=(), marks=marks, y_range=span))


def _span(figure: Lines) -> tuple[float, float]:
    """Return a range for the values that does not give the curve away: with room above and below."""
    found = [value for line in figure.lines for value in line.values if abs(value) < 1e300]
    low, high = (min(found), max(found)) if found else (0.0, 1.0)
    if figure.y_scale == "log":
        positive = [value for value in found if value > 0] or [1.0]
        return min(positive) / 10, max(positive) * 10
    room = 0.35 * (high - low or 1.0)
    return (0.0 if low >= 0 > low - room else low - room), high + room


__all__ = ["axes", "control", "controls", "stories", "story"]
