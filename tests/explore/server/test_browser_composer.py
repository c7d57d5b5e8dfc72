"""The composer in a browser: schemes by menus and sliders, dragged lengths, terms, links and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import milepost as mp
from milepost.explore.composer.reading import read
from tests.explore.server.browsing import browser_test, still, until
from tests.explore.server.serving import Served

pytestmark = browser_test


SCHEMES = (
    "Rope(64), causal", "Rope(64, stretch=Yarn(8, 4096)), causal", "Rope(128, stretch=Ntk(8)), causal",
    "Nope(), causal",
    "Rope(64, stretch=Interpolate(8)), causal", "Rope(64, stretch=Llama3(8, 4096)), causal", "Xpos(64), causal",
    "Rope(64), Rerope(2048), causal", "Rope(64), LeakyRerope(1024, 16), causal",
    "Rope(64), SelfExtend(8, 1024), causal",
    "Rope(64), DualChunk(3072, 512), causal", "Rope(64), Stream(4, 4092), causal", "Alibi(8), causal",
    "Rope(64), Pivot(Rerope(2048), 4096, strength=0.25), causal", "Rope(64), Dilute(Rerope(2048), 4096), causal",
    "Alibi(8, stretch=AlibiNtk(8)), causal", "T5Bias(8), causal", "Kerple(8), causal", "Sandwich(8, 128), causal",
    "Fire(8), causal", "Shaw(64), causal", "Cope(64, 32), causal", "Rope(64), LogN(4096), causal",
    "Rope(64), causal & (window(4092) | sinks(4))", "Partial(Rope(32), of=64), SinkLogit(8), everything",
)  # fmt: skip


def composed(server: Served, *schemes: str, **more: Any) -> str:
    """A link to the composer."""
    return f"{server.link}#{urlencode([('compose', ''), *(('s', each) for each in schemes), *more.items()])}"


def drawn(page: Any, *views: str) -> None:
    """Wait until views have been drawn."""
    for view in views:
        page.wait_for_selector(f".view-of.{view} .figure, .view-of.{view} .note:not(:empty)")


def test_25_schemes_are_composed(trial: Served, open_: Any):
    assert len(set(SCHEMES)) == 25
    window = open_(composed(trial, *SCHEMES[:4], length=2048))
    page = window.page
    for start in range(0, 25, 4):
        some = SCHEMES[start : start + 4]
        link = composed(trial, *some, length=2048, trained=1024).split("#")[1]
        page.evaluate(f"location.hash = {link!r}")
        until(page, f"document.querySelectorAll('.pythons .code').length === {len(some)}")
        drawn(page, "score", "maps", "angles", "distances", "weights")
        lines_ = page.locator(".pythons pre").all_inner_texts()
        assert all(eval(line, {"mp": mp}).same_as(read(text)) for line, text in zip(lines_, some, strict=True))
        whole = sum("Cope" in each or "Pivot" in each for each in some)
        until(page, f"document.querySelectorAll('.view-of.score .key .of').length === {len(some) - whole}")
        until(page, f"document.querySelectorAll('.view-of.maps .figure').length === {len(some)}")
        assert window.wide() == 0
    assert window.wrong == []


def test_a_scheme_is_built_by_menus_and_sliders_and_restored_by_its_link(trial: Served, open_: Any):
    window = open_(composed(trial, "Rope(64), causal"))
    page = window.page
    card = page.locator(".card")
    card.locator(".method").first.wait_for()
    card.locator("select[aria-label='Rope stretch']").select_option("Yarn")
    until(page, "document.querySelector('.scheme-text').value === 'Rope(64, stretch=Yarn(8, 4096)), causal'")
    card.locator(".add").select_option(label="Self-Extend (SelfExtend)")
    until(page, "document.querySelector('.scheme-text').value.includes('SelfExtend(8, 1024), causal')")
    slider = card.locator("[data-control=group] input[type=range]")
    slider.focus()
    page.keyboard.press("End")
    until(page, "document.querySelector('.scheme-text').value.includes('SelfExtend(64, 1024)')")
    card.locator(".method").last.select_option("window")
    until(page, "document.querySelector('.scheme-text').value.endsWith('causal & window(4096)')")
    page.click("text=Add a scheme")
    until(page, "document.querySelectorAll('.card .method').length === 6")
    drawn(page, "score")
    before = page.evaluate("[...document.querySelectorAll('.scheme-text')].map(each => each.value)")
    page.reload()
    until(page, "document.querySelectorAll('.card .method').length === 6")
    assert page.evaluate("[...document.querySelectorAll('.scheme-text')].map(each => each.value)") == before
    assert window.wrong == []


def test_a_bad_scheme_is_named_on_its_card_and_the_last_picture_stays(trial: Served, open_: Any):
    window = open_(composed(trial, "Rope(64), causal"))
    window.expected = ("422",)
    page = window.page
    drawn(page, "score")
    text = page.locator(".scheme-text")
    text.fill("Rope(63), <b>causal")
    text.press("Enter")
    page.wait_for_selector(".card > .no:not([hidden])")
    assert page.locator(".view-of.score .figure").count() == 1
    text.fill("Rope(63), causal")
    text.press("Enter")
    until(page, "document.querySelector('.card > .no').textContent.includes('must be even')")
    text.fill("Rope(32), causal")
    text.press("Enter")
    page.wait_for_selector(".card > .no", state="hidden")
    assert window.wrong == []


def test_lengths_are_dragged_on_every_axis(trial: Served, open_: Any):
    window = open_(composed(trial, "Rope(64), causal", trained=1024, length=32768))
    page = window.page
    drawn(page, "score", "weights", "distances")
    for view in ("score", "weights", "distances"):
        mark = page.locator(f".view-of.{view} .mark.moves").last
        before = float(mark.get_attribute("aria-valuenow"))
        mark.focus()
        page.keyboard.press("ArrowLeft")
        mark_now = f"document.querySelectorAll('.view-of.{view} .mark.moves')[1].getAttribute('aria-valuenow')"
        until(page, f"Number({mark_now}) < {before}")
    # The axis of the length that was moved is drawn with the answer to it.
    still(page)
    box = page.locator(".view-of.score .mark.moves").first.bounding_box()
    page.mouse.move(box["x"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] - 60, box["y"] + 60, steps=4)
    page.mouse.up()
    until(page, "Number(milepost.link.read().get('trained')) < 1024")
    assert page.locator(".settings [data-control=length] .number").input_value() == "4,096"
    assert window.wrong == []


def test_every_control_of_the_composer_goes_to_both_ends(trial: Served, open_: Any):
    window = open_(composed(trial, "Rope(64, stretch=Yarn(8, 4096)), LogN(4096), causal & window(64)", length=1024))
    page = window.page
    page.wait_for_selector(".argument")
    page.evaluate("document.querySelectorAll('details.more').forEach((each) => { each.open = true; })")
    controls = page.locator(".card .argument[data-control], .settings .control")
    for n in range(controls.count()):
        control = controls.nth(n)
        slider, choice, box = (control.locator(each) for each in ("input[type=range]", "select", "[type=checkbox]"))
        if slider.count():
            slider.focus()
            page.keyboard.press("Home")
            page.keyboard.press("End")
        elif choice.count():
            for value in choice.locator("option").evaluate_all("all => all.map((each) => each.value)"):
                choice.select_option(value)
        else:
            box.click()
            box.click()
    # Both ends of all at once need not be possible; what is not is said, and nothing breaks.
    page.wait_for_timeout(300)
    assert [each for each in window.wrong if "422" not in each] == []


def test_pointing_at_a_term_draws_what_it_contributes(trial: Served, open_: Any):
    window = open_(composed(trial, "Alibi(8), causal", "Rope(64), causal"))
    page = window.page
    term = page.locator(".term").first
    term.hover()
    page.wait_for_selector(".alone .figure")
    assert "Alibi(8)" in page.inner_text(".alone figcaption")
    page.locator(".term").nth(2).focus()
    until(page, "document.querySelector('.alone figcaption').textContent.includes('Rope(64)')")
    assert window.wrong == []


def test_numbers_are_saved_as_csv(trial: Served, open_: Any):
    page = open_(composed(trial, "Rope(64), causal", "Alibi(8), causal", length=512)).page
    drawn(page, "score")
    with page.expect_download() as found:
        page.click(".view-of.score button.small")
    rows = Path(found.value.path()).read_text().splitlines()
    assert rows[0].startswith('"distance, in tokens",A (score before the softmax)')
    assert len(rows) > 100


@pytest.mark.parametrize("width", [390, 1440])
def test_the_composer_fits_in_chinese_and_in_the_dark(trial: Served, open_: Any, width: int):
    window = open_(composed(trial, *SCHEMES[7:11], length=4096, lang="zh"), width, dark=True)
    page = window.page
    drawn(page, "score", "maps", "angles", "distances")
    page.wait_for_selector(".term")
    assert window.wide() == 0
    assert page.inner_text("h1") == "组合方案"
    english = page.evaluate("""() => [...document.querySelectorAll('button, label, legend, h2, h3, figcaption, .hint')]
        .filter((each) => !each.closest('.argument, .top') && each.checkVisibility())
        .map((each) => each.innerText.trim())
        .filter((each) => /[A-Za-z]{4}/.test(each) && !/[\u4e00-\u9fff]/.test(each))""")
    assert [each for each in english if each not in ("English",)] == []
    assert window.wrong == []


def test_cards_scroll_with_the_page_until_their_end_is_seen(trial: Served, open_: Any):
    page = open_(composed(trial, *SCHEMES[7:11], length=4096)).page
    drawn(page, "score", "maps", "angles", "distances")
    column = page.locator(".schemes")
    assert page.evaluate("getComputedStyle(document.querySelector('.schemes')).overflowY") == "visible"
    assert column.bounding_box()["height"] > 900
    # Scrolled past its end, it stays where its end is seen.
    page.evaluate("scrollTo(0, document.querySelector('.schemes').getBoundingClientRect().bottom + scrollY - 850)")
    place = column.bounding_box()
    assert abs(place["y"] + place["height"] - 890) < 3


def test_on_a_phone_cards_are_folded_and_open_at_a_touch(trial: Served, open_: Any):
    window = open_(composed(trial, "Rope(64), causal", "Alibi(8), causal", length=4096), 390)
    page = window.page
    drawn(page, "score")
    assert not page.locator(".card .part-form").first.is_visible()
    page.click(".card summary >> nth=0")
    page.wait_for_selector(".card .part-form")
    assert window.wide() == 0
    assert window.wrong == []


def test_a_typed_number_moves_the_slider_and_is_written_with_commas(trial: Served, open_: Any):
    window = open_(composed(trial, "Rope(64, stretch=Yarn(8, 4096)), causal"))
    page = window.page
    for place, typed, shown in (
        (".card [data-control=factor]", "4", "4"),
        (".settings [data-control=length]", "20000", "20,000"),
    ):
        field, slider = page.locator(f"{place} .number"), page.locator(f"{place} input[type=range]")
        field.wait_for()
        field.fill(typed)
        field.press("Enter")
        assert field.input_value() == shown
        found = float(slider.input_value())
        assert abs((2**found if "length" in place else found) / float(typed) - 1) < 0.01
        assert slider.get_attribute("aria-valuetext") == shown
    still(page)
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".settings [data-control=length] .number").input_value() == "32,768"
    assert window.wrong == []


def test_what_a_term_contributes_follows_every_change(trial: Served, open_: Any):
    window = open_(composed(trial, "Alibi(8), causal", "Rope(64), causal"))
    page = window.page
    page.locator(".term").first.focus()
    page.wait_for_selector(".alone .figure")
    caption = "document.querySelector('.alone figcaption')"
    text = page.locator(".scheme-text").first
    text.fill("Alibi(4), causal")
    text.press("Enter")
    until(page, f"{caption}.textContent.includes('Alibi(4)')")
    field = page.locator(".settings [data-control=length] .number")
    field.fill("1024")
    field.press("Enter")
    until(page, "document.querySelector('.alone').textContent.includes('length, 1,024')")
    page.locator(".card-head button").first.click()
    until(page, "!document.querySelector('.alone .figure')")
    assert window.wrong == []


def test_maps_have_round_ticks_and_selects_the_width_of_their_card(trial: Served, open_: Any):
    page = open_(composed(trial, "Rope(64, stretch=Yarn(8, 4096)), causal", length=8192)).page
    drawn(page, "maps")
    page.wait_for_selector(".argument select")
    ticks = page.locator(".view-of.maps svg.over text").all_text_contents()
    assert len(ticks) > 4
    assert all(int(each.replace(",", "")) % 1000 == 0 for each in ticks)
    choice = page.locator(".card .choice.argument").first
    assert choice.locator("select").bounding_box()["width"] > choice.bounding_box()["width"] - 2


@pytest.mark.parametrize("axis", ["log", "even"])
def test_sinks_are_drawn_as_dots(trial: Served, open_: Any, axis: str):
    page = open_(composed(trial, "Rope(64), causal & (window(1024) | sinks(4))", length=8192, axis=axis)).page
    drawn(page, "score")
    still(page)
    # Nothing else is drawn in the last pixels before the end of the text.
    coloured = page.evaluate("""() => {
        const view = document.querySelector('.view-of.score'), ratio = devicePixelRatio;
        const over = view.querySelector('.u-over').style, end = view.querySelectorAll('.mark')[1].style.left;
        const [x, y, tall] = [parseFloat(over.left) + parseFloat(end), parseFloat(over.top), parseFloat(over.height)];
        const context = view.querySelector('canvas').getContext('2d');
        const image = context.getImageData((x - 4) * ratio, y * ratio, 3, tall * ratio).data;
        let found = 0;
        for (let n = 0; n < image.length; n += 4) {
            const rgb = [...image.slice(n, n + 3)];
            found += image[n + 3] > 200 && Math.max(...rgb) - Math.min(...rgb) > 40;
        }
        return found;
    }""")
    assert coloured > 0
