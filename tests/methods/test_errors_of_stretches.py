"""Stretches that cannot be are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from milepost import DynamicNtk, DynamicYarn, Interpolate, Llama3, LongRope, Ntk, Rope, Scheme, Yarn
from tests.stretches import LONG, SHORT, STRETCHES


@pytest.mark.parametrize("kind", [Interpolate, Ntk])
@pytest.mark.parametrize(
    ("factor", "error", "text"),
    [
        (0, ValueError, r"\(factor=0\): factor must be greater than 0"),
        (-2.0, ValueError, "factor must be greater than 0"),
        (math.nan, ValueError, "factor must be finite"),
        (math.inf, ValueError, "factor must be finite"),
        ("8", TypeError, "factor must be a number, not str"),
        (True, TypeError, "factor must be a number, not bool"),
        (None, TypeError, "factor must be a number, not NoneType"),
    ],
)
def test_a_factor_that_is_no_positive_number_is_refused(kind, factor, error, text):
    with pytest.raises(error, match=text):
        kind(factor)


@pytest.mark.parametrize("kind", [DynamicNtk, Yarn, DynamicYarn, Llama3, LongRope])
@pytest.mark.parametrize(
    ("trained", "error", "text"),
    [
        (0, ValueError, r"\(trained=0\): trained must be at least"),
        (-4096, ValueError, "trained must be at least"),
        (4096.0, TypeError, r"\(trained=4096.0\): trained must be an integer, not float"),
        (True, TypeError, "trained must be an integer, not bool"),
        ("4096", TypeError, "trained must be an integer, not str"),
        (None, TypeError, "trained must be an integer, not NoneType"),
    ],
)
def test_a_trained_length_that_is_no_count_is_refused(kind, trained, error, text):
    others: dict[Any, dict[str, Any]] = {
        Yarn: {"factor": 8},
        Llama3: {"factor": 8},
        LongRope: {"short": SHORT, "long": LONG},
    }
    with pytest.raises(error, match=f"{kind.__name__}.*{text}" if text.startswith(r"\(") else text):
        kind(trained=trained, **others.get(kind, {}))


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "text"),
    [
        (DynamicNtk, {"factor": 0.5}, ValueError, r"DynamicNtk\(factor=0.5\): factor must be at least 1"),
        (DynamicNtk, {"factor": math.inf}, ValueError, "factor must be finite"),
        (DynamicNtk, {"factor": "2"}, TypeError, "factor must be a number, not str"),
        (Yarn, {"factor": 0.5}, ValueError, r"Yarn\(factor=0.5\): factor must be at least 1"),
        (Yarn, {"factor": math.nan}, ValueError, "factor must be finite"),
        (Yarn, {"ramp": "linear"}, ValueError, r"Yarn\(ramp='linear'\): ramp must be one of 'code', 'paper'"),
        (Yarn, {"slow": 0}, ValueError, "slow must be greater than 0"),
        (Yarn, {"fast": 0.9}, ValueError, r"Yarn\(fast=0.9\): fast must be at least 1"),
        (Yarn, {"fast": 1, "ramp": "paper"}, ValueError, r"Yarn\(fast=1\): fast must be greater than 1"),
        (Yarn, {"fast": math.inf}, ValueError, "fast must be finite"),
        (Yarn, {"scaled": 0}, ValueError, "scaled must be greater than 0"),
        (Yarn, {"scaled": math.nan}, ValueError, "scaled must be finite"),
        (DynamicYarn, {"ramp": "linear"}, ValueError, r"DynamicYarn\(ramp='linear'\): ramp must be one of"),
        (DynamicYarn, {"slow": -1}, ValueError, "slow must be greater than 0"),
        (DynamicYarn, {"fast": 0.5}, ValueError, "fast must be at least 1"),
        (Llama3, {"factor": 0}, ValueError, r"Llama3\(factor=0\): factor must be greater than 0"),
        (Llama3, {"low": 0}, ValueError, "low must be greater than 0"),
        (Llama3, {"high": 1.0}, ValueError, r"Llama3\(high=1.0\): high must be greater than 1"),
        (LongRope, {"trained": 1}, ValueError, r"LongRope\(trained=1\): trained must be at least 2"),
        (LongRope, {"factor": 0}, ValueError, "factor must be greater than 0"),
        (LongRope, {"scaled": -1.0}, ValueError, "scaled must be greater than 0"),
        (LongRope, {"short": (1.0, 0.0, 1.0, 1.0)}, ValueError, r"LongRope\(short=.*short must be greater than 0"),
        (LongRope, {"long": (1.0, math.nan, 1.0, 1.0)}, ValueError, "long must be finite"),
        (LongRope, {"long": ("a",) * 4}, TypeError, "long must be a number, not str"),
        (LongRope, {"short": (1.0,)}, ValueError, "1 short factors but 4 long ones; one of each for every pair"),
        (LongRope, {"short": 2.0}, TypeError, "short"),
    ],
)
def test_wrong_arguments_are_refused(kind, arguments, error, text):
    rest: dict[Any, dict[str, Any]] = {
        DynamicNtk: {"trained": 4096},
        Yarn: {"factor": 8, "trained": 4096},
        DynamicYarn: {"trained": 4096},
        Llama3: {"factor": 8, "trained": 4096},
        LongRope: {"short": SHORT, "long": LONG, "trained": 4096},
    }
    with pytest.raises(error, match=text):
        kind(**(rest[kind] | arguments))


def test_long_rope_with_factors_for_another_width_is_refused():
    with pytest.raises(ValueError, match="4 factors for 3 pairs of channels; give one for every pair"):
        Rope(6, stretch=LongRope(SHORT, LONG, 16)).turn(torch.zeros(1, 1, 3, 6), torch.arange(3))


@pytest.mark.parametrize("stretch", [Ntk(2), DynamicNtk(2)])
def test_ntk_of_a_single_pair_is_refused(stretch):
    with pytest.raises(ValueError, match="needs at least two pairs of channels"):
        Rope(2, stretch=stretch).turn(torch.zeros(1, 1, 3, 2), torch.arange(3))


@pytest.mark.parametrize("stretch", [Yarn(2, 4096), DynamicYarn(2)])
def test_yarns_ramp_over_frequencies_all_alike_is_refused(stretch):
    # The code's ramp divides by ln θ.
    with pytest.raises(ValueError, match="theta"):
        Rope(8, theta=1.0, stretch=stretch).turn(torch.zeros(1, 1, 3, 8), torch.arange(3))


@pytest.mark.parametrize("stretch", [each for each, _ in STRETCHES[::3]])
def test_a_stretch_is_no_part_of_a_scheme(stretch):
    with pytest.raises(TypeError, match=r"is not a part of a scheme, it stretches a rotation: Rope\(dim, stretch="):
        Scheme(stretch)
