"""RULER on a machine without lm-evaluation-harness: items made and scored where it is, answered where the GPU is.

    python examples/ruler.py make MODEL --lengths 16384 32768 --items 50 --out items.jsonl      # needs lm-eval
    python examples/ruler.py answer items.jsonl MODEL --extend 'Rerope(4096)' --out answers.jsonl
    python examples/ruler.py score items.jsonl answers.jsonl                                    # needs lm-eval

The items are those of lm-eval's tasks that need no network, with its seeds; an answer is what `--model milepost` gives.
Rerun `answer` to resume.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from milepost.hf import extend, load, show
from milepost.hf.evaluation.answering import answers
from milepost.hf.measuring.scores import table

TASKS = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "ruler_vt", "ruler_cwe", "ruler_fwe")
"""Those of the thirteen that need no network."""
SEEDS = (0, 1234)
"""Of `random` and of numpy, as lm-eval sets them."""


def made(model: str, lengths: Sequence[int], tasks: Sequence[str], items: int) -> Iterable[dict[str, Any]]:
    """Return items of each task at each length; model: whose tokenizer counts the tokens."""
    import numpy as np

    manager: Any = importlib.import_module("lm_eval.tasks").TaskManager
    for length in lengths:
        for name in tasks:
            random.seed(SEEDS[0])
            np.random.seed(SEEDS[1])
            metadata = {"tokenizer": model, "max_seq_lengths": [length]}
            task = manager(metadata=metadata).load([name])["tasks"][name]
            task.build_all_requests(limit=items, rank=0, world_size=1)
            for number, each in enumerate(task.instances):
                prompt, how = each.args
                yield {
                    "id": f"{name}-{length}-{number}", "task": name, "length": length, "prompt": prompt,
                    "new_tokens": how["max_gen_toks"], "until": how["until"], "doc": each.doc,
                }  # fmt: skip


def read(file: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of lines; none of a file that is not there."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def model_of(name: str, given: str | None, to: int | None, device: str) -> Any:
    """Return a model, extended: a folder that `save` wrote as what it is, another one by a row or an expression."""
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    if Path(name).is_dir() and not show(name).transformers:
        model = load(name, dtype=dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    if given is not None:
        extend(model, given, to=to)
    return model.eval().to(device)


def answered(
    items: Sequence[dict[str, Any]], model: Any, tokenizer: Any, batch: int, longest: int | None, out: Path
) -> None:
    """Answer the items that have no answer yet, task by task."""
    known = {each["id"] for each in read(out)}
    left = [each for each in items if each["id"] not in known]
    for (task, length), group in groupby(left, key=lambda each: (each["task"], each["length"])):
        asked = list(group)
        found = answers(
            model, tokenizer, [each["prompt"] for each in asked], asked[0]["new_tokens"],
            until=asked[0]["until"], batch=batch, longest=longest,
        )  # fmt: skip
        with out.open("a", encoding="utf-8") as file:
            for item, answer in zip(asked, found, strict=True):
                file.write(json.dumps({"id": item["id"], "answer": answer}, ensure_ascii=False) + "\n")
        print(f"{task} at {length:,}: {len(asked)} answered", file=sys.stderr, flush=True)


def scored(items: Sequence[dict[str, Any]], given: Sequence[dict[str, Any]]) -> dict[tuple[str, int], list[float]]:
    """Return the score of every answer by task and length, by lm-eval's own function."""
    process: Any = importlib.import_module("lm_eval.tasks.ruler.common_utils").process_results
    found, by_id = dict[tuple[str, int], list[float]](), {each["id"]: each["answer"] for each in given}
    for item in items:
        if item["id"] in by_id:
            score = process(item["doc"], [by_id[item["id"]]])[str(item["doc"]["max_length"])]
            found.setdefault((item["task"], item["length"]), []).append(float(score))
    return found


def shown(found: dict[tuple[str, int], list[float]]) -> str:
    """Return the mean of each task at each length, and of how many items."""
    tasks, lengths = list(dict.fromkeys(task for task, _ in found)), sorted({length for _, length in found})

    def cell(task: str, length: int) -> str:
        scores = found.get((task, length))
        return f"{100 * sum(scores) / len(scores):.1f} ({len(scores)})" if scores else "–"

    heads = [f"{length:,}" for length in lengths]
    return table("percent found (items)", heads, tasks, [[cell(task, length) for length in lengths] for task in tasks])


def main(arguments: Sequence[str] | None = None) -> None:
    """Make, answer or score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    make = steps.add_parser("make")
    make.add_argument("model", help="whose tokenizer counts the tokens")
    make.add_argument("--lengths", type=int, nargs="+", required=True)
    make.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    make.add_argument("--items", type=int, default=50, help="of each task at each length")
    make.add_argument("--out", type=Path, required=True)
    answer = steps.add_parser("answer")
    answer.add_argument("items", type=Path)
    answer.add_argument("model")
    answer.add_argument("--extend", help="a row or an expression")
    answer.add_argument("--to", type=int, help="the length to reach, for rows that go by it")
    answer.add_argument("--batch", type=int, default=1)
    answer.add_argument("--longest", type=int, help="cut prompts from the left to so many tokens, answers included")
    answer.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    answer.add_argument("--out", type=Path, required=True)
    score = steps.add_parser("score")
    score.add_argument("items", type=Path)
    score.add_argument("answers", type=Path)
    asked = parser.parse_args(arguments)
    if asked.step == "make":
        with asked.out.open("w", encoding="utf-8") as file:
            for item in made(asked.model, asked.lengths, asked.tasks, asked.items):
                file.write(json.dumps(item, ensure_ascii=False) + "\n")
    elif asked.step == "answer":
        model = model_of(asked.model, asked.extend, asked.to, asked.device)
        tokenizer: Any = AutoTokenizer.from_pretrained(asked.model)
        answered(read(asked.items), model, tokenizer, asked.batch, asked.longest, asked.out)
    else:
        print(shown(scored(read(asked.items), read(asked.answers))))


if __name__ == "__main__":
    main()
