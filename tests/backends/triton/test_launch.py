"""Launches that are remembered by how their arguments look."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from milepost.backends.triton.launch import looks_of


def test_numbers_that_triton_compiles_for_look_different():
    # One, any other, multiples of sixteen, and the same of those that take eight bytes.
    alike = [(1,), (2, 3), (16, 32), (2**31 + 8, 2**32 + 8), (2**32, 2**33)]
    looks = [{looks_of(each) for each in some} for some in alike]
    assert all(len(each) == 1 for each in looks)
    assert len(set[object]().union(*looks)) == len(alike)
