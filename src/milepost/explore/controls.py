"""What a reader can set: sliders, choices, switches and words, each of which says no by its name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, cast

from milepost.explore.scene import Say


class NotPossibleError(ValueError):
    """What a reader asked for and cannot have: the control it is about, and why, in both languages."""

    def __init__(self, control: str, why: Say) -> None:
        super().__init__(f"{control}: {why.en}")
        self.control = control
        self.why = why


@dataclass(frozen=True)
class Slider:
    """A number between two ends."""

    name: str
    label: Say
    low: float
    high: float
    start: float
    step: float = 1.0
    """Between values; of a doubling slider, in powers of two."""
    scale: Literal["even", "doubling"] = "even"

    def read(self, given: Any) -> float:
        """Return the number; a whole one as an int."""
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not math.isfinite(given):
            raise NotPossibleError(self.name, Say("give a number", "请给一个数"))
        if not self.low <= given <= self.high:
            span = f"{self.low:,g} … {self.high:,g}"
            raise NotPossibleError(self.name, Say(f"give a number within {span}", f"请给 {span} 之间的数"))
        whole = self.step == int(self.step) if self.scale == "even" else self.low == int(self.low)
        return round(given) if whole else float(given)

    def grid(self, places: int) -> list[float]:
        """Return values from end to end, the start among them: what an exported page has been computed at."""
        low, high, start = (
            (math.log2(each) for each in (self.low, self.high, self.start))
            if self.scale == "doubling"
            else (self.low, self.high, self.start)
        )
        steps = round((high - low) / self.step)
        chosen = sorted({round(n * steps / max(1, places - 1)) for n in range(places)})
        values = {low + n * self.step for n in chosen if n <= steps} | {start, high}
        plain = {2.0**each if self.scale == "doubling" else each for each in values}
        return sorted({self.read(min(max(round(each, 9), self.low), self.high)) for each in plain})


@dataclass(frozen=True)
class Choice:
    """One of several."""

    name: str
    label: Say
    options: tuple[tuple[str, Say], ...]
    start: str

    def read(self, given: Any) -> str:
        """Return the value of the option."""
        known = [value for value, _ in self.options]
        if not isinstance(given, str) or given not in known:
            raise NotPossibleError(
                self.name, Say(f"choose one of {', '.join(known)}", f"请从 {'、'.join(known)} 中选一个")
            )
        return given

    def grid(self, places: int) -> list[str]:
        """Return every option."""
        return [value for value, _ in self.options]


@dataclass(frozen=True)
class Switch:
    """On or off."""

    name: str
    label: Say
    start: bool = False

    def read(self, given: Any) -> bool:
        """Return whether it is on."""
        if not isinstance(given, bool):
            raise NotPossibleError(self.name, Say("switch it on or off", "请选择开或关"))
        return given

    def grid(self, places: int) -> list[bool]:
        """Return both."""
        return [False, True]


@dataclass(frozen=True)
class Words:
    """A text."""

    name: str
    label: Say
    start: str
    most: int = 200
    """How many letters it may have."""
    lines: int = 1

    def read(self, given: Any) -> str:
        """Return the text."""
        if not isinstance(given, str) or not given.strip():
            raise NotPossibleError(self.name, Say("write something", "请写点什么"))
        if len(given) > self.most:
            many = f"at most {self.most:,} letters; this has {len(given):,}"
            raise NotPossibleError(self.name, Say(many, f"最多 {self.most:,} 个字符，现有 {len(given):,} 个"))
        return given

    def grid(self, places: int) -> list[str]:
        """Return the text that stands there: an exported page has no other."""
        return [self.start]


Control = Slider | Choice | Switch | Words


def read(controls: tuple[Control, ...], given: Any) -> dict[str, Any]:
    """Return what every control is set to; what is not given stands where it starts."""
    if not isinstance(given, dict):
        raise NotPossibleError("", Say("give the controls by name", "请按名称给出各控件的值"))
    asked = cast("dict[Any, Any]", given)
    known = [each.name for each in controls]
    for name in asked:
        if name not in known:
            raise NotPossibleError(
                str(name)[:40], Say(f"there is no such control, only {', '.join(known)}", "没有这个控件")
            )
    return {each.name: each.read(asked.get(each.name, each.start)) for each in controls}


__all__ = ["Choice", "Control", "NotPossibleError", "Slider", "Switch", "Words", "read"]
