"""What is set for all schemes of the composer at once."""

from __future__ import annotations

from milepost.explore.controls import Choice, Slider
from milepost.explore.scene import Say

SETTINGS = (
    Slider("trained", Say("Trained length, in tokens", "训练长度（token）"), 64, 131_072, 4096, 1, "doubling"),
    Slider("length", Say("Length of the text, in tokens", "文本长度（token）"), 64, 131_072, 32_768, 1, "doubling"),
    Choice(
        "vectors",
        Say("Query and key", "查询与键"),
        (
            ("alike", Say("alike: all channels 1", "相同：各通道为 1")),
            ("own", Say("random, the key like the query", "随机，键与查询相同")),
            ("apart", Say("random, each its own", "随机，各不相同")),
            ("nothing", Say("zero: what position adds by itself", "零：只看位置本身")),
        ),
        "alike",
    ),
    Slider("seed", Say("Draw of the random vectors", "随机向量的种子"), 0, 99, 0),
    Slider("head", Say("Head", "注意力头"), 0, 63, 0),
    Choice(
        "axis",
        Say("Axis of distance", "距离轴"),
        (("log", Say("logarithmic", "对数")), ("even", Say("even", "均匀"))),
        "log",
    ),
    Choice(
        "cells",
        Say("The maps show", "热图显示"),
        (
            ("score", Say("scores", "分数")),
            ("weight", Say("attention weights", "注意力权重")),
            ("distance", Say("distances as seen", "所见距离")),
        ),
        "score",
    ),
)
"""The trained length and the length are marks of every axis of distance, too."""

__all__ = ["SETTINGS"]
