"""transformers' `Trainer` on extended models: what stock models get, and packed texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import milepost as mp
from milepost.hf import extend, load, save
from tests.hf.test_architectures import near
from tests.hf.tiny import tiny, tokens

pytest.importorskip("accelerate")


class Texts(Dataset[dict[str, Tensor]]):
    """Rows of 24 tokens; packed: three texts of 8 in each, told apart by their positions alone."""

    def __init__(self, packed: bool) -> None:
        self.rows, self.packed = tokens(8, 24), packed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        row = self.rows[number]
        more = {"position_ids": torch.arange(24) % 8} if self.packed else {}
        return {"input_ids": row, "labels": row} | more


def trained(model: Any, folder: Path, packed: bool = False, **how: Any) -> list[float]:
    """The losses of four steps."""
    model.config.use_cache = False
    options: dict[str, Any] = {
        "max_steps": 4, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "logging_steps": 1, "use_cpu": True,
        "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "seed": 0, "dataloader_pin_memory": False,
    }  # fmt: skip
    trainer = Trainer(model, TrainingArguments(str(folder), **(options | how)), train_dataset=Texts(packed))
    trainer.train()
    return [each["loss"] for each in trainer.state.log_history if "loss" in each]


HOW: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "bfloat16, two parts a step": {"bf16": True, "gradient_accumulation_steps": 2},
    "packed": {"packed": True},
    "packed, gradient checkpointing": {"packed": True, "gradient_checkpointing": True},
}


@pytest.mark.parametrize("how", HOW)
def test_an_extended_model_trains_as_stock_does(how: str, tmp_path: Path):
    stock = trained(tiny("llama"), tmp_path, **HOW[how])
    ours = trained(extend(tiny("llama"), through="attend"), tmp_path, **HOW[how])
    assert ours == pytest.approx(stock, abs=2e-2 if "bf16" in HOW[how] else 1e-4)
    assert stock[-1] != pytest.approx(stock[0], abs=1e-2), "something was learned"


def test_packed_texts_do_not_see_each_other(tmp_path: Path):
    """Else the losses of the first step would be those of long texts."""
    whole, packed = (
        trained(extend(tiny("llama"), mp.Rerope(4)), tmp_path, packed=each, max_steps=1) for each in (False, True)
    )
    assert abs(whole[0] - packed[0]) > 1e-3


def test_what_was_trained_is_saved_and_loaded(tmp_path: Path):
    model = extend(tiny("llama"), mp.Rerope(4))
    trained(model, tmp_path / "run")
    save(model, tmp_path / "saved")
    with torch.no_grad():
        one, two = (each.eval()(tokens(), use_cache=False).logits for each in (model, load(tmp_path / "saved")))
    assert near(one, two)
