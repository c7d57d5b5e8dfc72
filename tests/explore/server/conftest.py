"""One server and one browser for all tests that drive the page.

They end with this folder: playwright's event loop would run under whatever comes after.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from milepost.explore.server.app import Explorer
from tests.explore.server.browsing import windows
from tests.explore.server.serving import Served, served
from tests.explore.server.trial import STORIES


@pytest.fixture(scope="package")
def trial() -> Generator[Served]:
    """A server of the stories for tests."""
    with served(Explorer("a-token-of-a-test", STORIES)) as found:
        yield found


@pytest.fixture(scope="package")
def browser() -> Generator[Any]:
    """A browser for all of them."""
    with windows() as found:
        yield found


@pytest.fixture
def open_(browser: Any) -> Generator[Any]:
    """`open_(link, …)` returns a window, which is closed after the test."""
    made: list[Any] = []

    def open_one(*given: Any, **more: Any) -> Any:
        made.append(browser(*given, **more))
        return made[-1]

    yield open_one
    for each in made:
        each.page.context.close()
