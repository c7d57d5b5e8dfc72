"""Devices without float64: angles and other exact numbers are computed on the CPU, and nothing on the device has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import milepost as mp
from milepost.numerics import precision
from tests.cases import CASES, rope
from tests.layers import D, H

DEVICE = torch.device("meta")
"""It stands for one without float64: what would be computed there is not, so every device can be tested on a CPU."""
ATEN = torch.ops.aten
T = 9


class WithoutFloat64(TorchDispatchMode):
    """Note every float64 tensor that is made on the device. Numbers that the CPU reads from there are zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is ATEN._local_scalar_dense.default and args[0].device == DEVICE:
            return args[0].dtype.is_floating_point and 0.0
        if func is ATEN._to_copy.default and args[0].device == DEVICE and kwargs.get("device") == torch.device("cpu"):
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        out = func(*args, **kwargs)
        for each in tree_leaves(out):
            if isinstance(each, Tensor) and each.device == DEVICE and each.dtype == torch.float64:
                self.made.append(str(func))
        return out


def turning(scheme: mp.Scheme) -> bool:
    return any(scheme.answering(verb) for verb in ("turn", "place", "sharpen"))


SCHEMES = {name: make for name, make in CASES.items() if turning(make())} | {
    "Rope and Partial by length": lambda: mp.Scheme(
        mp.Partial(rope(mp.DynamicYarn(4)), of=D, temperature="logits"), mp.causal
    ),
    "LogN by length": lambda: mp.Scheme(rope(), mp.LogN(5, count="length"), mp.causal),
    "Sandwich": CASES["Sandwich"],
}


@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa", None])
@pytest.mark.parametrize("name", SCHEMES)
def test_no_float64_is_made_on_a_device_without_it(name: str, backend: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", ("meta",))
    scheme = SCHEMES[name]().to(DEVICE)
    axes = next((part.axes for part in scheme.parts if getattr(part, "axes", None)), None)
    q, k, v = (torch.empty(2, H, T, D, device=DEVICE) for _ in range(3))
    options: dict[str, Any] = {}
    if axes:
        options = {"position": torch.empty(2, T, axes, device=DEVICE, dtype=torch.int64)}
    mode = WithoutFloat64()
    try:
        with mode:
            out = mp.attend(q, k, v, scheme.attention, backend=backend, **options)
    except mp.CannotRun:
        assert backend not in (None, "reference", "chunked")
        return
    except TypeError as error:
        assert name == "LeakyRerope"
        assert "LeakyRerope: needs positions in float64, which meta does not have" in str(error)
        return
    assert mode.made == []
    assert out.device == DEVICE
    assert out.dtype == torch.float32


def test_exact_numbers_are_computed_on_the_cpu(monkeypatch: pytest.MonkeyPatch):
    """The angle at position 10⁶ is as exact as anywhere."""
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", ("mps",))
    assert precision.exact_device(torch.device("mps")) == torch.device("cpu")
    assert precision.exact_device(torch.device("cpu")) == torch.device("cpu")
    assert precision.float_type(torch.device("mps")) == torch.float32
    position = torch.tensor([1_000_003])
    cos, _ = rope().cos_sin(position)
    assert abs(float(cos[0, 0]) - float(torch.tensor(1_000_003.0, dtype=torch.float64).cos())) < 1e-7
