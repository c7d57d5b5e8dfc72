"""transformers speaks of its defaults on every call; what is tested here raises."""

from __future__ import annotations

import pytest
import transformers


@pytest.fixture(autouse=True, scope="session")
def _quiet():
    transformers.logging.set_verbosity_error()
