"""The explorer in a browser: stories are guessed, computed, changed and restored; nothing goes wrong on the way."""

from __future__ import annotations

import io
import math
import re
import threading
import time
from typing import Any

import pytest

from milepost.explore.server.app import Explorer
from tests.explore.server.browsing import browser_test, still, until
from tests.explore.server.serving import Served, served
from tests.explore.server.trial import STORIES

pytestmark = browser_test
COMPUTED = ".result:not([hidden]) .figures .figure"


def values(page: Any, figure: int = 0, line: int = 0) -> list[float | None]:
    """What a curve is drawn from."""
    return page.evaluate(f"milepost.shown.figures[{figure}].body.plot.data[{line + 1}]")


def state(page: Any, name: str) -> float:
    """What a slider is set to."""
    return float(page.locator(f"[data-control={name}] .number").input_value())


def tones(page: Any, clip: dict[str, float]) -> set[Any]:
    """The colours of a place."""
    from PIL import Image

    with Image.open(io.BytesIO(page.screenshot(clip=clip))) as picture:
        made = picture.convert("RGB")
        return {made.getpixel((x, y)) for x in range(made.width) for y in range(made.height)}


def test_a_curve_is_guessed_by_dragging_and_stays_beside_what_is_computed(trial: Served, open_: Any):
    window = open_(trial.link)
    page = window.page
    assert "token" not in page.url
    page.click("ol.stories a")
    board = page.locator(".guess .u-over").bounding_box()
    assert page.locator(".guess .primary").is_disabled()
    page.mouse.move(board["x"] + 2, board["y"] + board["height"] / 2)
    page.mouse.down()
    page.mouse.move(board["x"] + board["width"] - 2, board["y"] + board["height"] / 2, steps=5)
    page.mouse.up()
    page.click(".guess .primary")
    page.wait_for_selector(COMPUTED)
    guessed = [each for each in values(page, 0, 3) if each is not None]
    assert len(guessed) > 120
    assert max(guessed) - min(guessed) < 0.02
    # A level guess at 0 is off from eight places a period of a cosine by (1 + 2 · √½)/4 on average.
    off = re.search(r"off by ([\d.]+) on average \((.+?)\), ", page.inner_text(".off"))
    assert off is not None
    assert float(off[1]) == pytest.approx((1 + 2 * math.sqrt(0.5)) / 4, abs=0.03)
    # What is counted, as the axis has it.
    assert off[2] == page.inner_text(".axis-name.y span")
    assert window.wrong == []


def test_a_curve_is_guessed_by_keyboard_alone(trial: Served, open_: Any):
    window = open_(f"{trial.link}#story=trial")
    page = window.page
    page.wait_for_selector(".point")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className").startswith("point"):
            break
    page.keyboard.press("ArrowUp")
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.locator(".point.set").count() == 2
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.guess .primary')"):
            break
    page.keyboard.press("Enter")
    page.wait_for_selector(COMPUTED)
    assert page.locator(".off").inner_text()
    assert window.wrong == []


def test_a_guess_and_its_verdict_go_with_their_curve(trial: Served, open_: Any):
    window = open_(f"{trial.link}#story=trial")
    page = window.page
    page.wait_for_selector(".point")
    assert page.locator(".ends button.primary").count() == 0
    page.focus(".point >> nth=1")
    page.keyboard.press("ArrowUp")
    page.focus(".point >> nth=4")
    page.keyboard.press("ArrowDown")
    page.click(".guess .primary")
    page.wait_for_selector(COMPUTED)
    curves = "milepost.shown.figures[0].body.plot.data.length"
    said, drawn = page.inner_text(".off"), page.evaluate(curves)
    assert "on average" in said
    assert page.locator(".ends button.primary").count() == 1
    page.select_option("[data-control=shape] select", "exp")
    until(page, "document.querySelector('.off').textContent.includes('other settings')")
    still(page)
    assert page.evaluate(curves) == drawn - 1
    # Back at the curve that was guessed, it stands again.
    page.select_option("[data-control=shape] select", "cos")
    until(page, "document.querySelector('.off').textContent.includes('on average')")
    still(page)
    assert page.inner_text(".off") == said
    assert page.evaluate(curves) == drawn
    assert window.wrong == []


def test_over_decades_a_guess_is_off_by_a_factor(trial: Served, open_: Any):
    page = open_(trial.link).page
    figure = "{ y_scale: 'log', y_range: null, lines: [{ values: [1, 10, 100] }] }"
    found = page.evaluate(f"milepost.offBy([2, 5, 200], {figure}, 0, [0.1, 1000]).factor")
    assert found == pytest.approx(2)
    assert page.evaluate(f"milepost.offBy([2, 5, 200], {{ ...{figure}, y_scale: 'even' }}, 0, [0, 9]).factor") is None


