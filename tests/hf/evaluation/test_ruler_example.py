"""RULER by two routes: lm-eval's own, and items as JSONL that are answered without it. Both answer the same."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.examples import example_of
from tests.hf.folders import write

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'milepost[eval]'")

pytestmark = [
    pytest.mark.slow,
    # lm-eval's own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]
TASKS, ITEMS, LENGTH, WAY = ("niah_single_1",), 3, 1024, "ReRoPE, sinks kept"


def test_both_routes_answer_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    (tmp_path / "tokenizers" / "punkt_tab").mkdir(parents=True)
    folder, items, out = str(write(tmp_path / "model")), tmp_path / "items.jsonl", tmp_path / "answers.jsonl"
    importlib.import_module("milepost.hf.evaluation.adapter")
    ruler = example_of("ruler")
    ruler.main(
        ["make", folder, "--lengths", str(LENGTH), "--tasks", *TASKS, "--items", str(ITEMS), "--out", str(items)]
    )
    given = ["answer", str(items), folder, "--extend", WAY, "--batch", "2", "--device", "cpu", "--out", str(out)]
    ruler.main(given)
    ours = {each["id"]: each["answer"] for each in ruler.read(out)}
    assert len(ours) == len(TASKS) * ITEMS
    assert len(set(ours.values())) > 1, "there is something to compare"
    # Nothing is answered twice.
    ruler.main(given)
    assert len(ruler.read(out)) == len(ours)
    for task in TASKS:
        found = importlib.import_module("lm_eval").simple_evaluate(
            model="milepost", model_args={"pretrained": folder, "extend": WAY}, tasks=[task], limit=ITEMS,
            batch_size=2, device="cpu", log_samples=True, metadata={"max_seq_lengths": [LENGTH]}, bootstrap_iters=0,
        )  # fmt: skip
        theirs = {f"{task}-{LENGTH}-{each['doc_id']}": each["resps"][0][0] for each in found["samples"][task]}
        assert theirs == {name: answer for name, answer in ours.items() if name.startswith(task)}
        scores = ruler.scored(ruler.read(items), ruler.read(out))[task, LENGTH]
        assert sum(scores) / ITEMS == found["results"][task][f"{LENGTH},none"]
    ruler.main(["score", str(items), str(out)])
    assert "niah_single_1  0.0 (3)" in capsys.readouterr().out
