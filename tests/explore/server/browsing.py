"""A browser that opens the explorer, and what went wrong in it."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path(os.environ.get("MILEPOST_CHROMIUM", "/usr/bin/chromium"))
ASKED = os.environ.get("MILEPOST_BROWSER") == "1"
"""Set where a missing browser is a failure, and so is a run without a browser test (tests/conftest.py)."""
ARGS = (
    "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip

browser_test = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.is_file() and not ASKED, reason=f"no {CHROMIUM}: apt-get install chromium"),
]


class Window:
    """A page, and all that went wrong in it: errors, warnings, requests that leave this machine."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.wrong: list[str] = []
        self.expected: tuple[str, ...] = ()
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda request: self._asked(request.url))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning") and not any(each in message.text for each in self.expected):
            self.wrong.append(f"{message.type}: {message.text}")

    def _asked(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "blob:http://127.0.0.1:", "file:///tmp", "blob:null", "data:")):
            self.wrong.append(f"asked for {url}")

    def wide(self) -> int:
        """By how much the page is wider than its window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def until(page: Any, expression: str, seconds: float = 15) -> None:
    """Wait until an expression is true; the page's policy lets nothing of ours run in it by itself."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"{expression} did not become true"
        page.wait_for_timeout(20)


def still(page: Any) -> None:
    """Wait until the page waits for no answer and has drawn the last one."""
    until(page, "milepost.waits() === 0")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@contextmanager
def windows() -> Generator[Any]:
    """A browser: `open(link, …)` returns a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGS))

        def open_(link: str, width: int = 1440, dark: bool = False, **more: Any) -> Window:
            scheme = "dark" if dark else "light"
            made = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
            window = Window(made.new_page())
            window.page.set_default_timeout(15_000)
            window.page.goto(link)
            window.page.wait_for_selector("h1")
            return window

        try:
            yield open_
        finally:
            browser.close()
