"""An exported file in a browser, opened from disk: it moves, says where it has no value, and asks nobody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milepost.explore.server.export import export, of_link
from tests.explore.server.browsing import browser_test, until
from tests.explore.server.serving import Served
from tests.explore.server.trial import TRIAL

pytestmark = browser_test
COMPUTED = ".result:not([hidden]) .figures .figure"


def drawn(page: Any) -> list[float | None]:
    return page.evaluate("milepost.shown.figures[0].body.plot.data[1]")


def test_an_exported_story_answers_as_the_server_does(trial: Served, open_: Any, tmp_path: Path):
    file = tmp_path / "story.html"
    file.write_text(export(TRIAL).html)
    for period in (2, 64):
        there = open_(f"{trial.link}#story=trial&seen=1&period={period}")
        here = open_(f"file://{file}#seen=1&period={period}")
        for window in (there, here):
            window.page.wait_for_selector(COMPUTED)
        assert drawn(there.page) == drawn(here.page)
        assert here.page.inner_text(".said") == there.page.inner_text(".said")
        assert here.page.locator(".result .note").inner_text() == ""
        assert here.wrong == []


def test_a_file_that_cannot_be_written_is_said_beside_its_button(trial: Served, open_: Any):
    window = open_(f"{trial.link}#story=trial")
    window.expected = ("ERR_FAILED",)
    page = window.page
    page.route("**/api/export", lambda route: route.abort())
    page.click("text=Save as one HTML file")
    page.wait_for_selector(".ends .no:visible")
    assert page.inner_text(".ends .no").startswith("The server does not answer")
    page.unroute("**/api/export")
    with page.expect_download():
        page.click("text=Save as one HTML file")
    assert not page.locator(".ends .no").count()


def test_between_the_places_the_nearest_is_shown_and_said(open_: Any, tmp_path: Path):
    file = tmp_path / "story.html"
    file.write_text(export(TRIAL).html)
    window = open_(f"file://{file}")
    page = window.page
    page.wait_for_selector(".guess .u-over")
    page.click(".guess .buttons .quiet >> nth=1")
    page.wait_for_selector(COMPUTED)
    page.fill("[data-control=period] .number", "18")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.result .note').textContent.includes('Period 16')")
    slider = page.locator("[data-control=period] input[type=range]")
    slider.focus()
    page.keyboard.press("End")
    until(page, "document.querySelector('.result .note').textContent === ''")
    page.click("text=中文")
    until(page, "document.documentElement.lang === 'zh-CN'")
    page.wait_for_selector(COMPUTED)
    assert window.wide() == 0
    assert window.wrong == []


@pytest.mark.parametrize("width", [390, 1440])
def test_exported_schemes_keep_their_lengths(open_: Any, tmp_path: Path, width: int):
    story, given, guessed = of_link("#compose=&s=Rope(64),causal&s=Alibi(8),causal&length=512&trained=256", ())
    file = tmp_path / "schemes.html"
    file.write_text(export(replace(story, grid=2), given, guessed=guessed).html)
    window = open_(f"file://{file}", width, dark=True)
    page = window.page
    page.wait_for_selector(COMPUTED)
    page.locator(".mark.moves").last.focus()
    page.keyboard.press("End")
    until(page, "document.querySelector('[data-control=length] .number').value === '131,072'")
    assert window.wide() == 0
    assert window.wrong == []
