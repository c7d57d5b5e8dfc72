"""What is said of a sentence that a model reads, before and after a scheme."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from transformers import Lfm2Config, Lfm2ForCausalLM

from milepost.explore.controls import NotPossibleError
from milepost.explore.heads import weights_in
from milepost.explore.scene import Map, Say
from milepost.explore.sentence import Reader, said_of


@pytest.mark.parametrize(("head", "most"), [(0, 0), (0, 1)])
def test_what_moved_is_said_once_of_a_head_that_moved_most(head: int, most: int):
    before, after = (torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]) for _ in range(2))
    after[head] = torch.tensor([[0.7, 0.3]])
    if most != head:
        after[most] = torch.tensor([[0.5, 0.5]])
    name = Say("with Rerope(4)", "使用 Rerope(4)")
    said = said_of(2, head, name, {Say("unchanged", "原样"): {2: before}, name: {2: after}})
    for text in (said.en, said.zh):
        assert text.count("30.0 %") == 1
        assert text.count("50.0 %") == (most != head)
    assert said.en.startswith("With Rerope(4), 30.0 % of the weight of head 0 goes to other keys")
    assert ("the most of layer 2" in said.en) == (most == head)
    assert ("of layer 2 head 1 changes most, 50.0 %" in said.en) == (most != head)


class Letters:
    """A tokenizer that reads letters."""

    def decode(self, ids: list[int]) -> str:
        return "x"


def test_a_layer_of_a_hybrid_is_chosen_by_its_number_in_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kinds = ["conv", "conv", "full_attention", "conv", "full_attention", "full_attention"]
    torch.manual_seed(0)
    config = Lfm2Config(
        hidden_size=32, num_hidden_layers=6, num_attention_heads=4, vocab_size=50, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=24, layer_types=kinds,
    )  # fmt: skip
    model = Lfm2ForCausalLM(config).eval()
    with torch.no_grad():
        model.model.layers[5].self_attn.q_layernorm.weight.zero_()
    ids = torch.arange(4)
    even = torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]
    weights = weights_in(model, ids)
    assert list(weights) == [2, 4, 5]
    torch.testing.assert_close(weights[5], even.expand(4, 4, 4))
    assert (weights[2] - even).abs().max() > 1e-3
    model.config.save_pretrained(tmp_path)
    monkeypatch.setattr("milepost.explore.sentence.tokens_of", lambda *_: ids)  # pyright: ignore
    monkeypatch.setattr("milepost.explore.sentence.read_model", lambda *_: (model, Letters()))  # pyright: ignore
    reader = Reader(str(tmp_path))
    figure = reader.scene({"layer": 5}).figures[0]
    assert isinstance(figure, Map)
    assert figure.values[3] == pytest.approx([0.25] * 4)
    reader.scene({})
    with pytest.raises(NotPossibleError, match="give one of 2, 4–5"):
        reader.scene({"layer": 3})
