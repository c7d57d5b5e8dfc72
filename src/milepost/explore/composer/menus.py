"""The menus of the composer, from the library's own catalogue, and a part as controls that write its text anew."""

from __future__ import annotations

import inspect
import re
import typing
from functools import cache
from typing import Any

import milepost as mp
from milepost.catalogue.groups import group_of
from milepost.explore.controls import Choice, Control, Slider, Switch
from milepost.explore.scene import Say, plain
from milepost.explore.server.told import control as told
from milepost.seams.arguments import spell_value
from milepost.seams.verbs import SlopeStretch, Stretch, verbs_of
from milepost.seams.visible import Visible

SECTIONS: dict[str, tuple[str, Say]] = {
    "turn": ("Turns", Say("Rotation", "旋转")),
    "relate": ("Relations", Say("Tables by distance", "相对位置表")),
    "bend": ("Biases", Say("Biases", "偏置")),
    "place": ("Places", Say("Regions and windows", "区域与窗口")),
    "scale": ("Scale and softmax", Say("Sharpening and sinks", "锐化与汇")),
    "rows": ("Counting", Say("Counting", "计数")),
    "none": ("No position", Say("No position", "无位置")),
    "stretch": ("Stretches of RoPE", Say("Stretch", "拉伸")),
    "slopes": ("Stretches of ALiBi", Say("Stretch", "拉伸")),
}
"""The menus, by the groups of the catalogue."""
LEFT_OUT = {"AxialRope", "FloaterLayer", "LongRope", "TwoPartRope"}
"""What reads two coordinates, a flow that takes seconds, and a factor for every pair; text takes the last two."""
INSIDE = {"Rerope", "LeakyRerope", "SelfExtend", "DualChunk"}
"""What Pivot, Dilute and KeepSinks may be around."""

STARTS: dict[str, str] = {
    "Alibi": "Alibi(heads)", "AlibiDynamicNtk": "AlibiDynamicNtk(trained)",
    "AlibiInterpolate": "AlibiInterpolate(max(1, longest // trained))",
    "AlibiNtk": "AlibiNtk(max(1, longest // trained))", "ByParts": "ByParts(max(1, longest // trained), trained)",
    "Cope": "Cope(dim, 64)", "Deberta": "Deberta(width, heads, dim, reach=512)",
    "DeepseekScale": "DeepseekScale(max(1, longest // trained), weight=0.707)",
    "Dilute": "Dilute(Rerope(trained // 2), trained)", "DualChunk": "DualChunk(3 * trained // 4, trained // 8)",
    "DynamicLinear": "DynamicLinear(trained)", "DynamicNtk": "DynamicNtk(trained)",
    "DynamicYarn": "DynamicYarn(trained)", "Fire": "Fire(heads, trained=trained)", "FusedRope": "FusedRope(dim)",
    "Interpolate": "Interpolate(max(1, longest // trained))", "KeepSinks": "KeepSinks(Rerope(trained // 2))",
    "Kerple": "Kerple(heads)", "LeakyRerope": "LeakyRerope(trained // 4, 16)", "LearnedAlibi": "LearnedAlibi(heads)",
    "LearnedRope": "LearnedRope(dim)", "Llama3": "Llama3(max(1, longest // trained), trained)",
    "Llama4Scale": "Llama4Scale(chunk=trained)", "LogN": "LogN(trained)", "Nezha": "Nezha(dim)", "Nope": "Nope()",
    "Ntk": "Ntk(max(1, longest // trained))", "NtkMixed": "NtkMixed(max(1, longest // trained))",
    "OffsetAlibi": "OffsetAlibi(heads)", "Partial": "Partial(Rope(dim // 2), of=dim)",
    "Pivot": "Pivot(Rerope(trained // 2), trained, strength=0.25)", "Proportional": "Proportional(0.5)",
    "QkNorm": "QkNorm(dim)", "Rerope": "Rerope(trained // 2)", "Rope": "Rope(dim)", "Sandwich": "Sandwich(heads, 128)",
    "Scale": "Scale(1.0)", "SelfExtend": "SelfExtend(8, trained // 32 * 8)", "Shaw": "Shaw(dim)",
    "SinkLogit": "SinkLogit(heads)", "SoftCap": "SoftCap(50)", "SoftmaxOne": "SoftmaxOne(heads)",
    "SplitAlibi": "SplitAlibi(heads)", "Stream": "Stream(4, trained - 4)", "T5Bias": "T5Bias(heads)",
    "TransformerXL": "TransformerXL(width, heads, dim)", "Xpos": "Xpos(dim)",
    "Yarn": "Yarn(max(1, longest // trained), trained)",
}  # fmt: skip
"""How a method is put into a scheme: sized by the composer's own lengths."""

