"""Weights that are read where they are used: hooks that would make them before `forward` never run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune, spectral_norm, weight_norm

import milepost as mp
from tests.oracles import inputs
from tests.refusals import refused

MADE: dict[str, tuple[Any, str]] = {
    "Kerple": (lambda: mp.Kerple(4), "a"),
    "T5Bias": (lambda: mp.T5Bias(4), "table"),
    "Fire": (lambda: mp.Fire(4), "inner.weight"),
    "FloaterLayer": (lambda: mp.FloaterLayer(4, 8), "flow.outer.weight"),
}


def owner(part: nn.Module, weight: str) -> tuple[Any, str]:
    """The module that has a weight, and its name there."""
    where, _, name = weight.rpartition(".")
    return part.get_submodule(where), name


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("maker", ["WeightNorm", "SpectralNorm", "RandomUnstructured"])
def test_hooks_that_make_a_weight_are_refused_by_name(name: str, maker: str):
    make, weight = MADE[name]
    module, own = owner(make(), weight)
    use: Any = {
        "WeightNorm": lambda: weight_norm(module, own, dim=None),
        "SpectralNorm": lambda: spectral_norm(module, own, dim=0),
        "RandomUnstructured": lambda: prune.random_unstructured(module, own, 0.25),
    }[maker]
    kind = type(module).__name__
    refused(TypeError, f"{kind}: torch.nn.utils.….{maker} makes a weight…make a new {kind}, and use torch.nn", use)
    assert not isinstance(vars(module).get(own), Tensor)


@pytest.mark.parametrize("name", MADE)
def test_parametrize_is_seen_at_every_call(name: str):
    class Times(nn.Module):
        factor = 1.0

        def forward(self, weight: Tensor) -> Tensor:
            return weight * self.factor

    make, weight = MADE[name]
    part, times, (q, k, v) = make().double(), Times(), inputs()
    for each in part.parameters():
        nn.init.uniform_(each, 0.5, 1.5)
    scheme = mp.Scheme(part, mp.causal)
    parametrize.register_parametrization(*owner(part, weight), times)
    before = mp.attend(q, k, v, scheme)
    times.factor = 3.0
    assert not torch.allclose(mp.attend(q, k, v, scheme), before)


def test_any_other_hook_may_wait_for_a_call():
    called: list[object] = []
    part = mp.Kerple(4)
    part.register_forward_pre_hook(lambda *_: called.append(part)).remove()
    assert called == []
