"""The printed equation, part by part, and what one part contributes alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from milepost import Scheme
from milepost.explore.composer.views import DISTANCE, Asked, name_of, numbers, whole_rows
from milepost.explore.controls import NotPossibleError
from milepost.explore.scene import Line, Lines, Say, Scene
from milepost.seams.arguments import spell
from milepost.seams.equation import equation
from milepost.seams.verbs import verbs_of
from milepost.seams.visible import Visible


def terms_of(scheme: Scheme) -> dict[str, Any]:
    """Return the printed equation: its sum, and of each part its lines."""
    first, *lines = equation(scheme).splitlines()
    blocks: list[list[str]] = []
    for line in lines:
        # A verb stands at the margin of the list; what belongs to it is further right.
        if line[2:3].strip():
            blocks.append([])
        blocks[-1].append(line)
    terms: list[dict[str, Any]] = []
    for part in scheme.parts:
        own = [blocks.pop(0) for _ in range(max(1, len(verbs_of(part)))) if blocks]
        terms.append({"name": called(part), "lines": [line for block in own for line in block]})
    return {"sum": first, "terms": terms}


def called(part: object) -> str:
    """Return a part as it is written."""
    return repr(part) if isinstance(part, Visible) else spell(part, whole=True)


def term(asked: Asked, number: int, which: int) -> Scene:
    """Return the score with and without one part, and the difference: what the part contributes."""
    if not 0 <= number < len(asked.schemes) or not 0 <= which < len(asked.schemes[number].parts):
        raise NotPossibleError("part", Say("there is no such part", "没有这个部件"))
    scheme = asked.schemes[number]
    part = scheme.parts[which]
    others = Scheme(*(each for n, each in enumerate(scheme.parts) if n != which))
    name = called(part)
    for each in (scheme, others):
        why = whole_rows(each)
        if why is not None:
            raise NotPossibleError("part", why)
    at = asked.distances()
    # Without the part there may be other heads and channels; both are given the vectors of the whole.
    q, k = asked.vectors_of(scheme)
    head = asked.head_of(scheme)
    try:
        whole = scheme.curve(q, k, at, asked.length)[head].double().numpy()
        rest = others.curve(q, k, at, asked.length)[head].double().numpy()
    except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
        words = " ".join(str(error).split())[:400]
        raise NotPossibleError("part", Say(words, f"无法计算：{words}")) from error
    shown = {
        "whole": whole,
        "rest": rest,
        "alone": np.where(np.isfinite(whole) & np.isfinite(rest), whole - rest, np.nan),
    }
    shown = {key: [float(each) if np.isfinite(each) else np.nan for each in values] for key, values in shown.items()}
    letter = name_of(number).en
    lines = (
        Line(Say(f"{letter} unchanged minus without it", f"{letter} 原样减去掉它"), shown["alone"], number),
        Line(Say(f"{letter} without it", f"{letter} 去掉它"), shown["rest"], 8, True),
        Line(Say(f"{letter} unchanged", f"{letter} 原样"), shown["whole"], 7, True),
    )
    hides = np.isfinite(rest) & ~np.isfinite(whole)
    said = Say("", "")
    if hides.any():
        first = int(at[torch.from_numpy(hides)][0])
        said = Say(f"It hides keys, the first of them {first:,} back.", f"它使一些键不可见，最近的在 {first:,} 之前。")
    elif not np.nan_to_num(np.array(shown["alone"])).any():
        said = Say("Of this query and key it changes no score.", "对这一对查询和键，它不改变任何分数。")
    title = Say(f"What {name} contributes", f"{name} 的贡献")
    figure = Lines(
        title, DISTANCE, Say("score", "分数"), numbers(at), lines,
        tuple(replace(each, control="") for each in asked.marks()),
        "log" if asked.axis == "log" else "even", link="distance",
    )  # fmt: skip
    return Scene((figure,), said)


__all__ = ["called", "term", "terms_of"]