def test_a_guess_is_off_by_a_share_of_the_axes_it_was_drawn_on(trial: Served, open_: Any):
    window = open_(f"{trial.link}#story=trial")
    page = window.page
    page.wait_for_selector(".point")
    board = page.locator(".guess .u-over").bounding_box()
    story = {"name": "trial", "set": {}}
    low, high = page.evaluate(f"milepost.ask('axes', {story!r}, 'axes-test').then((each) => each.y_range)")
    level = board["y"] + board["height"] / 2
    page.mouse.move(board["x"] + 2, level)
    page.mouse.down()
    page.mouse.move(board["x"] + board["width"] - 2, level, steps=5)
    page.mouse.up()
    page.click(".guess .primary")
    page.wait_for_selector(COMPUTED)
    # A level guess in the middle of the axes.
    truth, middle = [each for each in values(page) if each is not None], (low + high) / 2
    share = sum(abs(each - middle) for each in truth) / len(truth) / (high - low)
    said = re.search(r"(\d+) % of the height of the axes it was drawn on", page.inner_text(".off"))
    assert said is not None
    assert float(said[1]) == pytest.approx(100 * share, abs=1.5)
    assert window.wrong == []


def test_the_focus_goes_on_to_the_result_and_to_the_heading_of_a_screen(trial: Served, open_: Any):
    page = open_(trial.link).page
    focused = "document.activeElement.tagName + '.' + document.activeElement.className"
    page.focus("ol.stories a >> nth=1")
    page.keyboard.press("Enter")
    until(page, f"{focused} === 'H1.'")
    page.focus(".answer input >> nth=0")
    page.keyboard.press("Space")
    page.focus(".guess .primary")
    page.keyboard.press("Enter")
    until(page, f"{focused} === 'DIV.result'")
    page.click(".top button")
    until(page, f"{focused} === 'BUTTON.quiet'")


def test_pointing_at_a_figure_moves_nothing(trial: Served, open_: Any):
    page = open_(f"{trial.link}#story=trial&seen=1", width=1000).page
    page.wait_for_selector(COMPUTED)
    still(page)
    ends = "[...document.querySelectorAll('.figure')].map((each) => each.getBoundingClientRect().bottom + scrollY)"
    before = page.evaluate(ends)
    for place in (".lines .u-over", ".map .cells >> nth=0", ".clock >> nth=1"):
        page.hover(place)
        assert page.evaluate(ends) == before, place


def test_quiet_lines_and_a_guess_are_unlike_every_other(trial: Served, open_: Any):
    page = open_(f"{trial.link}#story=trial&seen=1").page
    page.wait_for_selector(COMPUTED)
    looks = page.evaluate(
        "[...document.querySelectorAll('.lines .swatch path')].map((each) => each.getAttribute('stroke-dasharray'))"
    )
    assert len(set(looks)) == len(looks) == 3


def test_an_answer_is_chosen(trial: Served, open_: Any):
    page = open_(f"{trial.link}#story=chosen").page
    page.click(".answer >> nth=0")
    page.click(".guess .primary")
    page.wait_for_selector(COMPUTED)
    assert page.inner_text(".off") == "Not quite. The computation gives: that"


def test_marks_and_arrows_are_dragged_and_moved_by_keys(trial: Served, open_: Any):
    window = open_(f"{trial.link}#story=trial&seen=1")
    page = window.page
    page.wait_for_selector(COMPUTED)
    mark = page.locator(".mark.moves").nth(1)
    assert mark.get_attribute("aria-valuenow") == "16"
    mark.focus()
    page.keyboard.press("ArrowRight")
    assert state(page, "period") == 18
    page.keyboard.press("Home")
    assert state(page, "period") == 2
    still(page)
    box = mark.bounding_box()
    page.mouse.move(box["x"], box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + 40, box["y"] + 80, steps=4)
    page.mouse.up()
    moved = state(page, "period")
    assert 10 < moved < 60
    arrow = page.locator(".arrow.moves")
    arrow.focus()
    page.keyboard.press("ArrowUp")
    assert state(page, "period") == moved + 2
    until(page, f"milepost.link.read().get('period') === '{moved + 2:g}'")
    assert window.wrong == []


def test_a_link_restores_everything(trial: Served, open_: Any):
    page = open_(f"{trial.link}#story=trial&seen=1&period=32&length=512&shape=exp&log=1&text=a+b+c&lang=zh").page
    page.wait_for_selector(COMPUTED)
    assert page.locator("[data-control=period] .number").input_value() == "32"
    assert page.locator("[data-control=shape] select").input_value() == "exp"
    assert page.locator("[data-control=log] input").is_checked()
    assert page.inner_text("h1") == "这是测试吗？"
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    before = page.url
    page.reload()
    page.wait_for_selector(COMPUTED)
    assert page.url == before
    assert page.inner_text(".said") == "周期是 32。"


