"""An exported story: one file that holds what the server answers at the places of its controls."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from milepost.cli import app
from milepost.explore.controls import NotPossibleError
from milepost.explore.scene import plain
from milepost.explore.server.app import Explorer
from milepost.explore.server.command import NAMES, _name_of  # pyright: ignore[reportPrivateUsage]
from milepost.explore.server.export import LARGEST, export, of_link
from milepost.explore.stories.all import STORIES as ALL
from tests.explore.server.serving import served
from tests.explore.server.trial import CHOSEN, STORIES, TRIAL


def held(html: str) -> Any:
    """What lies in a file."""
    found = re.search(r'<script type="text/plain" id="data">([^<]*)</script>', html)
    assert found is not None
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


def settings(data: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{}]
    for name, grid in data["grids"].items():
        found = [{**one, name: value} for one in found for value in grid]
    return found


def test_every_scene_of_a_file_is_what_the_server_answers_there():
    made = export(TRIAL, {"period": 20}, "zh")
    data = held(made.html)
    asked = settings(data)
    assert len(asked) == len(data["scenes"]) == made.settings
    assert data["grids"]["period"][0] == 2
    assert {20, 64} <= set(data["grids"]["period"])
    assert data["grids"]["shape"] == ["cos", "exp"]
    assert data["grids"]["log"] == [False, True]
    with served(Explorer("a-token-of-a-test", STORIES)) as server:
        for n in range(0, len(asked), 5):
            answer = server.call("story", {"name": "trial", "set": asked[n]})
            assert data["scenes"][n] == answer.json, asked[n]


def test_a_file_needs_nothing_and_lets_nothing_else_run():
    html = export(CHOSEN).html
    assert len(html.encode()) < LARGEST
    assert not re.search(r'(?:src|href)="(?!data:)', html)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert "unsafe" not in policy[1]
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")


def test_a_title_is_no_markup():
    html = export(TRIAL).html
    assert "<title>Is this a &lt;test&gt;?" in html
    assert "<b>three" not in html


def test_a_file_that_would_be_too_large_has_fewer_places_and_says_which(monkeypatch: pytest.MonkeyPatch):
    from milepost.explore.server import export as module

    few, wide = replace(TRIAL, grid=2), replace(TRIAL, grid=9)
    least, whole = export(few), export(wide)
    assert whole.fewer == least.fewer == ()
    limit = (len(least.html.encode()) + len(whole.html.encode())) // 2
    monkeypatch.setattr(module, "LARGEST", limit)
    made = export(wide)
    assert len(made.html.encode()) <= limit
    assert "period" in made.fewer
    assert least.settings <= made.settings < whole.settings
    assert held(made.html)["fewer"] == list(made.fewer)


def test_what_cannot_be_had_at_a_place_lies_there_by_its_control():
    def compute(**given: Any) -> Any:
        if given["period"] > 60:
            raise ValueError("Rope(dim=7): dim must be even")
        return TRIAL.compute(length=64, shape="cos", log=False, text="a", **given)

    data = held(export(replace(CHOSEN, compute=compute)).html)
    assert data["scenes"][-1]["no"]["why"]["en"] == "Rope(dim=7): dim must be even"
    assert "no" not in data["scenes"][0]


def test_links_are_read_as_the_page_writes_them():
    story, given, guessed = of_link("http://127.0.0.1:1/#story=trial&seen=1&period=8&log=1&shape=exp", STORIES)
    assert (story.name, given, guessed) == ("trial", {"period": 8.0, "log": True, "shape": "exp"}, False)
    schemes, given, guessed = of_link("#compose=&s=Rope(64),causal&s=Alibi(8),causal&length=2048&axis=even", ())
    assert [each.start for each in schemes.controls] == [4096, 2048]
    assert len(schemes.scene(given).figures) == 3 + 2 + 1
    for link in ("#words=", "#story=none", "nothing"):
        with pytest.raises(ValueError, match="no link to a story"):
            of_link(link, STORIES)
    with pytest.raises(NotPossibleError, match="must be even"):
        of_link("#compose=&s=Rope(63)", ())


def test_composed_schemes_are_one_file_too():
    story, given, guessed = of_link("#compose=&s=Rope(64),causal&length=512&trained=256", ())
    data = held(export(replace(story, grid=2), given, guessed=guessed).html)
    assert data["open"]
    assert {256, 512} & set(data["grids"]["trained"])
    asked = settings(data)
    assert data["scenes"][0] == plain(story.scene(asked[0]))


def test_a_story_is_named_by_its_number_too():
    assert tuple(each.name for each in ALL) == NAMES
    assert [_name_of(str(n)) for n in range(1, 10)] == list(NAMES)
    assert _name_of("keys") == "keys"
    for text in ("0", "10", "-1", "1.0", "\u0663", "none", ""):
        with pytest.raises(ValueError, match=r"1 order, .*9 config"):
            _name_of(text)


def test_the_command_writes_a_file_and_ends(tmp_path: Path):
    def run(*words: str) -> Any:
        return CliRunner().invoke(app(), ["explore", "--export", str(tmp_path / "page.html"), *words])

    made = run("--link", "http://127.0.0.1:8765/#story=config&seen=1")
    assert made.exit_code == 0, made.output
    assert (tmp_path / "page.html").stat().st_size < LARGEST
    assert "page.html: " in made.output
    bad = run("--story", "none")
    assert bad.exit_code == 2
    assert "there is no such story; there are 1 order, 2 turn" in " ".join(bad.output.split())
