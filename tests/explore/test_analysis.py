"""What every analysis is: arrays that write themselves, and pictures that draw themselves."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.pictures.clocks import Clocks
from milepost.explore.pictures.curves import curves
from milepost.explore.pictures.maps import map_of, shades

SVG = "{http://www.w3.org/2000/svg}"


def sample() -> Analysis:
    at = np.arange(3.0)
    values = np.array([[1.0, -np.inf, np.nan], [0.1, 2.0, -np.inf], [1 / 3, 4.0, 5.0]])
    line = curves("Line", at, {"one <b>": at**2, "two": np.array([1.0, np.nan, 3.0])}, x_name="token", y_name="bits")
    map_ = map_of("Map", values, at, at, row_name="query", column_name="key", unit="score")
    dials = Clocks("Dials", np.array([1.5, 0.25, 0.0]), np.array([12.0, 0.75, 0.0]), ("0", "1", "2"))
    return Analysis(
        "sample", "A sample & more", "It shows nothing.",
        (axis("query", at), axis("key", at), array("score", values, "nats", "query", "key"), array("peak", 5.0)),
        (line, map_, dials),
    )  # fmt: skip


def test_csv_has_every_digit_and_a_table_for_each_set_of_axes():
    first, second = sample().to_csv().split("\n\n")
    rows = list(csv.reader(io.StringIO(first)))
    assert rows[0] == ["query", "key", "score (nats)"]
    assert rows[7] == ["2", "0", repr(1 / 3)]
    assert rows[2][2] == "-inf"
    assert list(csv.reader(io.StringIO(second))) == [["peak"], ["5"]]


def test_json_has_names_units_and_axes_and_no_infinity():
    found = json.loads(sample().to_json())
    assert found["arrays"]["score"] == {
        "unit": "nats", "over": ["query", "key"], "values": [[1.0, None, None], [0.1, 2.0, None], [1 / 3, 4.0, 5.0]],
    }  # fmt: skip


def test_the_svg_is_whole_and_keeps_its_style_to_itself():
    text = sample().svg()
    drawing = ElementTree.fromstring(text)
    assert drawing.tag == f"{SVG}svg"
    assert "one &lt;b&gt;" in text
    assert "A sample &amp; more" in text
    style = drawing.find(f"{SVG}style")
    assert style is not None
    assert style.text is not None
    selectors = [each.strip() for found in re.findall(r"([^{}]+)\{", style.text) for each in found.split(",")]
    assert len(selectors) > 20
    assert all(each.startswith((".milepost", "@media")) for each in selectors)
    assert "prefers-color-scheme: dark" in style.text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_gap_in_a_curve_is_not_drawn_over():
    drawing = ElementTree.fromstring(sample().svg())
    lines = [each.get("d", "") for each in drawing.iter(f"{SVG}path") if each.get("class") == "line"]
    assert [each.count("M") for each in lines] == [1, 2]


def test_the_name_of_a_curve_is_beside_its_last_point_that_can_be_drawn():
    lines = {"ends early": np.array([0.0, 4.0, np.nan]), "nothing": np.full(3, np.nan)}
    panel = curves("", np.arange(3.0), lines, x_name="token", y_name="bits").panel
    assert [(curve.name, end) for curve, end, _ in panel.names()] == [("ends early", panel.y.at(4.0))]


def test_a_dial_shows_what_is_new():
    text = sample().svg()
    assert text.count("url(#new)") == 1
    assert np.allclose(Clocks("", np.array([1.5, 0.25]), np.array([12.0, 0.75]), ("0", "1")).unseen(), [0.0, 0.5])


def test_a_map_is_lighter_where_there_is_less_and_clear_where_it_is_hidden():
    found = shades(np.array([[0.0, 0.5, 1.0, np.nan]]), (0.0, 1.0))[0].astype(int)
    light = found[:, :3].sum(-1)
    assert light[0] > light[1] > light[2]
    assert found[:, 3].tolist() == [255, 255, 255, 0]
    along = shades(np.linspace(0, 1, 200)[None], (0.0, 1.0))[0].astype(int)[:, :3].sum(-1)
    assert (np.diff(along) <= 0).all()


def test_files_are_written_by_their_ending(tmp_path: Path):
    for ending, begins in ((".svg", b"<svg"), (".csv", b"query"), (".json", b"{"), (".png", b"\x89PNG")):
        if ending == ".png":
            pytest.importorskip("matplotlib")
        assert sample().save(tmp_path / f"a{ending}").read_bytes().startswith(begins)
    with pytest.raises(ValueError, match="name a file that ends in"):
        sample().save(tmp_path / "a.gif")


def test_wrong_names_and_shapes_are_refused():
    with pytest.raises(KeyError, match="has no array 'scores'; it has query, key"):
        sample()["scores"]
    at = axis("at", np.arange(3.0))
    with pytest.raises(ValueError, match="two arrays have one name"):
        Analysis("a", "", "", (at, at), ())
    with pytest.raises(ValueError, match="which is"):
        Analysis("a", "", "", (at, array("b", np.zeros(2), "", "at")), ())