def test_a_link_to_no_question_says_so(trial: Served, open_: Any):
    window = open_(f"{trial.link}#story=<b>trail</b>")
    window.page.wait_for_selector("main .no")
    assert window.page.inner_text("main .no") == "No question has the name “<b>trail</b>”; choose one."
    window.page.click("ol.stories a")
    assert not window.page.locator("main .no:text('No question')").count()
    assert window.wrong == []


def test_a_misspelled_link_says_so(trial: Served, open_: Any):
    window = open_(f"{trial.link}#stroy=trial&lang=en")
    window.page.wait_for_selector("main .no")
    assert window.page.inner_text("main .no") == "Nothing here has the address “#stroy=trial”; choose a question."
    plain = open_(f"{trial.link}#lang=en")
    plain.page.wait_for_selector("ol.stories")
    assert not plain.page.locator("main .no").count()
    assert window.wrong == plain.wrong == []


def test_a_no_stands_beside_its_control_and_the_last_picture_stays(trial: Served, open_: Any):
    window = open_(f"{trial.link}#story=trial&seen=1")
    window.expected = ("422",)
    page = window.page
    page.wait_for_selector(COMPUTED)
    before = values(page)
    page.fill("[data-control=period] .number", "1000")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-control=period] .no:not([hidden])")
    assert page.text_content("[data-control=period] .no") == "give a number within 2 … 64"
    assert values(page) == before
    page.fill("[data-control=period] .number", "20")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-control=period] .no", state="hidden")
    until(page, "milepost.link.read().get('period') === '20'")
    assert window.wrong == []


def test_what_is_given_is_never_markup(trial: Served, open_: Any):
    window = open_(f"{trial.link}#story=trial&seen=1&text=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E")
    page = window.page
    page.wait_for_selector(COMPUTED)
    assert page.locator("img").count() == 0
    assert "<img" in page.text_content(".map .over >> nth=1")
    assert window.wrong == []


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_the_window(trial: Served, open_: Any, width: int, dark: bool):
    window = open_(trial.link, width, dark)
    page = window.page
    assert window.wide() == 0
    for fragment in ("story=trial", "story=trial&seen=1", "story=chosen"):
        page.goto(f"{page.url.split('#')[0]}#{fragment}&lang={'zh' if dark else 'en'}")
        page.wait_for_selector(f"{COMPUTED}, .guess")
        assert window.wide() == 0, fragment
    assert window.wrong == []


def test_on_a_phone_the_first_picture_is_in_the_first_window_and_what_to_look_for_after_the_last(
    trial: Served, open_: Any
):
    window = open_(f"{trial.link}#story=trial&seen=1", 390)
    page = window.page
    page.wait_for_selector(COMPUTED)
    first, last = (getattr(page.locator(".figure"), each).bounding_box() for each in ("first", "last"))
    settings = page.locator(".controls").bounding_box()
    look_for = page.locator(".side .block").bounding_box()
    assert settings["y"] + settings["height"] <= first["y"] < settings["y"] + settings["height"] + 40
    assert look_for["y"] >= last["y"] + last["height"]
    assert window.wrong == []


@pytest.mark.parametrize("dark", [False, True])
def test_hidden_cells_are_the_tone_of_the_paper_and_no_value_is(trial: Served, open_: Any, dark: bool):
    page = open_(f"{trial.link}#story=trial&seen=1", dark=dark).page
    page.wait_for_selector(COMPUTED)
    assert page.evaluate("getComputedStyle(document.querySelector('.cells')).backgroundImage") == "none"
    place = page.locator(".map .map-stage").first.locator(".cells").bounding_box()
    corner = {"x": place["x"] + place["width"] - 12, "y": place["y"] + 4, "width": 8, "height": 8}
    beside = {"x": 2, "y": 300, "width": 8, "height": 8}
    bar = page.locator(".map .bar").first.bounding_box()
    least = {"x": bar["x"] + 3, "y": bar["y"] + bar["height"] - 5, "width": 3, "height": 3}
    hidden, paper, low = (tones(page, each) for each in (corner, beside, least))
    assert hidden == paper
    assert len(paper) == 1
    assert abs(sum(low.pop()) - sum(paper.pop())) > 45


def test_what_a_story_is_set_to_opens_in_the_composer(trial: Served, open_: Any):
    page = open_(f"{trial.link}#story=trial&seen=1").page
    page.wait_for_selector(COMPUTED)
    page.click("button.primary >> text=Try your own")
    page.wait_for_selector(".scheme-text")
    assert page.input_value(".scheme-text >> nth=0") == "Alibi(8), causal"
    assert page.input_value(".settings [data-control=head] .number") == "3"
    assert page.input_value(".settings [data-control=length] .number") == "8,192"


