"""Random numbers: what is changed or looked at draws none that a user would have drawn."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.hf import check, extend, load, restore, save
from milepost.hf.model.models import DISPATCH, REPLACED
from milepost.hf.model.t5 import BUCKETED
from milepost.hf.model.tables import TABLES
from tests.hf.test_buckets import FURTHER
from tests.hf.test_buckets import tiny as bucketed
from tests.hf.test_tables import made
from tests.hf.tiny import tiny

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.fixture(params=["cpu", GPU])
def device(request: pytest.FixtureRequest) -> Generator[str]:
    """Where models are made, and whatever else names no device."""
    with torch.device(request.param), torch.no_grad():
        yield request.param


def states() -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


def undrawn(work: Callable[[], object]) -> bool:
    """True if nothing was drawn."""
    before = states()
    work()
    return all(torch.equal(one, its) for one, its in zip(before, states(), strict=True))


@pytest.mark.parametrize("kind", sorted(DISPATCH | REPLACED))
def test_extend_and_restore_draw_nothing(kind: str, device: str):
    model = tiny(kind)
    for given, options in (((), {"through": "attend"}), ((mp.LogN(64),), {})):
        assert undrawn(lambda: extend(model, *given, **options)), (given, options)  # noqa: B023
    assert undrawn(lambda: restore(model))
    assert undrawn(lambda: check(model, copy.deepcopy(model)))


@pytest.mark.parametrize("kind", sorted(BUCKETED))
def test_buckets_are_stretched_saved_and_loaded_and_nothing_is_drawn(kind: str, device: str, tmp_path: Path):
    model, stock = bucketed(kind), bucketed(kind)
    assert undrawn(lambda: extend(model, FURTHER))
    assert undrawn(lambda: extend(model, FURTHER, mp.LogN(64)))
    assert undrawn(lambda: check(model, stock))
    assert undrawn(lambda: save(model, tmp_path))
    assert undrawn(lambda: load(tmp_path))
    assert undrawn(lambda: restore(model))


@pytest.mark.parametrize("kind", sorted(TABLES))
def test_tables_are_grown_and_nothing_is_drawn(kind: str, device: str):
    model: Any = made(kind)
    for to in (40, 50):
        assert undrawn(lambda: extend(model, to=to)), to  # noqa: B023
    assert undrawn(lambda: check(model, copy.deepcopy(model)))
    assert undrawn(lambda: restore(model))
