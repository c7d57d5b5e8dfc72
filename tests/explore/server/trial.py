"""A story for tests: every kind of figure and control, and numbers that a test can compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from milepost.explore.controls import Choice, NotPossibleError, Slider, Switch, Words
from milepost.explore.scene import (
    Arrow,
    Arrows,
    Dial,
    Dials,
    Digits,
    Figure,
    Line,
    Lines,
    Map,
    Mark,
    Say,
    Scene,
    Table,
)  # fmt: skip
from milepost.explore.stories.story import Guess, Story

CONTROLS = (
    Slider("period", Say("Period", "周期"), 2, 64, 16, 2),
    Slider("length", Say("Length", "长度"), 64, 1024, 256, 1, "doubling"),
    Choice("shape", Say("Shape", "形状"), (("cos", Say("cosine", "余弦")), ("exp", Say("decay", "衰减"))), "cos"),
    Switch("log", Say("Log axis", "对数轴")),
    Words("text", Say("Words", "词语"), "one two <b>three</b>"),
)


def value(shape: str, x: float, period: float) -> float:
    return math.cos(math.tau * x / period) if shape == "cos" else math.exp(-x / period)


def compute(period: float, length: float, shape: str, log: bool, text: str) -> Scene:
    if text == "no":
        raise NotPossibleError("text", Say("not this word", "不能用这个词"))
    if text == "wrong":
        raise ValueError("Rope(dim=7): dim must be even")
    at = np.linspace(0, length, 129)
    curve = [value(shape, float(x), period) for x in at]
    curve[3] = math.nan
    side = np.linspace(0, length, 9)
    distance = side[:, None] - side[None, :]
    cells = np.where(distance >= 0, np.vectorize(lambda x: value(shape, float(x), period))(distance), -np.inf)
    words = text.split()
    figures: tuple[Figure, ...] = (
        Lines(
            Say("A curve", "一条曲线"), Say("distance", "距离"), Say("value", "值"), tuple(at),
            (
                Line(Say("curve", "曲线"), curve),
                Line(Say("half", "一半"), [x / 2 for x in curve], 1),
                Line(Say("before", "之前"), [1.0] * len(at), 1, True),
            ),
            (Mark(Say("length", "长度"), length, "length"), Mark(Say("period", "周期"), period, "period")),
            "log" if log else "even", link="distance",
        ),
        Map(Say("Cells", "格子"), Say("key", "键"), Say("query", "查询"), cells.tolist(), tuple(side), tuple(side),
            link="distance"),
        Map(Say("Words", "词语"), Say("key", "键"), Say("query", "查询"),
            [[float(i - j) if j <= i else -math.inf for j in range(len(words))] for i in range(len(words))],
            tuple(words), tuple(words)),
        Arrows(Say("Arrows", "箭头"), (
            Arrow(Say("query", "查询"), period / 64, "period", 1 / 64), Arrow(Say("key", "键"), 0.1))),
        Dials(Say("Clocks", "钟"), (Dial("0", 3.0, 9.0, 0.25), Dial("1", 0.3, 0.7, 0.7), Dial("2", 0.05, 0.05))),
        Digits(Say("Digits", "数位"), ((Say("position", "位置"), (1.0, 2.0, 5.5), (False, False, True)),), 10.0),
        Table(Say("Table", "表"), (Say("name", "名"), Say("period", "周期")),
              ((Say("own", "自己"), period), ("x", 1.5))),
    )  # fmt: skip
    return Scene(figures, Say(f"The period is {period:g}.", f"周期是 {period:g}。"), f"print({period:g})",
                 ("Alibi(8), causal",), (("head", 3),))  # fmt: skip


TRIAL = Story(
    "trial", Say("Is this a <test>?", "这是测试吗？"), Say("It is.", "是的。"), Say("The curve.", "曲线。"), CONTROLS,
    Guess(Say("What curve?", "什么曲线？")), compute, ("Rope(64), causal",), 4096, 8192, grid=3,
)  # fmt: skip
CHOSEN = Story(
    "chosen", Say("Which?", "哪个？"), Say("One.", "一个。"), Say("It.", "它。"), CONTROLS[:1],
    Guess(Say("Which one?", "哪一个？"), answers=(Say("this", "这个"), Say("that", "那个")), right=1),
    lambda **given: compute(length=64, shape="exp", log=False, text="a b", **given), grid=5,
)  # fmt: skip
STORIES: tuple[Any, ...] = (TRIAL, CHOSEN)
