"""The stories, in the order in which they are told."""

from __future__ import annotations

from milepost.explore.stories import clocks, config, keys, order, penalties, stretches, turn, unseen, windows
from milepost.explore.stories.story import Story

STORIES: tuple[Story, ...] = tuple(
    each.STORY for each in (order, turn, clocks, unseen, stretches, windows, penalties, keys, config)
)
BY_NAME: dict[str, Story] = {each.name: each for each in STORIES}

__all__ = ["BY_NAME", "STORIES"]
