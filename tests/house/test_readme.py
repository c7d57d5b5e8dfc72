"""What README shows is what happens: its code runs, and prints the output that follows it."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

import milepost as mp
from milepost.hf import extend, plan
from tests.hf.tiny import tiny, tokens

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The cells of the first table after a heading, without its head."""
    rows = [line for line in README.partition(heading)[2].split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_the_code_runs_and_prints_what_is_shown():
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```\n(?:```\n(.*?)```)?", README, re.DOTALL)
    assert len(blocks) == 5
    for code, shown in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        assert printed.getvalue() == shown


def test_the_settings_of_yarn_are_those_that_plan_writes():
    shown = re.search(r"```json\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    llama = {"model_type": "llama", "head_dim": 128, "num_attention_heads": 32, "num_hidden_layers": 32,
             "rope_theta": 500000.0, "max_position_embeddings": 8192}  # fmt: skip
    candidate = plan(llama, to=32768)["YaRN"]
    assert ast.literal_eval(shown[1]) == candidate.config == candidate.vllm


def test_the_page_that_draws_positions_is_named_where_a_newcomer_reads():
    assert "`milepost explore`" in README.partition("## Install")[0]


def test_it_is_short_and_code_comes_early():
    lines = README.splitlines()
    assert len(lines) <= 310
    assert "mp.attend(" in "\n".join(lines[:36])


def test_the_two_commands_that_do_everything_are_named_and_there():
    targets = set(re.findall(r"^([\w-]+):", (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8"), re.M))
    assert {"demo", "test"} <= set(re.findall(r"`make ([\w-]+)`", README)) <= targets


def test_every_method_is_in_the_table():
    named = [name for first, *_ in table("## The methods\n") for name in re.findall(r"`(\w+)`", first)]
    assert sorted(named) == sorted(entry.name for entry in mp.methods())


def test_every_page_it_names_is_there():
    for path in re.findall(r"\]\(([\w./]+)\)", README):
        assert (Path(__file__).parents[2] / path).exists(), path


PREFIX = {
    "YaRN, linear": (mp.Yarn(4, 64), "same logits"),
    "dynamic YaRN": (mp.DynamicYarn(64), "differs by 10⁻²"),
    "ReRoPE, Self-Extend": (mp.SelfExtend(4, 16), "same logits"),
    "log-n": (mp.LogN(64), "same logits"),
}
"""How the rows begin, a method of each, and what they say of text that continues a cached prefix."""


@pytest.mark.slow
@pytest.mark.parametrize("row", PREFIX)
def test_a_cached_prefix_is_continued_as_the_table_says(row: str):
    part, expected = PREFIX[row]
    assert next(cells[2] for cells in table("### Where else each method runs") if cells[0].startswith(row)) == expected
    model, text = extend(tiny("llama", initializer_range=0.1), part), tokens(1, 200)
    with torch.no_grad():
        cache = DynamicCache(config=model.config)
        model(text[:, :120], past_key_values=cache)
        logits = model(text[:, 120:], past_key_values=cache).logits
        off = float((logits - model(text).logits[:, 120:]).abs().max())
    assert off < 1e-5 if expected == "same logits" else 1e-3 < off < 1e-1
