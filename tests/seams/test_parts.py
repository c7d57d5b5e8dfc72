"""What a scheme says of its parts as a whole."""

from __future__ import annotations

import torch
from torch import nn

from milepost import Kerple, Rope, Scheme, T5Bias, causal


def test_weights_are_the_parameters_in_their_order():
    """Deeper ones too, shared ones once; what was put in later or taken away is seen."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.nothing = nn.Linear(2, 2, bias=False)
            self.taken: nn.Module | None = nn.Linear(1, 1)

    bias, other = T5Bias(2), Kerple(2)
    bias.inner = Inner()
    other.shared = bias.inner.first
    scheme = Scheme(bias, other, causal)
    for _ in range(2):
        wanted = list(scheme.parameters())
        found = scheme.weights()
        assert len(found) == len(wanted) > 5
        assert all(one is two for one, two in zip(found, wanted, strict=True))
        bias.inner.taken = None
        bias.table = nn.Parameter(torch.zeros(32, 2))
    assert Scheme(Rope(8), causal).weights() == ()