def test_pointing_at_a_distance_marks_it_in_linked_figures(trial: Served, open_: Any):
    page = open_(f"{trial.link}#story=trial&seen=1").page
    page.wait_for_selector(COMPUTED)
    plot = page.locator(".lines .u-over").bounding_box()
    page.mouse.move(plot["x"] + plot["width"] / 2, plot["y"] + 50)
    assert page.evaluate("document.querySelector('.map .pointer').getAttribute('d')").startswith("M")
    cells = page.locator(".map .cells").first.bounding_box()
    page.mouse.move(cells["x"] + 5, cells["y"] + cells["height"] - 5)
    assert page.evaluate("milepost.shown.figures[0].body.plot.cursor.left") > 0
    assert "256" in page.inner_text(".map .told >> nth=0")


def test_a_drag_and_the_focus_outlive_a_redraw(trial: Served, open_: Any):
    window = open_(f"{trial.link}#story=trial&seen=1")
    page = window.page
    page.wait_for_selector(COMPUTED)
    still(page)
    mark = page.locator(".mark.moves").nth(1)
    box = mark.bounding_box()
    page.mouse.move(box["x"], box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + 20, box["y"] + 80)
    # Other colours, and another width, are other plots.
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 1100, "height": 900})
    page.wait_for_timeout(100)
    before = state(page, "period")
    page.mouse.move(box["x"] + 80, box["y"] + 80)
    after = state(page, "period")
    page.mouse.up()
    assert after > before > 16
    page.mouse.move(box["x"], box["y"] + 80)
    assert state(page, "period") == after
    page.emulate_media(color_scheme="light")
    page.wait_for_timeout(100)
    page.keyboard.press("Home")
    assert state(page, "period") == 2
    assert window.wrong == []


def test_a_mark_goes_with_the_hand_and_waits_for_no_answer(open_: Any):
    waits = threading.Event()

    def story(given: dict[str, Any]) -> Any:
        assert given["set"]["period"] == 16 or waits.wait(20)
        return explorer.story(given)

    explorer = Explorer("a-token-of-a-test", STORIES)
    with served(Explorer("a-token-of-a-test", STORIES, answers={"story": story})) as slow:
        window = open_(f"{slow.link}#story=trial&seen=1")
        page = window.page
        page.wait_for_selector(COMPUTED)
        mark = page.locator(".mark.moves").nth(1)
        before = mark.bounding_box()["x"]
        mark.focus()
        page.keyboard.press("End")
        after = mark.bounding_box()["x"]
        waits.set()
        still(page)
        assert after > before + 20
        assert mark.bounding_box()["x"] == pytest.approx(after, abs=1)
        assert window.wrong == []


@pytest.mark.parametrize(
    ("low", "high", "room", "expected"),
    [
        (1, 131_072, 8, [1, 10, 100, 1000, 10_000, 100_000]),
        (1e-14, 1, 6, [1e-12, 1e-9, 1e-6, 1e-3, 1]),
        (64, 5120, 8, [100, 200, 500, 1000, 2000, 5000]),
        (64, 5120, 3, [100, 1000]),
        (3277, 81_920, 8, [5000, 10_000, 20_000, 50_000]),
        (0.9, 12.5, 9, [1, 2, 5, 10]),
        (210, 290, 6, [220, 240, 260, 280]),
    ],
)
def test_log_axes_have_round_numbers_and_room_for_them(
    trial: Served, open_: Any, low: float, high: float, room: int, expected: list[float]
):
    page = open_(trial.link).page
    assert page.evaluate(f"milepost.logTicks({low}, {high}, {room})") == pytest.approx(expected)


def test_a_screen_that_is_left_asks_for_nothing_more(open_: Any):
    asked: list[float] = []

    def story(given: dict[str, Any]) -> Any:
        asked.append(given["set"]["period"])
        time.sleep(0.2)
        return explorer.story(given)

    explorer = Explorer("a-token-of-a-test", STORIES)
    with served(Explorer("a-token-of-a-test", STORIES, answers={"story": story})) as slow:
        window = open_(f"{slow.link}#story=trial&seen=1&period=10")
        page = window.page
        page.wait_for_selector(COMPUTED)
        page.evaluate("""() => {
            const field = document.querySelector('[data-control=period] input[type=range]');
            for (const each of [20, 30]) { field.value = each; field.dispatchEvent(new Event('input')); }
            location.hash = 'story=trial&seen=1&period=40';
        }""")
        until(page, "document.querySelector('.said')?.textContent === 'The period is 40.'")
        still(page)
        assert page.inner_text(".said") == "The period is 40."
        assert 30 not in asked
        assert window.wrong == []
