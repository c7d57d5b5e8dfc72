"""The report in a real browser: no error, no request off the file, and controls that do what they say."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from milepost.lab.report import page
from tests.lab.test_table import anchors

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: apt-get install chromium")

# Put before everything else, so that nothing that goes wrong is missed.
LISTEN = """<script>
const wrong = [];
addEventListener("error", (event) => wrong.push(String(event.message || event.target.outerHTML)), true);
addEventListener("unhandledrejection", (event) => wrong.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => wrong.push("refused " + event.blockedURI));
for (const name of ["error", "warn"]) console[name] = (...words) => wrong.push(words.join(" "));
</script>"""

USE = """<script>
addEventListener("load", () => {
  const one = (selector) => document.querySelector(selector);
  const seen = (selector) => [...document.querySelectorAll(selector)].map((each) => each.checkVisibility());
  const found = { tabs: [...document.querySelectorAll("[role=tab]")].map((each) => each.textContent) };
  found.views = [seen(".view")];
  one("[role=tab]:nth-child(2)").click();
  found.views.push(seen(".view"));
  one("[role=tab]:nth-child(2)").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
  found.views.push(seen(".view"));
  const name = one(".name"), row = name.dataset.row;
  const curves = () => [...document.querySelectorAll(`.curve[data-row="${row}"]`)].map((each) => each.matches(".off"));
  name.dispatchEvent(new KeyboardEvent("keydown", { key: " ", bubbles: true, cancelable: true }));
  found.off = { curves: curves(), checked: name.getAttribute("aria-checked") };
  one(`.key input[data-row="${row}"]`).click();
  found.on = { curves: curves(), checked: name.getAttribute("aria-checked") };
  const plot = one(".plot"), box = plot.getBoundingClientRect(), tooltip = one(".tooltip");
  const at = { clientX: box.right - 5, clientY: box.top + 50, bubbles: true };
  plot.dispatchEvent(new PointerEvent("pointermove", at));
  found.tooltip = { hidden: tooltip.hidden, text: tooltip.innerText };
  plot.dispatchEvent(new PointerEvent("pointerleave"));
  found.hushed = tooltip.hidden;
  plot.focus();
  plot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
  found.first = tooltip.innerText;
  found.wide = [innerWidth, document.documentElement.scrollWidth - document.documentElement.clientWidth];
  found.asked = performance.getEntriesByType("resource").map((each) => each.name);
  found.wrong = wrong;
  const faded = (each) => [each.scrollWidth > each.clientWidth, getComputedStyle(each).maskImage];
  requestAnimationFrame(() => requestAnimationFrame(() => {
    found.tables = [...document.querySelectorAll(".wide")].map(faded);
    parent.postMessage(JSON.stringify(found), "*");
  }));
});
</script>"""

# The page stands in a frame, since no window can be made as narrow as a phone.
FRAME = """<!doctype html><body><script>
addEventListener("message", ({ data }) => {
  document.body.append(Object.assign(document.createElement("output"), { id: "found", textContent: data }));
});
</script><iframe src="report.html" width="$width" height="800"></iframe></body>"""


def opened(text: str, folder: Path, width: int = 1280) -> dict[str, Any]:
    """What a browser finds in a page that is used as a reader would."""
    watched = text.replace("<head>", f"<head>{LISTEN}", 1).replace("</body>", f"{USE}</body>", 1)
    (folder / "report.html").write_text(watched, encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(FRAME.replace("$width", str(width)), encoding="utf-8")
    assert BROWSER is not None
    quiet = ("--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update")
    apart = ("--no-sandbox", "--window-size=1400,900", f"--user-data-dir={folder / 'profile'}")
    command = [BROWSER, "--headless", *apart, *quiet, "--virtual-time-budget=30000", "--dump-dom", frame.as_uri()]
    said = ""
    # On a machine that has much else to do, its time may be over before the page is there.
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        output = re.search(r'<output id="found">(.*?)</output>', done.stdout, re.S)
        if output:
            return json.loads(html.unescape(output[1]))
        said = done.stderr[-2000:]
    raise AssertionError(f"the browser did not finish: {said}")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return opened(page(anchors()), tmp_path_factory.mktemp("browser"))


def test_nothing_goes_wrong_and_nothing_is_asked_for(found: dict[str, Any]):
    assert found["wrong"] == []
    assert found["asked"] == []


def test_one_view_is_shown_and_tabs_change_it(found: dict[str, Any]):
    assert found["tabs"] == ["Windows", "Less the window", "Last bytes at fixed ends", "Recall of random bytes"]
    first, second = [True, False, False, False], [False, True, False, False]
    assert found["views"] == [first, second, first]


def test_a_name_hides_its_row_in_every_picture_and_its_box_shows_it_again(found: dict[str, Any]):
    assert set(found["off"]["curves"]) == {True}
    assert found["off"]["checked"] == "false"
    assert set(found["on"]["curves"]) == {False}
    assert found["on"]["checked"] == "true"


def test_the_pointer_and_the_arrow_keys_tell_values_with_their_intervals(found: dict[str, Any]):
    tooltip = found["tooltip"]["text"].split("\n")
    assert found["tooltip"]["hidden"] is False
    assert tooltip[0] == "length in bytes: 4,096"
    assert [each for each in tooltip[1:] if each] == ["RoPE", "4.480 ±0.010", "ALiBi", "1.415 ±0.010"]
    assert found["hushed"] is True
    assert found["first"].startswith("length in bytes: 512")


@pytest.mark.parametrize("width", [360, 768])
def test_a_narrow_screen_needs_no_sideways_scrolling(tmp_path: Path, width: int):
    narrow = opened(page(anchors()), tmp_path, width)
    assert narrow["wide"] == [width, 0]
    assert narrow["wrong"] == []


def test_no_table_fades_out(found: dict[str, Any], tmp_path: Path):
    narrow = opened(page(anchors()), tmp_path, 360)["tables"]
    assert found["tables"]
    assert {mask for _, mask in (*found["tables"], *narrow)} == {"none"}


def test_an_error_and_a_request_would_be_seen(tmp_path: Path):
    broken = page(anchors()).replace('"use strict";', '"use strict"; queueMicrotask(() => missing());', 1)
    broken = broken.replace("<main>", '<main><img src="http://127.0.0.1:9/picture.png" alt="">', 1)
    wrong = opened(broken, tmp_path)["wrong"]
    assert any("missing is not defined" in each for each in wrong)
    assert any("127.0.0.1:9" in each for each in wrong)
