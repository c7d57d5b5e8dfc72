"""What is said of a sentence that a model reads, before and after a scheme."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from milepost.explore.scene import Say
from milepost.explore.sentence import said_of


@pytest.mark.parametrize(("head", "most"), [(0, 0), (0, 1)])
def test_what_moved_is_said_once_of_a_head_that_moved_most(head: int, most: int):
    before, after = (torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]) for _ in range(2))
    after[head] = torch.tensor([[0.7, 0.3]])
    if most != head:
        after[most] = torch.tensor([[0.5, 0.5]])
    name = Say("with Rerope(4)", "使用 Rerope(4)")
    said = said_of(2, head, name, {Say("as it is", "原样"): [before] * 3, name: [after] * 3})
    for text in (said.en, said.zh):
        assert text.count("30.0 %") == 1
        assert text.count("50.0 %") == (most != head)
    assert said.en.startswith("With Rerope(4), 30.0 % of the weight of head 0 goes to other keys")
    assert ("the most of layer 2" in said.en) == (most == head)
    assert ("of layer 2 head 1 changes most, 50.0 %" in said.en) == (most != head)
