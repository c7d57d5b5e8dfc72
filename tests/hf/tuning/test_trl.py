"""TRL's `SFTTrainer` on extended models: stock's losses, low-rank weights, gradient checkpointing and packing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import milepost as mp
from milepost.hf import extend
from tests.hf.folders import tokenizer
from tests.hf.tiny import tiny

pytest.importorskip("trl", reason="TRL is not installed: pip install trl")

import datasets
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

pytestmark = [
    pytest.mark.slow,
    # Of TRL and what it loads.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]
TEXTS = [" ".join(["the cat sat on a mat.", "the rat ran far.", "a hat."][: 1 + n % 3]) for n in range(16)]
"""Of three lengths, so that batches are padded, and packs have several."""


def trained(model: Any, folder: Path, low_rank: bool = False, **how: Any) -> list[float]:
    """The losses of four steps."""
    options: dict[str, Any] = {
        "max_steps": 4, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "logging_steps": 1, "use_cpu": True,
        "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "seed": 0, "max_length": 64, "bf16": False,
        "gradient_checkpointing": False, "dataloader_pin_memory": False,
    }  # fmt: skip
    trainer = SFTTrainer(
        model, SFTConfig(str(folder), **(options | how)), processing_class=tokenizer(),
        train_dataset=datasets.Dataset.from_dict({"text": TEXTS}),
        peft_config=LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM") if low_rank else None,
    )  # fmt: skip
    trainer.train()
    return [each["loss"] for each in trainer.state.log_history if "loss" in each]


HOW: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "low-rank weights, gradient checkpointing": {"low_rank": True, "gradient_checkpointing": True},
    "packed without padding": {"packing": True},
    "packed without padding, gradient checkpointing": {"packing": True, "gradient_checkpointing": True},
}


@pytest.mark.parametrize("how", HOW)
def test_an_extended_model_is_tuned_as_stock_is(how: str, tmp_path: Path):
    stock = trained(tiny("llama", eos_token_id=2), tmp_path, **HOW[how])
    ours = trained(extend(tiny("llama", eos_token_id=2), through="attend"), tmp_path, **HOW[how])
    assert ours == pytest.approx(stock, abs=1e-4)
    assert stock[-1] < stock[0]


def test_a_method_that_no_config_says_is_tuned_and_packed(tmp_path: Path):
    losses = trained(extend(tiny("llama", eos_token_id=2), mp.Rerope(8)), tmp_path, packing=True)
    assert losses[-1] < losses[0]
