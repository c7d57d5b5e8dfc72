"""What `milepost extend` does: read the model, choose, save, and write the report."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import typer

from milepost import __version__
from milepost.hf.choosing.choose import choose, in_words
from milepost.hf.choosing.kept import Kept, refuse_folder
from milepost.hf.choosing.page import write_page
from milepost.hf.config.source import config_of
from milepost.hf.files.read import TOKENIZERS, demand_readable, read_model, read_with_table
from milepost.hf.files.saving import save
from milepost.hf.files.small import FAR, train_small
from milepost.hf.model.extension import extended
from milepost.hf.model.models import device_of
from milepost.hf.model.t5 import BUCKETED
from milepost.hf.model.tables import TABLES
from milepost.hf.planning.plan import plan

BIT = 1 << 24
"""Bytes of a file that are read at once."""


@dataclass(frozen=True)
class Asked:
    """What is extended: the model with its tokenizer, the text and how far. named: in the words of the command."""

    model: Any
    tokenizer: Any
    text: object
    to: int
    named: dict[str, str]
    digests: dict[str, str]


def extend(
    out: Path, model: str | None, to: int | None, text: Path | None, names: Sequence[str] | None, windows: int | None,
    last: int | None, thorough: bool, method: str | None,
) -> bool:  # fmt: skip
    """Do what the command says; False where the rule chooses none and none was named."""
    refuse_folder(out)
    kind = None if model is None else kind_of(model)
    if model is not None and kind in TABLES:
        return grow_table(out, model, str(kind), to, text)
    asked = asked_for(model, to, text, kind, [*(names or ()), *([] if method is None else [method])])
    question: dict[str, Any] = {
        "MODEL": model, "--to": asked.to, "--text": None if text is None else str(text), "--try": names,
        "--windows": windows, "--last": last, "--thorough": thorough, "the device": str(device_of(asked.model)),
        "milepost": __version__, **asked.digests,
    }  # fmt: skip
    kept = Kept(out, question)
    if method is not None:
        planned = plan(asked.model.config, asked.to)
        tried = [each.name for each in planned.candidates] if thorough else planned.measure
        # It may be asked for once all others are measured, so it is no other question.
        names = names if planned[method].name in (names or tried) else [*(names or tried), planned[method].name]
    try:
        return run(out, asked, kept, names, windows, last, thorough, method)
    finally:
        kept.close()


def run(
    out: Path, asked: Asked, kept: Kept, names: Sequence[str] | None, windows: int | None, last: int | None,
    thorough: bool, method: str | None,
) -> bool:  # fmt: skip
    """Measure, choose, save and report."""
    found = choose(
        asked.model, asked.text, asked.tokenizer, to=asked.to, names=names, windows=windows, last=last,
        thorough=thorough, kept=kept, facts=facts_of(asked),
    )  # fmt: skip
    typer.echo(str(found))
    saved = found.planned[method] if method else found.best
    if saved is not None:
        save(extended(asked.model, saved.parts), out)
        asked.tokenizer.save_pretrained(out)
    page = write_page(found, None if saved is None else saved.name, out)
    (out / "report.json").write_text(found.to_json(), encoding="utf-8")
    typer.echo(f"\n{in_words(found.took)} of measuring, {in_words(found.said)} were said before")
    if saved is None:
        typer.echo(f"nothing is saved; report: {page}")
        if not found.stock and found.nearest is not None:
            typer.echo(f"to save one all the same, give the same command with --method {found.nearest.row!r}")
        return found.stock
    typer.echo(f"saved: {out}\nread it with: milepost.hf.load({str(out)!r})\nreport: {page}")
    return True


def kind_of(model: str) -> object:
    """Return the model_type that the config of a folder or a name says."""
    config: Any = config_of(model, "extend")
    # The class of a config of transformers has its model_type.
    return cast("Any", config).get("model_type") if isinstance(config, Mapping) else getattr(config, "model_type", None)


def asked_for(model: str | None, to: int | None, text: Path | None, kind: object, rows: Sequence[str] = ()) -> Asked:
    """Return what is to be extended; without a model, one that is trained here. rows: the methods that are named."""
    data = None if text is None else text.read_bytes()
    words = None if data is None else data.decode("utf-8", errors="replace")
    digests = {} if data is None else {"the text": _digest(data)}
    if model is None:
        with TemporaryDirectory() as folder:
            corpus = train_small(folder)
            typer.echo(f"trained a small model of bytes on {corpus.source}\n")
            # What was kept from training; any text is measured on where it is given.
            own = corpus.test.long() if words is None else words
            read = read_model(folder, "extend")
        named = {"model": f"a small model of bytes, trained on {corpus.source}"}
        named["text"] = f"{text}" if text else f"what was kept of {corpus.source}"
        return Asked(*read, own, to or FAR, named, digests)
    if kind in BUCKETED:
        raise ValueError(
            f"extend {model}: the buckets of a {kind} model take any distance already. In Python they can be made to "
            f"reach further: milepost.hf.extend(model, T5Bias(heads, reach=…))"
        )
    if to is None or words is None:
        lacking = " and ".join(["--to N"] * (to is None) + ["--text FILE"] * (words is None))
        raise ValueError(f"extend {model}: give {lacking} as well: how far it should read, and what to measure on")
    if Path(model).exists():
        found = config_of(model, "extend")
        demand_readable(found, model, "extend")
        # What the config alone shows to be wrong is said before the weights are read.
        planned = plan(found, to)
        for row in rows:
            planned[row]
        digests["the model"] = digest_of(Path(model))
    return Asked(*read_model(model, "extend"), words, to, {"model": model, "text": str(text)}, digests)


def digest_of(folder: Path) -> str:
    """Return what a folder of a model is known by: its config, its weights and its tokenizer, every byte of them."""
    if folder.is_file():
        return _digest(folder.read_bytes())
    known = hashlib.sha256()
    files = {each for name in ("config.json", "*.safetensors", *TOKENIZERS) for each in folder.glob(name)}
    for path in sorted(each for each in files if each.is_file()):
        known.update(f"{path.name}:{path.stat().st_size}".encode())
        with path.open("rb") as file:
            while bit := file.read(BIT):
                known.update(bit)
    return known.hexdigest()[:16]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def facts_of(asked: Asked) -> dict[str, str]:
    """Return what was measured on what, for the report."""
    import torch

    where = device_of(asked.model)
    on = torch.cuda.get_device_name(where) if where.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    versions = {name: importlib.import_module(name).__version__ for name in ("torch", "transformers")}
    count = sum(each.numel() for each in asked.model.parameters())
    kind, dtype = asked.model.config.model_type, str(asked.model.dtype).removeprefix("torch.")
    known = asked.digests
    return {
        "model": f"{asked.named['model']} ({kind}, {count / 1e6:,.1f} million weights, {dtype}"
        + (f"; {known['the model']})" if "the model" in known else ")"),
        "text": asked.named["text"] + (f" (sha256 {known['the text']}…)" if "the text" in known else ""),
        "machine": on,
        "versions": ", ".join(f"{name} {each}" for name, each in {"milepost": __version__, **versions}.items()),
    }


# Learned tables


def grow_table(out: Path, model: str, kind: str, to: int | None, text: Path | None) -> bool:
    """Grow the learned table of a model: there is one way, so nothing is measured."""
    if to is None:
        raise ValueError(f"extend {model}: how many positions shall this {kind} model have? give --to N as well")
    planned = plan(config_of(model, "extend"), to)
    loaded, tokenizer = read_with_table(model, "extend")
    extended(loaded, (), to=to)
    loaded.save_pretrained(out)
    tokenizer.model_max_length = to
    tokenizer.save_pretrained(out)
    own = type(loaded).__name__
    typer.echo(
        f"{kind} has a learned row for each position, and there is one way to have more of them, so nothing was "
        f"measured{' and --text was not read' if text else ''}.\n"
        f"Grown from {planned.reached:,} to {to:,} positions: each new row is made of two old ones (hierarchical; Su, "
        f"2020); {planned['hierarchical'].note}.\n"
        f"saved: {out}\nread it with: transformers.{own}.from_pretrained({str(out)!r}); every engine that serves "
        f"{kind} serves it"
    )
    return True
