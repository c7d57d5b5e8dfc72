"""Programs in files: ONNX, which onnxruntime reads, and torch.export's own, which PyTorch reads without milepost."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from milepost.hf.config.source import first_line
from milepost.hf.exporting.program import Pairs, Step, demand_exportable, demand_same, inputs_for, traced
from milepost.hf.exporting.source import Source

ONNX, TORCH = "model.onnx", "model.pt2"
SHAPES = (
    "Inputs: `input_ids` [b, t], `attention_mask` [b, s + t] with 1 for every token that counts (those in the cache "
    "too; padding on the left is 0), and for each layer n of {layers} `past.n.key` and `past.n.value` [b, {groups}, s, "
    "{width}], {dtype}. A text begins with s = 0. Outputs: `logits` [b, t, {size}] and `present.n.key`, "
    "`present.n.value`, which are the next call's `past`."
)
ALL_KEPT = "Layers with a window keep all keys in this cache; their masks hide what lies behind it."


@dataclass(frozen=True)
class Program:
    """A program in a file."""

    name: str
    needs: tuple[str, ...] = ()

    def refuses_model(self, source: Source) -> str | None:
        return demand_exportable(source)

    def refuses(self, source: Source) -> str | None:
        # What cannot be traced is found by tracing, and what is traced wrongly by running it.
        return None

    def write(self, source: Source, folder: Path) -> dict[str, str]:
        step = Step(in_float32(source))
        shapes = said_of(step)
        program = demand_traced(source, step)
        if self.name == "torch":
            worst = demand_same(step, program.module(check_guards=False), source.called)
            torch.export.save(program, folder / TORCH)
            read = (
                f'PyTorch, without milepost:\n\n    step = torch.export.load("DIR/{TORCH}").module(check_guards=False)'
            )
            read += "\n    logits, cache = step(input_ids, attention_mask, cache)  # [(key, value) of each layer]"
            checked = f"The program gave the model's logits to {worst:.1e}"
        else:
            try:
                write_onnx(program, step, folder / ONNX)
            except Exception as error:
                # Errors of torch.onnx are its own, and no ValueError.
                raise ValueError(
                    f"{source.called} --to onnx: torch.onnx cannot translate this model: {innermost(error)}. Nearest "
                    f"that works: {source.line('torch')}"
                ) from error
            read = f'onnxruntime, without milepost:\n\n    onnxruntime.InferenceSession("DIR/{ONNX}")'
            if importlib.util.find_spec("onnxruntime") is None:
                checked = "Not run: onnxruntime is not installed where it was written"
            else:
                worst = demand_same(step, in_onnxruntime(folder / ONNX, step), source.called)
                checked = f"onnxruntime gave the model's logits to {worst:.1e}"
        source.copy_beside(folder)
        checked += " on two short texts, one padded, in three steps with the cache." if checked[0] != "N" else "."
        return {"Read it with": read, "Inputs and outputs": shapes, "What was checked": checked}


def demand_traced(source: Source, step: Step) -> Any:
    """Return the program of a step; a ValueError where torch.export cannot trace it."""
    try:
        return traced(step)
    except Exception as error:
        raise ValueError(
            f"{source.called}: torch.export cannot trace this model: {innermost(error)}. Nearest that works: "
            f"{source.line('milepost')}"
        ) from error


def innermost(error: BaseException) -> str:
    """Return the first line of the error that began a chain of them."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {first_line(error)}"


def in_float32(source: Source) -> Any:
    """Return the model in float32 on the CPU and in evaluation mode; one in memory must be so, and is not changed."""
    model = source.model(torch.float32)
    weight = next(model.parameters())
    if weight.dtype != torch.float32 or weight.device.type != "cpu" or model.training:
        raise ValueError(
            f"{source.called}: programs are traced in float32 on the CPU, and this model is in {weight.dtype} on "
            f"{weight.device}{', in training' if model.training else ''}; export a folder, or give "
            f"copy.deepcopy(model).float().cpu().eval()"
        )
    return model


def said_of(step: Step) -> str:
    """Return what goes in and comes out."""
    _, _, cache = inputs_for(step.model, 1, 1, 1)
    _, groups, _, width = cache[0][0].shape
    dtype = str(cache[0][0].dtype).removeprefix("torch.")
    size = step.model.config.vocab_size
    text = SHAPES.format(layers=len(cache), groups=groups, width=width, dtype=dtype, size=size)
    windows = getattr(step.model.config, "layer_types", None) or ()
    return f"{text} {ALL_KEPT}" if "sliding_attention" in windows else text


def write_onnx(program: Any, step: Step, file: Path) -> None:
    """Write a traced step as ONNX."""
    layers = range(len(inputs_for(step.model, 1, 1, 0)[2]))
    past, present = (
        [f"{side}.{n}.{part}" for n in layers for part in ("key", "value")] for side in ("past", "present")
    )
    with warnings.catch_warnings():
        # torch's own, of the pytrees that it copies.
        warnings.simplefilter("ignore")
        made = cast("Any", torch.onnx.export(
            program, (), dynamo=True, verbose=False, input_names=["input_ids", "attention_mask", *past],
            output_names=["logits", *present],
        ))  # fmt: skip
        made.save(file, external_data=None)


def in_onnxruntime(file: Path, step: Step) -> Callable[[Tensor, Tensor, Pairs], tuple[Tensor, Pairs]]:
    """Return what runs a step in onnxruntime, on tensors."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(ids: Tensor, mask: Tensor, cache: Pairs) -> tuple[Tensor, Pairs]:
        given = [ids, mask, *(each for pair in cache for each in pair)]
        found = session.run(None, {name: each.numpy() for name, each in zip(names, given, strict=True)})
        logits, *rest = [torch.as_tensor(each) for each in found]
        return logits, list(zip(rest[::2], rest[1::2], strict=True))

    return run


ENGINES = (Program("onnx", ("onnx", "onnxscript")), Program("torch"))
