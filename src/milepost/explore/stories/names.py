"""What the stories share: the names of axes and marks, and arrays as a figure takes them."""

from __future__ import annotations

from typing import Any, cast

from milepost.explore.scene import Mark, Say

DISTANCE = Say("distance in tokens", "距离（token）")
POSITION = Say("position in tokens", "位置（token）")
PAIR = Say("pair of channels, the fastest first", "第几对维度（从最快的一对数起）")
SCORE = Say("score", "分数")


def trained_at(length: float, control: str = "") -> Mark:
    """Return the mark of the trained length."""
    return Mark(Say(f"trained, {length:,g}", f"训练长度 {length:,g}"), length, control)


def same(text: str) -> Say:
    """Return a name that both languages share."""
    return Say(text, text)


def numbers(values: Any) -> list[float]:
    """Return the numbers of a tensor or an array, [n]."""
    return cast("list[float]", values.tolist())


__all__ = ["DISTANCE", "PAIR", "POSITION", "SCORE", "numbers", "same", "trained_at"]
