"""A story: one question on one screen. The reader guesses first, then the library computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from milepost.explore.controls import Control, read
from milepost.explore.scene import Say, Scene


@dataclass(frozen=True)
class Guess:
    """What is asked before anything is shown: a curve to draw over the axis of a figure, or an answer to choose."""

    question: Say
    figure: int = 0
    """Which figure stays hidden until the guess is made."""
    line: int = 0
    """Which of its curves is guessed; where the figure has no curves, answers are offered."""
    answers: tuple[Say, ...] = ()
    right: int = 0
    """Which of the answers the computation gives."""
    bare: bool = False
    """No mark stands on the empty axes: one of the figure would give the answer away."""
    measured: bool = False
    """The figure shows what was measured elsewhere: the page does not say that it is computed."""


@dataclass(frozen=True)
class Story:
    """A question, what can be set, what is guessed, what is computed, and where to go on from it.

    compute takes what the controls are set to, by name, and returns a scene: everything in it comes from the library.
    """

    name: str
    """As links have it: "order"."""
    question: Say
    lead: Say
    """Two or three sentences before the guess."""
    look_for: Say
    """What to look for once it is drawn."""
    controls: tuple[Control, ...]
    guess: Guess
    compute: Callable[..., Scene]
    try_own: tuple[str, ...] = ()
    """Schemes, as the composer takes them, with everything set: "try your own" opens them, or those of the scene."""
    try_trained: int = 4096
    try_length: int = 32_768
    grid: int = 9
    """At how many places of each slider an exported page is computed."""

    def scene(self, given: Any) -> Scene:
        """Return what it comes to; a NotPossibleError names the control that cannot be had."""
        return self.compute(**read(self.controls, given))


__all__ = ["Guess", "Story"]
