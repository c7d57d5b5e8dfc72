"""A model of the lab as a folder that stock transformers reads, with the same logits and the same ids."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import milepost as mp
from milepost.hf import export
from milepost.hf.files.from_lab import tokenizer_of_bytes
from milepost.lab.cells.cell import Cell, make
from milepost.lab.cells.store import Store
from milepost.lab.judging.scoring import Judging
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.recipe import Recipe
from milepost.lab.training.train import write_checkpoint

SIZES: dict[str, Any] = {"width": 48, "layers": 2, "heads": 6, "key_heads": 2, "hidden": 40}
TEXTS = torch.randint(0, 256, (2, 90), generator=torch.Generator().manual_seed(1))


def made(*parts: object, **sizes: Any) -> Model:
    """A model whose weights are none where they start, norms included; larger ones make float32 itself err by 1e-5."""
    torch.manual_seed(0)
    model = Model(Shape(**(SIZES | sizes)), mp.Scheme(*parts))
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    return model.eval()


@pytest.mark.parametrize(("normed", "kind"), [(True, "qwen3"), (False, "llama")])
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_stock_transformers_gives_the_same_logits(normed: bool, kind: str, tied: bool, tmp_path: Path):
    model = made(mp.Rope(8, theta=500.0), mp.causal, normed=normed, tied=tied)
    export(model, tmp_path, trained=64)
    read = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert read.config.model_type == kind
    assert read.config.max_position_embeddings == 64
    assert (read(TEXTS).logits - model(TEXTS)).abs().max() < 1e-5
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {each.name for each in tmp_path.iterdir()}


@pytest.mark.parametrize("text", ["plain", "Grüße, 日本\n\t \r\n  two  spaces ", "<0x41> </s>\x00", "é and é", ""])
def test_ids_are_bytes_and_come_back(text: str, tmp_path: Path):
    tokenizer_of_bytes().save_pretrained(tmp_path)
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(text)["input_ids"]
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == 256


def sweep_of(folder: Path, name: str, **more: Any) -> tuple[Path, Model]:
    """A folder as `milepost compare` leaves it: a checkpoint, and the store that says what it is."""
    cell = Cell(name, 0, Shape(**SIZES), Recipe(length=32, batch=1, steps=1), Judging(64), "text", **more)
    model = made(mp.Rope(8), mp.causal) if name == "rope" else make(cell)
    store = Store(folder / "lab.sqlite")
    store.add(cell.key, cell.settings())
    store.close()
    path = folder / f"{cell.key}.safetensors"
    weights = {f"model.{name}": weight.detach() for name, weight in model.named_parameters()}
    write_checkpoint(path, weights, {"step": "1", "recipe": str(asdict(cell.recipe))})
    return path, model


@torch.no_grad()
def test_a_checkpoint_of_a_sweep_says_itself_what_it_is(tmp_path: Path):
    path, model = sweep_of(tmp_path, "rope")
    export(path, tmp_path / "out")
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert read.config.max_position_embeddings == 32
    assert (read(TEXTS).logits - model(TEXTS)).abs().max() < 1e-5


def test_what_transformers_layers_cannot_do_is_refused(tmp_path: Path):
    out = tmp_path / "out"
    for parts in (
        (mp.Alibi(6), mp.causal),
        (mp.Rope(8, pairs="neighbours"), mp.causal),
        (mp.Rope(8), mp.LogN(8), mp.causal),
    ):
        with pytest.raises(ValueError, match=r"this model's layers have .*, and those of Qwen3 and Llama are"):
            export(made(*parts), out, trained=64)
    with pytest.raises(TypeError, match=r"export\(trained=None\): trained must be an integer"):
        export(made(mp.Rope(8), mp.causal), out)
    with pytest.raises(ValueError, match="Alibi"):
        export(sweep_of(tmp_path, "alibi")[0], out)
    with pytest.raises(FileNotFoundError, match=r"no such file; milepost compare --out DIR writes"):
        export(tmp_path / "nothing.safetensors", out)
    (tmp_path / "other.safetensors").touch()
    with pytest.raises(ValueError, match="knows no cell other"):
        export(tmp_path / "other.safetensors", out)
    (tmp_path / "lab.sqlite").unlink()
    with pytest.raises(FileNotFoundError, match=r"in which milepost compare keeps what a checkpoint is"):
        export(tmp_path / "other.safetensors", out)
    assert not out.exists()
