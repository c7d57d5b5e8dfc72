"""The README.md of an exported folder: how it is read, what the model computes, and by what it was written."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import milepost
from milepost.hf.exporting.source import Source

LIBRARIES = ("torch", "transformers", "gguf", "onnx", "onnxscript")


def write_card(source: Source, engine: str, folder: Path, out: Path, said: dict[str, str]) -> str:
    """Write README.md into a folder that will be called `out`; returns how it is read, for the terminal.

    said: what the engine says, by heading; DIR in it is the name of the folder.
    """
    said = {name: text.replace("DIR", str(out)) for name, text in said.items()}
    was = "" if source.unextended else ", extended"
    title = f"# {Path(source.name).name}{was}, for {engine}"
    further = source.trained is not None and (source.reaches or 0) > source.trained
    reaches = f" It is made to read {source.reaches:,}." if further else ""
    trained = "" if source.trained is None else f"Trained at {source.trained:,} tokens.{reaches}"
    lines = [title, "", f"`{source.line(engine)}`", "", *([trained, ""] if trained else [])]
    for name, text in said.items():
        lines += [f"## {name}", "", text, ""]
    lines += ["## What attention computes", "", "```", str(source.schedule), "```", "", "## Written by", ""]
    lines += [f"milepost {milepost.__version__}, with {', '.join(versions(engine))}."]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return said["Read it with"]


def versions(engine: str) -> list[str]:
    """Return the libraries that an export used, with their versions."""
    used = LIBRARIES[:2] + {"gguf": LIBRARIES[2:3], "onnx": LIBRARIES[3:]}.get(engine, ())
    found: list[str] = []
    for name in used:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found