SEEN: tuple[tuple[str, Say, str, str, str], ...] = (
    ("causal", Say("causal", "因果"), r"causal", "causal", "causal"),
    ("everything", Say("everything", "全部可见"), r"everything", "everything", "everything"),
    (
        "window", Say("a window", "窗口"), r"causal & window\((?P<n>\d+)\)", "causal & window({n})",
        "causal & window(trained)",
    ),
    (
        "sinks", Say("a window and the first tokens", "窗口加开头的 token"),
        r"causal & \(window\((?P<n>\d+)\) \| sinks\((?P<k>\d+)\)\)", "causal & (window({n}) | sinks({k}))",
        "causal & (window(trained - 4) | sinks(4))",
    ),
    (
        "chunks", Say("chunks", "分块"), r"causal & chunks\((?P<n>\d+)\)", "causal & chunks({n})",
        "causal & chunks(trained)",
    ),
)  # fmt: skip
"""Masks: name, label, how each is printed, written, and put in."""

Range = tuple[float, float, float, typing.Literal["even", "doubling"]]
RANGES: dict[str, Range] = {
    "head_dim": (8, 256, 1, "doubling"), "of": (8, 256, 1, "doubling"), "heads": (1, 32, 1, "doubling"),
    "theta": (100, 100_000_000, 0.25, "doubling"), "factor": (1, 64, 0.25, "even"),
    "trained": (64, 131_072, 1, "doubling"), "window": (1, 131_072, 0.5, "doubling"),
    "neighbours": (1, 65_536, 0.5, "doubling"), "chunk": (4, 131_072, 0.5, "doubling"),
    "local": (1, 65_536, 0.5, "doubling"), "reach": (2, 8192, 0.5, "doubling"), "positions": (2, 1024, 0.5, "doubling"),
    "at": (1, 65_536, 0.5, "doubling"), "n": (1, 131_072, 0.5, "doubling"), "k": (1, 64, 1, "even"),
    "group": (1, 64, 1, "even"), "sinks": (1, 64, 1, "even"), "buckets": (4, 256, 2, "even"),
    "strength": (0, 4, 0.05, "even"), "share": (0.05, 1, 0.05, "even"), "b": (0, 1, 0.025, "even"),
    "fast": (2, 64, 0.5, "even"), "slow": (0.1, 1.9, 0.1, "even"), "low": (0.25, 3.75, 0.25, "even"),
    "high": (4, 16, 0.5, "even"), "cap": (1, 100, 0.5, "even"), "weight": (0, 2, 0.05, "even"),
    "bias_max": (1, 16, 0.5, "even"), "value": (0.05, 4, 0.05, "even"), "offset": (-8, 8, 0.5, "even"),
    "fade": (64, 8192, 0.5, "doubling"), "width": (4, 64, 4, "even"),
}  # fmt: skip
"""Sliders by the name of the argument: both ends, the step, and how it grows."""
FIRST = {
    "theta", "factor", "trained", "window", "neighbours", "chunk", "local", "reach", "positions", "n", "k", "group",
    "sinks", "strength", "share", "cap", "method", "stretch", "value", "weight", "bias_max",
}  # fmt: skip
"""Arguments that are shown at once; the others are under “more”."""


def menus() -> list[dict[str, Any]]:
    """Return the menus: what can be chosen in each, and the text that is put into a scheme."""
    found: list[dict[str, Any]] = []
    for key, (group, label) in SECTIONS.items():
        options = [
            {"method": name, "title": title, "text": STARTS[name]}
            for name, title in _methods()[group]
            if name in STARTS
        ]
        found.append({"name": key, "label": plain(label), "options": options})
    seen = [{"method": name, "title": plain(label), "text": start} for name, label, _, _, start in SEEN]
    found.append({"name": "see", "label": plain(Say("What is visible", "可见范围")), "options": seen})
    inside = next(each for each in found if each["name"] == "place")["options"]
    found.append(
        {
            "name": "inside",
            "label": plain(Say("Far keys", "远处的键")),
            "options": [each for each in inside if each["method"] in INSIDE],
        }
    )
    return found


