"""Shapes and devices that a kernel has no room for are refused by name, and another backend takes them."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import milepost as mp
from milepost import causal
from milepost.backends import BACKENDS
from milepost.backends.has_triton import no_triton
from milepost.backends.rotary import by_table
from milepost.backends.triton import backend
from milepost.call.resolve import resolve
from tests.oracles import assert_same, inputs, plain, turned

ROPE = mp.Scheme(mp.Rope(16), causal)


def refusals(scheme: mp.Scheme, *shape: int, dv: int | None = None) -> dict[str, str | None]:
    """Why each backend refuses tensors of a shape on a GPU, which there need not be."""
    *rows, d = shape
    with FakeTensorMode():
        q, k = (torch.empty(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        v = torch.empty(*rows, dv or d, device="cuda", dtype=torch.bfloat16)
        call = resolve(q, k, v, scheme, {})
        # What is missing on this machine is asked last.
        with mock.patch("milepost.backends.triton.backend._no_device", return_value="no GPU"):
            return {name: backend.refuses(call) for name, backend in BACKENDS.items()}


@pytest.mark.parametrize("shape", [(70_000, 1, 4, 16), (1, 70_000, 4, 16)])
def test_more_rows_or_heads_than_a_grid_has_are_left_to_plain_products(shape: tuple[int, ...]):
    found = refusals(ROPE, *shape)
    for name in ("sdpa", "diagonals", "flex", "triton"):
        assert "is more than a CUDA grid takes, 65,535 to an axis" in (found[name] or ""), name
    assert found["chunked"] is None


def test_flex_has_rows_and_heads_on_one_axis():
    found = refusals(ROPE, 40_000, 4, 4, 16)
    assert "a batch of 40,000 with 4 heads is more than" in (found["flex"] or "")
    assert found["sdpa"] is None


def test_large_batches_are_not_rotated_by_a_kernel(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    monkeypatch.setattr("milepost.backends.views.rotated", lambda *given: asked.append(given))
    q, k, v = inputs(t=4)
    mp.attend(q, k, v, mp.Scheme(mp.Rope(8), causal), backend="chunked")
    assert asked
    asked.clear()
    monkeypatch.setattr("milepost.backends.views.beyond_grid", lambda call: "too many")
    mp.attend(q, k, v, mp.Scheme(mp.Rope(8), causal), backend="chunked")
    assert not asked


def test_the_wide_heads_of_mla_are_refused_where_kernels_have_no_room():
    found = refusals(mp.Scheme(mp.Partial(mp.Rope(64), of=576), causal), 2, 4, 8, 576, dv=512)
    assert "heads of 576 channels are wider than 256" in (found["flex"] or "")
    assert "heads of 576 channels are wider than 256" in (found["triton"] or "")
    assert found["sdpa"] is found["chunked"] is None


@pytest.mark.parametrize("backend", [None, "sdpa", "chunked", "flex", "reference"])
def test_the_wide_heads_of_mla_equal_the_formula(backend: str | None):
    q, k, v = inputs(b=1, h=2, g=1, t=5, d=576, dv=512)
    scheme = mp.Scheme(mp.Partial(mp.Rope(64), of=576), causal)

    def score(b: int, h: int, i: int, j: int) -> Any:
        if j > i:
            return -torch.inf
        pairs = turned(q[b, h, i, :64], torch.tensor(i)) * turned(k[b, 0, j, :64], torch.tensor(j)).conj()
        return (pairs.real.sum() + q[b, h, i, 64:] @ k[b, 0, j, 64:]) / 24

    with torch.no_grad():
        assert_same(mp.attend(q, k, v, scheme, backend=backend), plain(q, k, v, score))


@pytest.mark.parametrize(
    ("hip", "capability", "ready"), [(None, (9, 0), True), (None, (7, 5), False), ("6.4", (9, 0), False)]
)
def test_the_rotation_kernel_runs_on_nvidia_gpus_alone(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, capability: tuple[int, int], ready: bool
):
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(by_table, "no_triton", lambda: None)
    by_table._ready.cache_clear()
    try:
        assert by_table._ready(torch.device("cuda")) == ready
        assert not by_table._ready(torch.device("xpu"))
    finally:
        by_table._ready.cache_clear()


@pytest.mark.parametrize(
    ("device", "hip", "says"),
    [
        ("mps", None, "its kernels run on CUDA devices, and the tensors are on mps"),
        ("xpu", None, "its kernels run on CUDA devices, and the tensors are on xpu"),
        ("cuda", "6.4", "its kernels are written for NVIDIA's GPUs, and this one is AMD's"),
    ],
)
def test_kernels_refuse_other_devices(device: str, hip: str | None, says: str, monkeypatch: pytest.MonkeyPatch):
    if no_triton() is not None:
        pytest.skip(str(no_triton()))
    monkeypatch.setattr(torch.version, "hip", hip)
    assert backend._missing(torch.device(device)) == says
