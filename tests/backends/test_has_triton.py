"""Which Triton the kernels take."""

from __future__ import annotations

import importlib.metadata

import pytest

from milepost.backends.has_triton import no_triton


@pytest.mark.parametrize(
    ("version", "refused"), [("3.5.1", True), ("3.6.0", False), ("3.10.0+git1", False), ("4.0", False)]
)
def test_a_version_older_than_any_tested_is_refused_by_name(
    version: str, refused: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    why = no_triton.__wrapped__()
    assert (why is not None) == refused
    if why is not None:
        assert why == "its kernels are tested with Triton 3.6 and later, and this is 3.5.1"


def test_without_triton_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert no_triton.__wrapped__() == "triton is not installed: pip install 'milepost[triton]'"