@cache
def _methods() -> dict[str, list[tuple[str, str]]]:
    """Return the methods of each group, with their names in papers."""
    found: dict[str, list[tuple[str, str]]] = {group: [] for group, _ in SECTIONS.values()}
    for entry in mp.methods():
        group = group_of(entry.verbs).title
        if group in found and entry.name not in LEFT_OUT:
            found[group].append((entry.name, entry.title if len(entry.title) <= 32 else ""))
    return found


@cache
def section_of(method: str) -> str:
    """Return the menu that has a method; nothing where none has."""
    groups = {name: key for key, (group, _) in SECTIONS.items() for name, _ in _methods()[group]}
    return groups.get(method, "")


def form(part: object) -> dict[str, Any]:
    """Return a part as controls, and the text into which their values are put: `Rerope(window={window})`."""
    if isinstance(part, Visible):
        return _seen(part)
    name = type(part).__name__
    written: list[str] = []
    fields: list[dict[str, Any]] = []
    hints = _hints(type(part))
    for argument, parameter in inspect.signature(type(part)).parameters.items():
        value = getattr(part, argument)
        menu = _menu_of(argument, value, hints.get(argument))
        control = None if menu else _control(argument, value, hints.get(argument))
        # What two parts share has to be changed in both, so it is text.
        if menu or control:
            inner = None if value is None else form(value) if menu else None
            fields.append(
                {"name": argument, "more": argument not in FIRST}
                | ({"menu": menu, "none": parameter.default is None, "form": inner} if menu else {"control": control})
            )
            written.append(f"{argument}={{{argument}}}")
        elif value != parameter.default:
            written.append(f"{argument}={spell_value(value, whole=True)}")
    return {"method": name, "menu": section_of(name), "template": f"{name}({', '.join(written)})", "fields": fields}


def _seen(part: Visible) -> dict[str, Any]:
    text = repr(part)
    for name, _, pattern, template, _ in SEEN:
        found = re.fullmatch(pattern, text)
        if found:
            fields = [
                {"name": each, "more": False, "control": _control(each, int(value), int)}
                for each, value in found.groupdict().items()
            ]
            return {"method": name, "menu": "see", "template": template, "fields": fields}
    return {"method": "", "menu": "see", "template": text.replace("{", "{{"), "fields": []}


def _menu_of(argument: str, value: Any, hint: Any) -> str:
    """Return the menu from which an argument is chosen, if it is a method."""
    if argument == "stretch":
        return "slopes" if "Slope" in str(hint) else "stretch"
    if argument == "method" and "place" in verbs_of(value):
        return "inside"
    if argument == "method" and "turn" in verbs_of(value):
        return "turn"
    return "stretch" if isinstance(value, Stretch) else "slopes" if isinstance(value, SlopeStretch) else ""


def _control(argument: str, value: Any, hint: Any) -> dict[str, Any] | None:
    """Return the control of an argument, with its present value; None where there is none for it."""
    label = Say(argument, argument)
    made: Control | None = None
    words = [each for each in typing.get_args(hint) if isinstance(each, str)] if _is_literal(hint) else []
    if isinstance(value, bool):
        made = Switch(argument, label, value)
    elif words and isinstance(value, str):
        made = Choice(argument, label, tuple((each, Say(each, each)) for each in words), value)
    elif argument in RANGES and isinstance(value, (int, float)):
        low, high, step, scale = RANGES[argument]
        made = Slider(argument, label, min(low, value), max(high, value), value, step, scale)
    if made is None:
        return None
    whole = hint is int or str(hint) in ("int", "int | None")
    return told(made) | ({"whole": whole} if isinstance(made, Slider) else {})


def _is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal


@cache
def _hints(method: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(method.__init__)
    except NameError:
        return {}


__all__ = ["SECTIONS", "SEEN", "STARTS", "form", "menus", "section_of"]
