"""Printed formulas read as arithmetic, so that a test can compare them with what is computed."""

from __future__ import annotations

import math
import re
from typing import Any

import milepost as mp

SIGNS = (
    ("2π", "(2 * pi)"), ("−", "-"), ("·", "*"), ("×", "*"), ("^", "**"), ("²", "**2"), ("θ_n", "theta_n"),
    ("γ_n", "gamma_n"), ("⌊", "floor("), ("⌋", ")"), ("√(", "sqrt("), ("ln(", "log("),
)  # fmt: skip
FUNCTIONS = {"floor": math.floor, "sqrt": math.sqrt, "log": math.log, "exp": math.exp, "tanh": math.tanh,
             "max": max, "min": min, "abs": abs, "pi": math.pi}  # fmt: skip


def definitions(part: object) -> list[tuple[str, str]]:
    """What is printed of a part beneath its name, as (what is defined, its formula), in order."""
    lines = [line.strip() for line in str(mp.Scheme(part, mp.causal)).splitlines() if line.startswith("      ")]
    found: list[tuple[str, str]] = []
    for line in lines:
        for piece in re.split(r"[,;] {2,}", re.sub(r"^\w+:  ", "", line).rstrip(",")):
            name, sign, formula = re.fullmatch(r"(.*?)(?:\s+([=←])\s+(.*))?", piece).groups()  # pyright: ignore
            if sign:
                found.append((name, formula))
            elif piece != "L the length of the text":
                # A second case: `p − r  where |p − r| < 4,   ±4  beyond`.
                found[-1] = found[-1][0], f"{found[-1][1]},   {piece}"
    return found


def value(formula: str, **names: Any) -> float:
    """The value of a formula for what its names stand for."""
    formula = re.sub(r"\s+=\s+[\d.]+$", "", formula)
    cases = [each.strip() for each in re.split(r",\s{2,}", formula)]
    if len(cases) == 2:
        first, condition = re.fullmatch(r"(.*?)\s+(?:for|where) (.*)", cases[0]).groups()  # pyright: ignore
        second = re.sub(r"\s+(beyond|for the others)$", "", cases[1])
        return value(first if value(condition, **names) else second, **names)
    kept = formula.endswith(", kept within 0 … 1")
    text = formula.removesuffix(", kept within 0 … 1").replace("±", "+" if "⌊" in formula else "")
    text = re.sub(r"\|([^|]*)\|", r"abs(\1)", text)
    text = re.sub(r"\bln (max\([^)]*\)|\w+)", r"log(\1)", text)
    for sign, python in SIGNS:
        text = text.replace(sign, python)
    text = re.sub(r"\[(\w+ [<>] \w+)\]", r"(\1)", text)
    text = re.sub(r"(?<![\w.])(\d+)(?=[a-z(])", r"\1*", text)
    found = float(eval(text, FUNCTIONS | names))
    return min(1.0, max(0.0, found)) if kept else found
