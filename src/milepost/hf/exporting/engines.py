"""The engines that models are exported to, by name. To add one, write a class as `Engine` and name it here."""

from __future__ import annotations

from milepost.hf.exporting import checkpoint, onnx_file
from milepost.hf.exporting.gguf_file import Gguf
from milepost.hf.exporting.refused import Engine


def engines() -> dict[str, Engine]:
    """Return every engine by its name; where one cannot run a model, the first that can is named instead."""
    *folders, milepost = checkpoint.ENGINES
    return {each.name: each for each in (*folders, Gguf(), milepost, *onnx_file.ENGINES)}
