"""The pictures of docs/look.md are drawn from the measured numbers, and the page says what these are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.examples import example_of

pytest.importorskip("transformers")

DOCS = Path(__file__).parents[2] / "docs"
LOOK = DOCS / "look"
STOCK, REROPE = "unchanged", "with ReRoPE, sinks kept"
Numbers = NDArray[np.float64]


def example() -> Any:
    return example_of("look_pictures")


def measured(length: int) -> dict[str, Numbers]:
    return example().read(LOOK / f"heads_{length}.json")


def page() -> str:
    return re.sub(r"\s+", " ", (DOCS / "look.md").read_text(encoding="utf-8"))


def test_drawing_them_again_changes_nothing():
    made = example()
    for name, found in (
        ("heads_8192", made.heads(LOOK, 8192)),
        ("heads_32768", made.heads(LOOK, 32768)),
        ("heads_back", made.back(LOOK)),
        ("unseen_angles_32768", made.losses(LOOK)),
    ):
        assert (LOOK / f"{name}.svg").read_text(encoding="utf-8") == found.svg(), name
        if name != "heads_back":
            assert (LOOK / f"{name}.json").read_text(encoding="utf-8") == found.to_json(), name


def test_every_sink_is_far_of_every_query_that_was_looked_at_in_32768_tokens_and_in_8192_none_is():
    # The first query looked at is number 24,576, the last of the sinks is token 3.
    assert example().nearest_sink(32768) == 24_573 >= 8192
    assert example().nearest_sink(8192) < 8192
    found = measured(32768)
    for row in (STOCK, REROPE):
        apart = found[f"far keys, sinks apart, {row}"]
        assert (apart == found[f"far keys, {row}"] - found[f"sinks, {row}"]).all()
        assert apart.min() >= 0
    assert not any("far keys" in name for name in measured(8192))


def test_the_picture_of_far_keys_is_not_that_of_the_sinks():
    drawn = {each.title: each.values for each in example().heads(LOOK, 32768).pictures}
    far, sinks = (drawn[f"{name}: {REROPE}"] for name in ("Far keys, sinks apart", "Sinks"))
    assert far.mean() == pytest.approx(0.052, abs=5e-4)
    assert far[12:].mean() == pytest.approx(0.005, abs=5e-4)
    assert np.corrcoef(far.ravel(), sinks.ravel())[0, 1] < 0


def test_the_page_says_what_the_numbers_are():
    short, long, said = measured(8192), measured(32768), page()
    four = [(found, row) for found in (short, long) for row in (STOCK, REROPE)]

    def row(name: str, each: Any) -> str:
        return f"| {name} | {' | '.join(each)} |"

    sinks = [found[f"sinks, {name}"] for found, name in four]
    entropy = [found[f"entropy, {name}"].mean() for found, name in four]
    far = [long[f"far keys, {name}"] - long[f"sinks, {name}"] for name in (STOCK, REROPE)]
    window = [found[f"effective window, {name}"][:12].mean() for found, name in four]
    apart = [found[f"window, sinks apart, {name}"] for found, name in four]
    for wanted in (
        row("window, sinks apart, of layers 0 to 11", [f"{each[:12].mean():,.0f}" for each in apart]),
        row("window, sinks apart, of layers 12 to 29", [f"{each[12:].mean():,.0f}" for each in apart]),
        f"with their sinks apart from {apart[0][12:].mean():,.0f} to {apart[1][12:].mean():,.0f}",
        row("weight on the first four tokens", [f"{100 * each.mean():.1f} %" for each in sinks]),
        row("of layers 12 to 29", [f"{100 * each[12:].mean():.1f} %" for each in sinks]),
        row("heads of 270 with more than half of it there", [f"{(each > 0.5).sum()}" for each in sinks]),
        row("entropy of the weights, bits", [f"{each:.2f}" for each in entropy]),
        row("far keys, sinks apart", ["", "", *(f"{100 * each.mean():.1f} %" for each in far)]).replace("|  |", "| |"),
        row("window with sinks, of layers 0 to 11, tokens", [f"{each:,.0f}" for each in window]),
        f"of layers 0 to 11 | | | {100 * far[0][:12].mean():.1f} % | {100 * far[1][:12].mean():.1f} %",
        f"of layers 12 to 29 | | | {100 * far[0][12:].mean():.1f} % | {100 * far[1][12:].mean():.1f} %",
        f"doubles from {window[0]:,.0f} to {window[1]:,.0f} tokens",
        f"{entropy[2] - entropy[0]:.1f} bits more",
        f"grows by {entropy[1] - entropy[0]:.2f} bits, and {(sinks[1] > 0.5).sum() - (sinks[0] > 0.5).sum()} heads",
    ):
        assert wanted.replace("|  |", "| |") in said, wanted
    by_layer = sinks[0].mean(1)
    below = [layer for layer in range(12, 30) if by_layer[layer] < 1 / 3]
    assert below == [12, 16, 29]
    assert "26 to 32 % in layers 12, 16 and 29" in said
    assert [round(100 * float(each)) for each in sorted(by_layer[below])] == [26, 27, 32]
    assert by_layer[:12].max() < 0.001
    some = far[1][3:10].mean(1)
    assert f"{100 * some.min():.0f} to {100 * some.max():.0f} % in layers 3 to 9" in said
    for name, numbers in (("sinks", (0.99, 0.27)), ("entropy", (0.98, 0.48))):
        alike = [
            float(np.corrcoef(long[f"{name}, {which}"].ravel(), short[f"{name}, {STOCK}"].ravel())[0, 1])
            for which in (REROPE, STOCK)
        ]
        assert [round(each, 2) for each in alike] == list(numbers)
    assert "by 0.99, that of the unchanged model at 32,768 by 0.27; the entropy by 0.98 and 0.48" in said


def test_what_the_pictures_say_of_rerope_is_what_was_run():
    from milepost.hf.model.parts import OF_MODELS, SINKS_KEPT

    assert OF_MODELS["rope"][REROPE.removeprefix("with ")].endswith(SINKS_KEPT)
    limited = "Rerope(max(2, 3 * trained // 4), at=max(2, trained // 4))"
    assert f"KeepSinks({limited})" in SINKS_KEPT
    for length, wanted in ((8192, "double, mean 2,698 to 5,784"), (32768, "shrink, mean 22,723 to 12,776")):
        found = example().heads(LOOK, length)
        assert found.title.endswith(f"windows with sinks of layers 0–11 {wanted}")
        assert "distances below 6,144 are unchanged, all others are read as 2,048" in found.settings
    assert "distances below 6,144 are unchanged, all others are read as 2,048" in page()


def test_heads_that_share_a_key_head_have_windows_that_are_alike():
    window = measured(32768)[f"effective window, {STOCK}"]
    inside = np.abs(np.diff(window, axis=1))[:, [0, 1, 3, 4, 6, 7]].mean()
    between = np.abs(np.diff(window, axis=1))[:, [2, 5]].mean()
    assert inside < between / 3


def test_the_page_says_what_the_losses_are():
    from milepost.lab.statistics.intervals import over_seeds

    found, said = example().read(LOOK / "unseen_angles_32768.json"), page()
    past = found["position"] >= 8192
    more = {name: each - found["loss, window"] for name, each in found.items() if name.startswith("loss, ")}
    for change in ("slowed", "frozen", "dropped"):
        cells: list[str] = []
        for which in ("unseen", "other"):
            each = more[f"loss, {which} pairs {change}"][:, past].mean(1)
            cells.append(f"{each.mean():+.3f} ± {float(over_seeds(each)):.3f}")
        assert " | ".join(cells) in said.replace("**", ""), change
    damage, left = (more[f"loss, {name}"][:, past].mean() for name in (STOCK, "unseen pairs slowed"))
    assert f"closes {1 - left / damage:.0%} of the gap to the window".replace("%", " %") in said
    # Of the others slowed: worse, then better, and the same on average.
    gained = (more[f"loss, {STOCK}"] - more["loss, other pairs slowed"]).mean(0)
    worse = found["position"] < 15_000
    assert (gained[worse] < 0).all()
    assert (gained[~worse] > 0).all()
    assert f"by at most {gained.max():.1f} nats" in said
    assert abs(gained[past].mean()) < 0.005 * damage
    title = example().losses(LOOK).title
    assert title.endswith(
        "slowing these closes 93 % of the gap to a window; slowing the other 20 gains nothing on average past 8,192 "
        f"and costs {-gained[~past].mean():.1f} nats before it"
    )
    cost = more["loss, unseen pairs slowed"].mean(0)[~past].max()
    assert f"up to {cost:.1f} nats on texts that needed no help" in said
    stock = more[f"loss, {STOCK}"].mean(0)
    between = stock[past & (found["position"] < 11_000)]
    assert f"{-between.max():.1f} to {-between.min():.1f} nats better" in said
    assert (stock[found["position"] > 11_000] > 0).all()
