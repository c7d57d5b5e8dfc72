"""What fails is tidied up after on a GPU; in a process full of tests that takes a second each time."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def untidy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", lambda *_: 0)
