"""MemWalker: a planted fact is found in a text twenty times the context, by a model that follows a script."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch

from milepost.hf import MemWalker, asker

CONTEXT = 200
FACT = "The brass key of Harrow House lies under the third stone of the well."
QUESTION = "Where does the brass key lie?"


def long_text(words: int, at: float) -> str:
    """Words that say nothing, and one sentence that does."""
    rng = random.Random(0)
    filler = [rng.choice(("rain", "hill", "lamp", "boat", "wool", "salt", "fern")) for _ in range(words)]
    filler.insert(int(at * words), FACT)
    return " ".join(filler)


class Scripted:
    """A model with a context of 200 words: it summarises, chooses and answers by looking for the key in its prompt."""

    def __init__(self, misleads: int = 0) -> None:
        self.prompts: list[str] = []
        self.misleads = misleads

    def __call__(self, prompt: str) -> str:
        assert len(prompt.split()) <= CONTEXT, "the prompt is longer than the context"
        self.prompts.append(prompt)
        if prompt.endswith("Summary:"):
            return "About a brass key." if "brass key" in prompt else "About the weather."
        if prompt.endswith("Number:"):
            return self.choice(prompt)
        found = re.search(r"lies (under[^.]*)", prompt.split("Question:")[0])
        return f"Answer: {found[1]}" if found else "Back"

    def choice(self, prompt: str) -> str:
        parts = re.findall(r"^(\d+)\. (.*)$", prompt, re.MULTILINE)
        named = [number for number, summary in parts if "brass key" in summary]
        other = [number for number, summary in parts if "brass key" not in summary]
        if self.misleads and other:
            self.misleads -= 1
            return f"Part {other[0]}, I think."
        return named[0] if named else "0"


@pytest.mark.parametrize("at", [0.02, 0.5, 0.98])
def test_a_planted_fact_is_found_in_a_text_twenty_times_the_context(at: float):
    text = long_text(20 * CONTEXT, at)
    assert len(text.split()) >= 20 * CONTEXT
    model = Scripted()
    walker = MemWalker(model, text, context=CONTEXT, fan=4)
    built = len(model.prompts)
    found = walker.answer(QUESTION)
    assert found.answer == "under the third stone of the well"
    assert found.path[-1] == "answer"
    assert found.asked == len(model.prompts) - built < 20


def test_cutting_asks_the_tokenizer_a_few_times_a_segment():
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(1)
        return len(text.split())

    walker = MemWalker(Scripted(), long_text(4000, 0.5), context=CONTEXT, count=count, fan=4)
    segments = 4000 / walker.segment
    assert len(counted) < 30 * segments


def test_the_leaves_are_the_text_and_nothing_is_lost():
    text = long_text(1000, 0.5)
    walker = MemWalker(Scripted(), text, context=CONTEXT, fan=4)

    def leaves(node: Any) -> list[str]:
        return [node.text] if node.leaf else [each for child in node.children for each in leaves(child)]

    assert "".join(leaves(walker.root)) == text
    assert all(len(each.split()) <= walker.segment for each in leaves(walker.root))
    assert len(walker.root.children) <= 4


def test_it_turns_back_from_a_wrong_way_and_remembers_it():
    model = Scripted(misleads=3)
    walker = MemWalker(model, long_text(2000, 0.9), context=CONTEXT, fan=4)
    found = walker.answer(QUESTION)
    assert found.answer == "under the third stone of the well"
    assert "back" in found.path
    # What was read on the wrong way stands in later prompts.
    assert any("You have read before:\nAbout the weather." in prompt for prompt in model.prompts)


def test_a_fact_that_is_not_there_is_not_made_up():
    text = long_text(1000, 0.5).replace(FACT, "")
    found = MemWalker(Scripted(), text, context=CONTEXT, fan=4).answer(QUESTION)
    assert found.answer is None
    assert MemWalker(Scripted(misleads=10**6), text, context=CONTEXT, fan=4).answer(QUESTION, steps=5).answer is None


def test_a_model_that_answers_nonsense_reads_everything_and_ends():
    class Nonsense(Scripted):
        def choice(self, prompt: str) -> str:
            return "perhaps"

    found = MemWalker(Nonsense(), long_text(1000, 0.99), context=CONTEXT, fan=4).answer(QUESTION)
    assert found.answer == "under the third stone of the well"


def test_a_long_summary_is_cut_so_that_its_parents_fit():
    class Talker(Scripted):
        def __call__(self, prompt: str) -> str:
            said = super().__call__(prompt)
            return said + " and so on" * 100 if prompt.endswith("Summary:") else said

    found = MemWalker(Talker(), long_text(2000, 0.3), context=CONTEXT, fan=4).answer(QUESTION)
    assert found.answer is not None


def test_a_text_that_fits_is_one_leaf():
    walker = MemWalker(Scripted(), FACT, context=CONTEXT)
    assert walker.root.leaf
    assert walker.answer(QUESTION).path == ("answer",)


def test_what_is_refused():
    with pytest.raises(TypeError, match="ask is a function from a prompt to a reply"):
        MemWalker(3, "text", context=CONTEXT)  # pyright: ignore
    with pytest.raises(ValueError, match="there is no room for a text; raise the context"):
        MemWalker(Scripted(), "text", context=40)
    with pytest.raises(ValueError, match="there is nothing to read"):
        MemWalker(Scripted(), "  ", context=CONTEXT)
    with pytest.raises(ValueError, match="ask something"):
        MemWalker(Scripted(), FACT, context=CONTEXT).answer(" ")
    with pytest.raises(ValueError, match="ask shorter, or raise the context"):
        MemWalker(Scripted(), FACT, context=CONTEXT).answer("why " * 100)


def test_a_model_of_transformers_can_be_asked():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_attention_heads=2, num_hidden_layers=1, vocab_size=128,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()

    class Letters:
        chat_template = None

        def __call__(self, text: str, return_tensors: str) -> dict[str, Any]:
            ids = torch.tensor([[ord(c) % 128 for c in text]])
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

        def decode(self, ids: Any, skip_special_tokens: bool) -> str:
            return "".join(chr(int(n)) for n in ids)

    said = asker(model, Letters(), new_tokens=4)("hello")
    given = Letters()("hello", "pt")
    plain = model.generate(**given, max_new_tokens=4, do_sample=False)[0, 5:]
    assert said == Letters().decode(plain, True)
