"""Distances as the rotation sees them, where methods move far keys or hide them."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import milepost as mp
from milepost import explore
from milepost.explore.pictures.picture import drawn

ROPE = mp.Rope(64)


def last(part: object, length: int) -> np.ndarray:
    """Return the last token's distances, the nearest key first."""
    found = explore.distance_map({"it": mp.Scheme(ROPE, part, mp.causal)}, length=length)
    return found["it, last token"]


def map_by_hand(found: explore.Analysis, name: str, formula) -> None:
    for row, i in enumerate(found["query"]):
        for column, j in enumerate(found["key"]):
            wanted = formula(int(i), int(j))
            seen = found[name][row, column]
            assert np.isnan(seen) if wanted is None else seen == pytest.approx(wanted, abs=1e-9)


def test_the_default_keeps_every_distance_below_the_trained_length():
    found = explore.distance_map()
    for name in ("ReRoPE", "Self-Extend", "Dual chunks"):
        assert 1024 <= np.nanmax(found[name]) < 2048
        assert np.isnan(found[name][np.triu_indices(128, 1)]).all()
    assert "ReRoPE: 8,192 keys, at most 1,024 away" in found.says


def test_maps_are_the_published_formulas():
    def dual(i: int, j: int) -> int:
        apart, at = i // 9 - j // 9, i % 9 if i // 9 == j // 9 else min(i % 9 + 9, 12)
        return (at if apart < 2 else min(17, 12)) - j % 9

    formulas = {
        "ReRoPE": (mp.Rerope(10), lambda i, j: min(i - j, 10)),
        "Leaky": (mp.LeakyRerope(10, 4), lambda i, j: i - j if i - j < 10 else 10 + (i - j - 10) / 4),
        "InvLeaky": (mp.LeakyRerope(10, 1 / 16), lambda i, j: i - j if i - j < 10 else 10 + (i - j - 10) * 16),
        "Self-Extend": (mp.SelfExtend(4, 12), lambda i, j: i - j if i - j < 12 else i // 4 - j // 4 + 12 - 3),
        "dual": (mp.DualChunk(12, 3), dual),
        "window": (mp.window(7), lambda i, j: i - j if i - j < 7 else None),
    }
    for name, (part, formula) in formulas.items():
        scheme = mp.Scheme(ROPE, part, mp.causal) if name != "window" else mp.Scheme(ROPE, mp.causal & part)
        found = explore.distance_map({name: scheme}, length=60)
        map_by_hand(found, name, lambda i, j, formula=formula: None if j > i else formula(i, j))


@pytest.mark.parametrize(("chunk", "local"), [(12, 3), (24, 4), (10, 6), (10, 0)])
def test_facts_of_dual_chunks(chunk: int, local: int):
    own, length = chunk - local, 101
    for size in range(length - own, length + 1):
        seen = last(mp.DualChunk(chunk, local), size)
        at = np.arange(len(seen))
        exact = min(local + 1, own)
        assert (seen[: exact + 1] == at[: exact + 1]).all()
        assert 0 <= seen.min() <= seen.max() <= min(chunk, 2 * own - 1)
        if chunk <= 2 * own - 1:
            # The last token's chunk, and the one before, are not among the older.
            older = at > (size - 1) % own + own
            assert (seen[older] >= local + 1).all()
            assert (seen[older][own:] == seen[older][:-own]).all()


def test_facts_of_self_extend_and_of_leaky():
    seen = last(mp.SelfExtend(8, 1024), 8 * (2048 - 1024) + 1024)
    assert seen[1024] == 1024
    assert seen.max() < 2048
    assert (last(mp.Rerope(64), 200) == np.minimum(np.arange(200), 64)).all()
    # InvLeaky in training: an outer step of twice the expansion.
    assert np.allclose(np.diff(last(mp.LeakyRerope(128, 1 / 16), 512))[130:], 16)


def test_a_stream_sees_its_cache_without_a_gap():
    found = explore.distance_map(mp.Scheme(ROPE, mp.Stream(4, 28)), length=300)
    seen = found["Stream(4, 28), last token"]
    assert (seen[np.isfinite(seen)] == np.arange(32)).all()
    assert np.isnan(seen[28:296]).all()


def test_hwfa_has_windows_and_one_layer_without_positions():
    found = explore.distance_map(mp.hwfa(4, 64, 128), length=128)
    assert "layers 0–2: 32 keys, at most 31 away; layer 3: 128 keys, their distance is not read" in found.says
    map_by_hand(found, "layers 0–2", lambda i, j: i - j if 0 <= i - j < 32 else None)
    map_by_hand(found, "layer 3", lambda i, j: 0 if j <= i else None)


def test_what_reads_no_distance_has_no_shades_and_no_curve():
    found = explore.distance_map(mp.hwfa(12, 64, 512), length=1024, trained=512)
    assert found.title == "Layers 0–10 see a window, layer 11 sees all keys but no distance"
    pictures: Any = found.pictures
    window, whole, last = pictures
    assert (window.limits, window.flat) == ((0, 34), "")
    assert (whole.flat, whole.marked) == ("no distance read", ())
    drawing = drawn("", [whole])
    assert "no distance read" in drawing
    # No bar of shades, so the cells are the only image.
    assert (drawing.count("<image"), drawn("", [window]).count("<image")) == (1, 2)
    # The window's curve alone, over its own keys; the trained length is far above.
    assert [(curve.name, curve.points[-1].x, curve.points[-1].y) for curve in last.panel.curves] == [
        ("layers 0–10", 34, 34)
    ]
    assert 34 < last.panel.x.knots[-1][0] < 50
    assert 34 < last.panel.y.knots[-1][0] < 40
    assert last.panel.level is None
    assert last.panel.y_name.endswith("trained length, 512, is above")
    assert last.panel.x_name.endswith("none past 34")


def test_a_leaky_method_says_what_a_far_token_counts():
    for factor, said in ((16, "1/16"), (1 / 16, "16")):
        part = mp.LeakyRerope(10, factor)
        found = explore.distance_map({"it": mp.Scheme(ROPE, part, mp.causal)}, length=40)
        assert found.settings.endswith(f"it: past 10 each token counts {said}")


def test_layers_alike_share_a_map_and_more_than_three_are_refused():
    alike = mp.Schedule([mp.Scheme(ROPE, mp.causal) for _ in range(3)])
    assert [each.title for each in explore.distance_map(alike, length=16).pictures] == [
        "layers 0–2", "What the last token sees",
    ]  # fmt: skip
    many = {f"{n}": mp.Scheme(ROPE, mp.Rerope(n)) for n in range(1, 5)}
    with pytest.raises(ValueError, match=re.escape("distance_map: 4 maps in one picture; give at most 3: 1, 2, 3, 4")):
        explore.distance_map(many)
    with pytest.raises(TypeError, match="distance_map: give a Scheme, a Schedule, or a dict of names and schemes"):
        explore.distance_map({"rope": ROPE})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=re.escape("distance_map(length=1): length must be at least 2")):
        explore.distance_map(length=1)


