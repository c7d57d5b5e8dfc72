"""Defects of the lab that a review found and nobody has mended yet, each shown by its test.

A line of known_defects.txt is the name of such a test. To mend one, take its line out and make it pass.
"""

from __future__ import annotations

from pathlib import Path

import pytest

KNOWN = set(Path(__file__).with_name("known_defects.txt").read_text(encoding="utf-8").splitlines())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid in KNOWN:
            item.add_marker(pytest.mark.xfail(reason="a defect of the lab, found and not yet mended", strict=False))
