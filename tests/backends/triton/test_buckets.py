"""Numbers picked by the bucket of a distance, against a loop in float64."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import Scheme, attend, causal
from tests.backends.triton.dense import DEVICE
from tests.oracles import assert_same

pytest.importorskip("triton")

from milepost.backends.triton.attention.t5_buckets import picked


def _loop(table: Tensor, bucket: Tensor) -> Tensor:
    return torch.stack([table.double()[int(row)] for row in bucket], 1)


@pytest.mark.parametrize(
    ("rows", "heads", "many", "dtype"),
    [(8, 6, 129, torch.float32), (32, 16, 700, torch.float32), (5, 3, 1, torch.float64), (4, 2, 260, torch.float16)],
)
def test_each_distance_has_its_buckets_row(rows: int, heads: int, many: int, dtype: torch.dtype):
    torch.manual_seed(0)
    table = torch.randn(rows, heads, device=DEVICE).to(dtype).requires_grad_()
    bucket = torch.randint(0, rows, (many,), device=DEVICE)
    weights = torch.randn(heads, many, device=DEVICE)
    ours, exact = picked(table, bucket), _loop(table, bucket)
    assert ours.dtype == torch.float32
    assert_same(ours.double(), exact, within=1e-7 if dtype != torch.float64 else 1e-6)
    (grad,) = torch.autograd.grad(ours, table, weights)
    (wanted,) = torch.autograd.grad(exact, table, weights.double())
    assert grad.dtype == dtype
    assert_same(grad.double(), wanted.double(), within=1e-5 if dtype != torch.float16 else 2e-2)


def test_tables_and_gradients_lie_as_they_like():
    table = torch.randn(6, 8, device=DEVICE).T.requires_grad_()
    bucket = torch.arange(40, device=DEVICE) % 8
    weights = torch.randn(40, 6, device=DEVICE).T
    ours, exact = picked(table, bucket), _loop(table, bucket)
    assert_same(ours.double(), exact, within=1e-7)
    pair = [torch.autograd.grad(each, table, weights.to(each.dtype))[0] for each in (ours, exact)]
    assert_same(pair[0], pair[1], within=1e-5)


def test_a_bucket_that_no_distance_falls_into_learns_nothing():
    table = torch.randn(4, 2, device=DEVICE, requires_grad=True)
    picked(table, torch.tensor([0, 3, 3], device=DEVICE)).sum().backward()
    assert table.grad is not None
    assert table.grad.tolist() == [[1, 1], [0, 0], [0, 0], [2, 2]]


def test_what_is_no_number_stays_in_its_bucket():
    table = torch.zeros(4, 2, device=DEVICE)
    table[2] = torch.nan
    assert picked(table, torch.tensor([0, 2, 3], device=DEVICE)).isnan().tolist() == [[False, True, False]] * 2


def test_a_table_may_be_written_to_before_the_backward_pass():
    table = torch.randn(4, 2, device=DEVICE, requires_grad=True)
    out = picked(table, torch.tensor([1, 1, 2], device=DEVICE))
    with torch.no_grad():
        table.mul_(2)
    out.sum().backward()
    assert table.grad is not None
    assert table.grad.tolist() == [[0, 0], [2, 2], [1, 1], [0, 0]]


def test_signs_that_torch_left_for_later_are_read():
    table = torch.randn(4, 2, dtype=torch.complex64, device=DEVICE).conj().imag
    assert table.is_neg()
    bucket = torch.tensor([0, 3], device=DEVICE)
    for each in (table, table.detach().requires_grad_()):
        assert_same(picked(each, bucket), table.resolve_neg()[bucket].T, within=1e-7)


class OwnBuckets(mp.T5Bias):
    """Twice as fine."""

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of twice the distance."""
        return super().bucket(distance * 2)


class OwnNumbers(mp.T5Bias):
    """Falls in a line, whatever the table says."""

    def by_distance(self, distance: Tensor) -> Tensor:
        """Less the further."""
        return -distance.float().expand(self.heads, -1) * self.table[0, 0]

    @property
    def constant_past(self) -> tuple[float, float]:
        """Nowhere."""
        return torch.inf, torch.inf

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        """As by_distance says."""
        return score - (p - r) * self.table[0, 0]


@pytest.mark.parametrize("kind", [OwnBuckets, OwnNumbers])
def test_subclasses_are_asked_for_what_is_their_own(kind: type[mp.T5Bias]):
    torch.manual_seed(0)
    part = kind(2, buckets=8, reach=20).to(DEVICE)
    torch.nn.init.normal_(part.table)
    q, k, v = (torch.randn(1, 2, 40, 16, device=DEVICE) for _ in range(3))
    ours, true = (attend(q, k, v, Scheme(part, causal), backend=each) for each in ("triton", "reference"))
    assert_same(ours, true, within=2e-5)


def test_t5_picks_by_the_kernel_and_learns_the_same(monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []

    def counted(table: Tensor, bucket: Tensor) -> Tensor:
        calls.append(len(bucket))
        return picked(table, bucket)

    monkeypatch.setattr(sys.modules[picked.__module__], "picked", counted)
    torch.manual_seed(0)
    scheme = Scheme(mp.T5Bias(2, buckets=8, reach=20), causal).to(DEVICE)
    q, k, v = (torch.randn(1, 2, 40, 16, device=DEVICE, requires_grad=True) for _ in range(3))
    found: list[list[Tensor]] = []
    for backend in ("triton", "reference"):
        out = attend(q, k, v, scheme, backend=backend)
        found.append([out, *torch.autograd.grad(out.sin().sum(), (q, k, v, *scheme.parameters()))])
    assert calls == [21]
    for ours, theirs in zip(*found, strict=True):
        assert_same(ours, theirs, within=2e-5)