def test_keys_ahead_have_distances_below_nothing():
    found = explore.distance_map(mp.Scheme(ROPE, mp.Rerope(5)), length=20)
    assert (found["Rerope(5)"] == -found["Rerope(5)"].T).all()
    assert math.isclose(found["Rerope(5)"].min(), -5)


def test_what_does_not_rotate_is_titled_by_what_reads_distances():
    found = explore.distance_map(mp.Scheme(mp.Alibi(4), mp.causal), length=16)
    assert found.title == "Distances as the method reads them"
    assert found.pictures[0].title == "Alibi(4)"
    assert "Alibi(4): 16 keys, at most 15 away." in found.says
    rotated = explore.distance_map(mp.Scheme(ROPE, mp.causal), length=16)
    assert (rotated.title, rotated.pictures[0].title) == ("Distances as the rotation sees them", "Rope(64)")
    none = explore.distance_map(mp.Scheme(mp.causal), length=16)
    assert [each.title for each in none.pictures] == ["no distances"]
    assert "no distances: 16 keys, their distance is not read." in none.says
    mixed = explore.distance_map({"RoPE": mp.Scheme(ROPE, mp.causal), "T5": mp.Scheme(mp.T5Bias(4), mp.causal)})
    assert mixed.title == "Distances as the methods read them"


def test_keys_are_called_future_ones_only_where_no_others_are_hidden():
    rope = mp.Rope(8)
    for mask, said in (
        (mp.causal, "future keys"),
        (mp.causal & mp.window(8), "hidden keys"),
        (mp.window(8), "hidden keys"),
    ):
        picture = explore.distance_map(mp.Scheme(rope, mask), length=64).pictures[0]
        assert picture.hidden == said  # type: ignore[attr-defined]


def test_a_title_says_that_every_distance_was_trained_where_that_is_so():
    assert explore.distance_map(length=4096).title == "Three ways to keep every distance within the 2,048 trained"
    rerope = mp.Scheme(mp.Rope(8), mp.Rerope(512), mp.causal)
    for trained, title in (
        (513, "Every distance stays within the 513 trained"),
        (512, "Distances go up to 512; training met those below 512"),
        (1024, "Distances as the rotation sees"),
    ):
        assert explore.distance_map(rerope, length=1024, trained=trained).title.startswith(title)
    # Layers of one model are no two ways.
    layers = mp.Schedule([rerope, mp.Scheme(mp.Rope(8), mp.Rerope(256), mp.causal)])
    assert explore.distance_map(layers, length=1024, trained=513).title.startswith("Every distance")
    assert "Dual chunks: distances start again at each chunk" in explore.distance_map(length=4096).settings
