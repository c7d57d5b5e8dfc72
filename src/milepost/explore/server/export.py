"""A story as one file that needs no server: its scenes, computed at places of its controls."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from itertools import product
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import torch

from milepost import __version__
from milepost.explore.composer.settings import SETTINGS
from milepost.explore.composer.story import composed
from milepost.explore.controls import Control, NotPossibleError, Slider, Switch, read
from milepost.explore.scene import Say, plain
from milepost.explore.server import told
from milepost.explore.server.page import SCRIPTS, STYLES, frame, static
from milepost.explore.stories.story import Story

LARGEST = 500_000
"""Bytes of a file."""
MOST, SECONDS = 2500, 90.0
"""So many settings are computed, and for about so long."""
EXPORTED = "screens/exported.js"


@dataclass(frozen=True)
class Exported:
    """A file, and what is in it."""

    html: str
    settings: int
    fewer: tuple[str, ...]
    """Controls of which fewer places were kept than the story asks for."""


def export(story: Story, given: Any = None, lang: str = "en", *, guessed: bool = True) -> Exported:
    """Return a story as one file, with what the controls are set to as their start.

    Sliders are computed at the places of `Control.grid`, so many of them as fit; choices and switches at every one, and
    words as they stand. guessed: whether the reader is asked for a guess first.
    """
    state = read(story.controls, given or {})
    story = replace(story, controls=tuple(replace(each, start=state[each.name]) for each in story.controls))
    axes = told.axes(story, story.scene({})) if guessed else None
    head, foot = _around(story, lang)
    room = (LARGEST - len(head.encode()) - len(foot.encode())) * 3 // 4 - 2048
    scenes: dict[str, Any] = {}
    places = _places(story, room, scenes)
    while True:
        grids = _grids(story, places)
        found = [_scene(story, setting, scenes) for setting in _settings(grids)]
        fewer = tuple(
            each.name
            for each in story.controls
            if isinstance(each, Slider) and len(grids[each.name]) < len(each.grid(story.grid))
        )
        data: dict[str, Any] = {
            "version": __version__,
            "lang": lang,
            "story": told.story(story),
            "axes": axes,
            "open": not guessed,
            "grids": grids,
            "scenes": found,
            "fewer": list(fewer),
        }
        packed = zlib.compress(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode(), 9)
        if len(packed) <= room:
            return Exported(head + base64.b64encode(packed).decode() + foot, len(found), fewer)
        if places == 0:
            raise ValueError(
                f"export: {story.name} takes {len(packed):,} bytes even where no slider moves; at most {room:,} fit"
            )
        places -= 1


def of_link(link: str, stories: tuple[Story, ...]) -> tuple[Story, dict[str, Any], bool]:
    """Return the story of a link to a page, what it is set to, and whether it is guessed; schemes are one, too."""
    pairs = parse_qsl(urlsplit(link).fragment, keep_blank_values=True)
    values = dict(pairs)
    if "compose" in values:
        state = _state(SETTINGS, values)
        return composed([text for name, text in pairs if name == "s"], state), {}, False
    for each in stories:
        if each.name == values.get("story"):
            return each, _state(each.controls, values), "seen" not in values
    raise ValueError(f"export: {link!r} is no link to a story or to schemes; copy one from the page")


def _state(controls: tuple[Control, ...], values: dict[str, str]) -> dict[str, Any]:
    """Return the values of controls as a link has them."""
    found: dict[str, Any] = {}
    for each in controls:
        if each.name in values:
            text = values[each.name]
            try:
                number = isinstance(each, Slider)
                found[each.name] = float(text) if number else text == "1" if isinstance(each, Switch) else text
            except ValueError:
                raise NotPossibleError(each.name, Say("give a number", "请给一个数")) from None
    return found


def _places(story: Story, room: int, scenes: dict[str, Any]) -> int:
    """Return at how many places of each slider the scenes can be had, judged by a few of them."""
    began = time.monotonic()
    first, last = ([each.grid(2)[end] for each in story.controls] for end in (0, -1))
    starts = [each.start for each in story.controls]
    names = [each.name for each in story.controls]
    some = [_scene(story, dict(zip(names, values, strict=True)), scenes) for values in (starts, first, last)]
    each_takes = (time.monotonic() - began) / len(some)
    size = len(zlib.compress(json.dumps(some, ensure_ascii=False).encode(), 9)) / len(some)
    most = min(MOST, room / size * 1.3, max(1.0, SECONDS / max(each_takes, 1e-6)))
    for places in range(story.grid, 0, -1):
        if math.prod(len(each) for each in _grids(story, places).values()) <= most:
            return places
    return 0


def _grids(story: Story, places: int) -> dict[str, list[Any]]:
    """Return the values of each control; with no places a slider stays where it starts."""
    return {
        each.name: [each.start] if places == 0 and isinstance(each, Slider) else list(each.grid(places))
        for each in story.controls
    }


def _settings(grids: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield every setting, the last control the fastest."""
    return (dict(zip(grids, values, strict=True)) for values in product(*grids.values()))


def _scene(story: Story, setting: dict[str, Any], scenes: dict[str, Any]) -> Any:
    """Return a scene as the page has it, computed once; or why it cannot be had."""
    key = json.dumps(setting)
    if key not in scenes:
        try:
            with torch.no_grad():
                scenes[key] = plain(story.scene(setting))
        except NotPossibleError as error:
            scenes[key] = {"no": {"control": error.control, "why": plain(error.why)}}
        except (ValueError, TypeError, RuntimeError) as error:
            words = " ".join(str(error).split())[:400]
            scenes[key] = {"no": {"control": "", "why": {"en": words, "zh": f"无法计算：{words}"}}}
    return scenes[key]


def _around(story: Story, lang: str) -> tuple[str, str]:
    """Return the page before its data and after; nothing but its own script and style may run in it."""
    style = "\n".join(_own(name) for name in STYLES)
    script = "\n".join(_own(name) for name in (*SCRIPTS, EXPORTED))
    if "</script" in script.lower() or "</style" in style.lower():
        raise ValueError("export: a script that closes itself")
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:; "
        f"base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<link rel="icon" href="data:,">\n'
        f"<style>{style}</style>"
    )
    mark = "DATA-OF-THE-STORY"
    body = f'<script type="text/plain" id="data">{mark}</script>\n<script>{script}</script>\n'
    question = story.question.zh if lang == "zh" else story.question.en
    before, _, after = frame(lang, head, body, escape(f"{question} · milepost")).partition(mark)
    return before, after


def _own(name: str) -> str:
    found = static(name)
    assert found is not None, name
    return found


def _digest(text: str) -> str:
    """Return how a policy names a text that is let run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


__all__ = ["Exported", "export", "of_link"]
