"""Exported models in the engines that they are for: log-probabilities and logits beside milepost's own.

    python -m tests.sweeps.export [--out docs/sweeps/export.md] [--only llama.cpp] [--data FOLDER]

llama.cpp comes out of the wheel xllamacpp, onnxruntime and vLLM out of their own; what is not installed is left out,
and the page says so. `make sweep-export` runs all of it and writes a page. --data: where stories260K.bin, its
tokenizer, load_llama2c.py and a text are (a real model, trained at 512 tokens).
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import milepost as mp
from milepost.hf import export, extend, restore
from milepost.hf.config.rope_parameters import frequencies, magnitude
from tests.hf.tiny import tiny, tokens
from tests.sweeps import llama_cpp
from tests.sweeps.saved import commit_now

TRAINED, LENGTH, PAIRS = 64, 200, 16
SIZES: dict[str, Any] = {
    "hidden_size": 128, "head_dim": 2 * PAIRS, "intermediate_size": 96, "initializer_range": 0.12,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True},
    "qwen2": {"use_sliding_window": False, "sliding_window": None, "layer_types": None},
    "qwen3": {"use_sliding_window": False, "sliding_window": None, "layer_types": None},
    "gemma3_text": {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2},
}
"""What a model is made with. Gemma 3's queries are scaled by another number than its head's width."""


def stretches(trained: int, pairs: int) -> dict[str, tuple[object, ...]]:
    """Return the methods that are tried, for a trained length and so many pairs of channels."""
    slow = tuple(1.0 + 3 * n / max(1, pairs - 1) for n in range(pairs))
    return {
        "as it is": (),
        "linear": (mp.Interpolate(4.0),),
        "NTK": (mp.Ntk(4.0),),
        "NTK, mixed": (mp.NtkMixed(4.0),),
        "Llama 3": (mp.Llama3(4.0, trained),),
        "LongRoPE": (mp.LongRope((1.0,) * pairs, slow, trained, factor=4.0),),
        "YaRN": (mp.Yarn(4, trained),),
        "YaRN, another magnitude": (mp.Yarn(4, trained, scaled=1.2),),
        "YaRN, the paper's ramp": (mp.Yarn(4, trained, ramp="paper"),),
        "by parts": (mp.ByParts(4, trained),),
        "dynamic NTK": (mp.DynamicNtk(trained),),
        "ReRoPE": (mp.Rerope(trained // 4),),
    }


@dataclass
class Table:
    """Rows of a page."""

    title: str
    head: list[str]
    rows: list[list[str]] = field(default_factory=list[list[str]])
    notes: list[str] = field(default_factory=list[str])

    def add(self, *cells: str) -> None:
        """Add a row, and print it."""
        self.rows.append(list(cells))
        print(self.title, *cells, sep=" | ", flush=True)

    def __str__(self) -> str:
        lines = [f"## {self.title}", ""]
        for note in self.notes:
            lines += [note, ""]
        if self.rows:
            lines += [f"| {' | '.join(self.head)} |", "|" + "---|" * len(self.head)]
            lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join(lines) + "\n"


# Models


def model_of(model_type: str) -> Any:
    """Return a small random model whose norms and biases are none where they start."""
    model = tiny(model_type, **(SIZES | OWN[model_type]))
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            weight.data += 0.1 * torch.randn_like(weight)
    return model


def stories(data: Path) -> tuple[Any, Tensor]:
    """Return stories260K and a text of stories as its tokens."""
    spec = importlib.util.spec_from_file_location("load_llama2c", data / "load_llama2c.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model, _, _ = module.build_hf(data / "stories260K.bin")
    words = (data / "tinystories.txt").read_text(encoding="utf-8")[:9000]
    ids = module.Tok(data / "tok512.bin", 512).encode(words)
    return model, torch.tensor([ids])


def sources(data: Path | None) -> Iterator[tuple[str, Any, Tensor]]:
    """Yield each model with its name and a text past its trained length."""
    for model_type in OWN:
        yield f"{model_type}, random", model_of(model_type), tokens(1, LENGTH)
    # All that is left without GELU: attention, norms and windows.
    quiet = model_of("gemma3_text")
    for layer in quiet.model.layers:
        layer.mlp.down_proj.weight.data.zero_()
    yield "gemma3_text, random, MLP off", quiet, tokens(1, LENGTH)
    if data is not None and (data / "stories260K.bin").is_file():
        model, ids = stories(data)
        yield "stories260K", model, ids[:, :1500]


# llama.cpp


@torch.no_grad()
def in_llama_cpp(place: Path, data: Path | None) -> Table:
    """Compare log-probabilities with llama.cpp's, of every token of a text."""
    head = [
        "model",
        "method",
        "tokens",
        "largest difference",
        "rounded alike",
        "the method moves them by",
        "in the file",
    ]
    table = Table("llama.cpp", head)
    table.notes = [
        "Float32 weights, keys and values, no flash attention; log-probabilities of every next token at all positions, "
        "beside milepost's in PyTorch. llama.cpp makes angles in float32, from one pair of channels to the next, and "
        "GELU by a table of 16-bit numbers. *Rounded alike*: the difference where PyTorch rounds both so too; "
        "a number next to a step of the table may still fall on either side of it. *MLP off*: Gemma 3 whose MLP adds "
        "nothing, so that no GELU is left."
    ]
    if llama_cpp.library() is None:
        table.notes = ["Left out: xllamacpp is not installed."]
        return table
    for name, model, ids in sources(data):
        folder = place / name.replace(", ", "-")
        model.save_pretrained(folder)
        stock = log_probabilities(model, ids)
        trained, width = model.config.max_position_embeddings, model.model.layers[0].self_attn.head_dim
        for number, (method, parts) in enumerate(stretches(trained, width // 2).items()):
            out = place / f"{folder.name}-{number}"
            try:
                export(folder, out, to="gguf", method=parts)
            except ValueError as error:
                table.add(name, method, "", "refused", "", "", nearest_in(str(error)))
                continue
            extended = read(folder, parts)
            ours = log_probabilities(extended, ids)
            reader = llama_cpp.Reader(out / "model.gguf", math.ceil(ids.shape[1] / 256) * 256)
            theirs = reader.log_probabilities(ids[0].tolist())
            reader.close()
            round_as_llama_cpp(extended, ids.shape[1])
            rounded = f"{float((log_probabilities(extended, ids) - theirs).abs().max()):.1e}"
            moved = "" if not parts else f"{float((ours - stock).abs().max()):.2g}"
            table.add(name, method, str(ids.shape[1]), f"{float((ours - theirs).abs().max()):.1e}", rounded, moved,
                      said_in(out / "model.gguf"))  # fmt: skip
    return table


def read(folder: Path, parts: tuple[object, ...]) -> Any:
    """Return a model out of its folder, extended."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    return extend(model, *parts) if parts else model


def log_probabilities(model: Any, ids: Tensor) -> Tensor:
    """Return those of every next token, [t vocabulary]."""
    return model(ids).logits[0].double().log_softmax(-1)


class Angles(torch.nn.Module):
    """Cosines and sines of one rotation by float32 angles: each the last one times a number, then over a factor."""

    def __init__(self, rope: mp.Rope, length: int) -> None:
        super().__init__()
        plain = frequencies(replace(rope, stretch=None), length)
        self.by = (plain / frequencies(rope, length)).float()
        self.step = torch.tensor(rope.theta ** (-2.0 / rope.head_dim), dtype=torch.float32)
        self.size = magnitude(rope, length)

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        theta, angles = position_ids.float(), list[Tensor]()
        for by in self.by:
            angles.append(theta / by)
            theta = theta * self.step
        both = torch.stack(angles * 2, -1)
        return both.cos() * self.size, both.sin() * self.size


class AnglesByType(torch.nn.Module):
    """The same for a model with rotations of its own for each type of layers."""

    def __init__(self, by_type: dict[str, Angles]) -> None:
        super().__init__()
        self.by_type = by_type

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str) -> tuple[Tensor, Tensor]:
        return self.by_type[layer_type](x, position_ids)


def round_as_llama_cpp(model: Any, length: int) -> None:
    """Let a model round its angles and its GELU as llama.cpp does."""
    schedule, types = mp.Schedule.of(model), getattr(model.config, "layer_types", None)
    restore(model)
    angles = {
        (types or [""])[layer if types else 0]: Angles(scheme.parts[0], length) for layer, scheme in schedule.items()
    }
    by_type = model.config.model_type == "gemma3_text"
    model.model.rotary_emb = AnglesByType(angles) if by_type else next(iter(angles.values()))
    for layer in model.model.layers if by_type else ():
        layer.mlp.act_fn = Gelu()


class Gelu(torch.nn.Module):
    """GELU from and to 16 bits, as in llama.cpp's table."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x <= -10, 0.0, torch.where(x >= 10, x, y))


def nearest_in(message: str) -> str:
    """Return what a refusal names as nearest."""
    after = message.partition("Nearest that gguf runs: ")[2]
    return f"nearest: {after.partition(', milepost export')[0]}" if after else "nothing is nearest"


def said_in(file: Path) -> str:
    """Return what a file says of the rotation, as the gguf package reads it."""
    import gguf

    found = gguf.GGUFReader(file)
    words = [key.partition(".rope.scaling.")[2] for key in found.fields if ".rope.scaling." in key]
    words += [each.name for each in found.tensors if each.name.startswith("rope_")]
    return ", ".join(f"`{each}`" for each in words) or "`rope.freq_base`"


# onnxruntime and torch.export


IN_TORCH = ("YaRN", "ReRoPE, log-n")
"""Which of them are saved as programs of torch.export as well."""
ONE_LAYER: dict[str, Any] = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
"""One layer takes a minute or more to trace."""
NO_WINDOW: dict[str, Any] = {"use_sliding_window": False, "sliding_window": None}


def programs() -> dict[str, tuple[str, tuple[object, ...]]]:
    """Return the models and methods that are exported as programs."""
    return {
        "YaRN": ("llama", (mp.Yarn(4, TRAINED),)),
        "dynamic NTK": ("llama", (mp.DynamicNtk(TRAINED),)),
        "ReRoPE, log-n": ("qwen3", (mp.Rerope(16), mp.LogN(TRAINED))),
        "sink logits, YaRN, log-n": ("gpt_oss", (mp.Yarn(4, TRAINED), mp.LogN(TRAINED))),
        "Self-Extend": ("qwen2", (mp.SelfExtend(4, 16),)),
        "as it is, with a window": ("gemma3_text", ()),
    }


@torch.no_grad()
def in_programs(place: Path, engine: str) -> Table:
    """Compare logits of a program with the model's: one pass, and one token after the other with the cache."""
    title = {"onnx": "onnxruntime", "torch": "torch.export"}[engine]
    table = Table(title, ["method", "model", "largest difference", "of at most", "seconds to export", "MB"])
    table.notes = [
        f"Logits of {LENGTH} tokens, trained length {TRAINED}, in float32, two rows of which one is padded on the "
        f"left by 3: 90 tokens at once, 43 single tokens, blocks of 7 and 60, the cache going in and out; and one row "
        f"alone, at once. Models have one layer (Gemma 3 two). What is compared with is milepost in PyTorch, "
        f"all tokens so far in one pass without a cache."
    ]
    if engine == "onnx" and importlib.util.find_spec("onnxruntime") is None:
        table.notes = ["Left out: onnxruntime is not installed."]
        return table
    from milepost.hf.exporting.onnx_file import in_onnxruntime
    from milepost.hf.exporting.program import Step

    for number, (name, (model_type, parts)) in enumerate(programs().items()):
        if engine == "torch" and name not in IN_TORCH:
            continue
        sizes = {"gemma3_text": {}, "gpt_oss": ONE_LAYER}.get(model_type, ONE_LAYER | NO_WINDOW)
        model = tiny(model_type, **sizes)
        if parts:
            extend(model, *parts)
        out, began = place / f"{engine}-{number}", time.perf_counter()
        try:
            export(model, out, to=engine)
        except Exception as error:
            table.add(name, model_type, f"{type(error).__name__}: {str(error)[:160]}", "", "", "")
            continue
        took = time.perf_counter() - began
        if engine == "onnx":
            run: Any = in_onnxruntime(out / "model.onnx", Step(model))
        else:
            run = torch.export.load(out / "model.pt2").module(check_guards=False)
        worst, largest = compared(model, run)
        size = sum(each.stat().st_size for each in out.iterdir()) / 1e6
        table.add(name, model_type, f"{worst:.1e}", f"{largest:.2g}", f"{took:.0f}", f"{size:.1f}")
    return table


def compared(model: Any, run: Callable[..., Any]) -> tuple[float, float]:
    """Return how far the logits of a program are from a model's, and the largest of these."""
    from milepost.hf.exporting.program import inputs_for

    worst, largest = 0.0, 0.0
    for rows, steps in ((2, [90, *[1] * 43, 7, 60]), (1, [LENGTH])):
        ids, mask = tokens(rows, LENGTH), torch.ones(rows, LENGTH, dtype=torch.long)
        mask[0, : 3 * (rows - 1)] = 0
        cache, at = inputs_for(model, rows, 1, 0)[2], 0
        for n in steps:
            # What a dynamic stretch gives a token depends on how many came with it.
            wanted = model(input_ids=ids[:, : at + n], attention_mask=mask[:, : at + n], use_cache=False).logits
            logits, cache = run(ids[:, at : at + n], mask[:, : at + n], cache)
            real = mask[:, at : at + n].bool()
            worst = max(worst, float((logits - wanted[:, at : at + n])[real].abs().max()))
            largest, at = max(largest, float(wanted.abs().max())), at + n
        assert at == LENGTH
    return worst, largest


# vLLM


def in_vllm(place: Path) -> Table:
    """Compare log-probabilities of a prompt with vLLM's, on a CPU, in float32."""
    table = Table("vLLM", ["model", "method", "tokens", "largest difference"])
    if importlib.util.find_spec("vllm") is None:
        table.notes = ["Left out: vLLM is not installed here."]
        return table
    from vllm import LLM, SamplingParams

    table.notes = ["The log-probability of each next token of the prompt, and of the most probable one."]
    ids = tokens(1, LENGTH)
    for model_type in ("llama", "qwen3"):
        folder = place / f"vllm-{model_type}"
        model_of(model_type).save_pretrained(folder)
        for number, (method, parts) in enumerate(stretches(TRAINED, PAIRS).items()):
            out = place / f"vllm-{model_type}-{number}"
            try:
                export(folder, out, to="vllm", method=parts)
            except ValueError:
                table.add(model_type, method, "", "refused")
                continue
            with torch.no_grad():
                ours = log_probabilities(read(folder, parts), ids)
            served = LLM(str(out), skip_tokenizer_init=True, dtype="float32", max_model_len=256, enforce_eager=True)
            asked = SamplingParams(max_tokens=1, prompt_logprobs=1, detokenize=False)
            found = served.generate({"prompt_token_ids": ids[0].tolist()}, asked)[0].prompt_logprobs
            worst = max(
                abs(each.logprob - float(ours[at, token]))
                for at, entries in enumerate(found[1:])
                for token, each in entries.items()
            )
            table.add(model_type, method, str(LENGTH), f"{worst:.1e}")
            del served
    return table


# The page


def page(tables: list[Table], kept: str) -> str:
    """Return the sweep as Markdown. kept: an earlier page, whose sections stay where no table takes their place."""
    made = {table.title: f"{table}".strip() for table in tables}
    sections = [f"## {each}".strip() for each in kept.split("\n## ")[1:]]
    old = {each.partition("\n")[0].removeprefix("## "): each for each in sections}
    head = [
        "# Exported models in their engines", "",
        f"`make sweep-export`; `--only ENGINE` makes one section anew. Random models have two layers (Gemma 3 four), "
        f"heads of {2 * PAIRS} channels, trained length {TRAINED}; stories260K is a real one, trained at 512.",
    ]  # fmt: skip
    return "\n".join(head) + "\n\n" + "\n\n".join((old | made).values()) + "\n"


def made_with() -> str:
    """Return the day, the commit and the versions that a section was made with."""
    installed: list[str] = []
    for name in ("torch", "transformers", "gguf", "xllamacpp", "onnx", "onnxscript", "onnxruntime", "vllm"):
        try:
            installed.append(f"{name} {version(name).partition('+')[0]}")
        except PackageNotFoundError:
            continue
    date = datetime.now(timezone.utc).date().isoformat()
    return f"{date}, commit {commit_now()}; {', '.join(installed)}; {os.cpu_count()} cores, shared."


ENGINES: dict[str, Callable[[Path, Path | None], Table]] = {
    "llama.cpp": in_llama_cpp,
    "onnxruntime": lambda place, data: in_programs(place, "onnx"),
    "torch.export": lambda place, data: in_programs(place, "torch"),
    "vllm": lambda place, data: in_vllm(place),
}


def main() -> None:
    """Run all engines that are installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", choices=list(ENGINES))
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tables, made = list[Table](), made_with()
    for name, run in ENGINES.items():
        if asked.only in (None, name):
            with tempfile.TemporaryDirectory() as place:
                tables.append(run(Path(place), asked.data))
            tables[-1].notes.insert(0, made)
            if asked.out is not None:
                kept = asked.out.read_text(encoding="utf-8") if asked.out.is_file() else ""
                asked.out.write_text(page(tables, kept), encoding="utf-8")
    sys.exit(not any(table.rows for table in tables))


if __name__ == "__main__":
    main()
