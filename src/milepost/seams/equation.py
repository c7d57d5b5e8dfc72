"""A scheme as its equation, filled in, seam by seam."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from milepost.seams.arguments import spell
from milepost.seams.verbs import verbs_of
from milepost.seams.visible import Visible

if TYPE_CHECKING:
    from milepost.scheme import Scheme


def formula_of(method: object) -> str:
    """The formula in a method's docstring: its first indented block, lines joined."""
    doc = inspect.getdoc(method if isinstance(method, type) else type(method)) or ""
    lines: list[str] = []
    for line in doc.splitlines():
        if line.startswith("    "):
            lines.append(line.strip())
        elif lines and line.strip():
            break
    return "; ".join(line for line in lines if line)


def equation(scheme: Scheme) -> str:
    """The equation of attention with just the seams this scheme uses, then each seam with its parts."""
    used = {verb for part in scheme.parts for verb in verbs_of(part)}
    dot = "⟨turn(q_i, p_i), turn(k_j, r_j)⟩" if "turn" in used else "⟨q_i, k_j⟩"
    if "relate" in used:
        dot = f"({dot} + relate(q_i, k_j, p_i − r_j))"
    score = f"{'scale' if 'scale' in used else '1/√d'} · {'sharpen(i) · ' if 'sharpen' in used else ''}{dot}"
    if "bend" in used:
        score = f"bend({score}, h, p_i, r_j)"
    if "bend_rows" in used:
        score = f"bend_rows({score})"
    if "see" in used:
        score += " | see(i, j)"
    if "rest" in used:
        score += " ; rest(h)"
    head = f"out_i = Σ_j softmax_j( {score} ) · v_j"
    width = max((len(verb) for verb in used), default=0)
    lines = [head]
    for part in scheme.parts:
        verbs = verbs_of(part) or ("—",)
        told = repr(part) if isinstance(part, Visible) else spell(part)
        meaning = "" if isinstance(part, Visible) else formula_of(part)
        for number, verb in enumerate(verbs):
            lines.append(f"  {verb:<{width}}  {told}" + (f":  {meaning}" if meaning and number == 0 else ""))
    return "\n".join(lines)
