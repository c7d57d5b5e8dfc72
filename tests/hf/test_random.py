"""Random numbers: what is changed or looked at draws none that a user would have drawn."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.hf import check, extend, load, restore, save
from milepost.hf.model.models import KNOWN, REPLACED
from milepost.hf.model.t5 import BUCKETED
from milepost.hf.model.tables import TABLES
from tests.hf.test_buckets import FURTHER
from tests.hf.test_buckets import tiny as bucketed
from tests.hf.test_tables import made
from tests.hf.tiny import tiny

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


def states() -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


def undrawn(work: Callable[[], object]) -> bool:
    """True if nothing was drawn."""
    before = states()
    work()
    return all(torch.equal(one, its) for one, its in zip(before, states(), strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", sorted(KNOWN | REPLACED))
def test_extend_and_restore_draw_nothing(kind: str, device: str):
    model = tiny(kind).to(device)
    assert undrawn(lambda: extend(model, through="attend"))
    assert undrawn(lambda: extend(model, mp.LogN(64)))
    assert undrawn(lambda: restore(model))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", sorted(BUCKETED))
def test_buckets_are_stretched_and_nothing_is_drawn(kind: str, device: str):
    model = bucketed(kind).to(device)
    assert undrawn(lambda: extend(model, FURTHER))
    assert undrawn(lambda: extend(model, FURTHER, mp.LogN(64)))
    assert undrawn(lambda: restore(model))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", sorted(TABLES))
def test_tables_are_grown_and_nothing_is_drawn(kind: str, device: str):
    model = made(kind).to(device)
    assert undrawn(lambda: extend(model, to=40))
    assert undrawn(lambda: extend(model, to=50))
    assert undrawn(lambda: restore(model))


@pytest.mark.parametrize("kind", sorted(BUCKETED))
def test_a_folder_is_read_and_nothing_is_drawn(kind: str, tmp_path: Path):
    model = extend(bucketed(kind), FURTHER, mp.LogN(64))
    assert undrawn(lambda: save(model, tmp_path))
    assert undrawn(lambda: load(tmp_path))


@pytest.mark.parametrize("model", [tiny("olmoe"), made("bert"), bucketed("t5")], ids=["olmoe", "bert", "t5"])
def test_models_are_compared_and_nothing_is_drawn(model: Any):
    assert undrawn(lambda: check(model, copy.deepcopy(model)))
