"""Training by transformers' `Trainer`: checkpoints from which the same command resumes, to the same losses."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from milepost.hf.model.models import device_of
from milepost.hf.tuning.passages import Passages
from milepost.hf.tuning.recipe import WARM, Recipe

STATE = "trainer_state.json"
"""The last file that `Trainer` writes into a checkpoint."""
CHECKPOINTS = "checkpoints"


def with_low_rank(model: Any, rank: int, seed: int) -> Any:
    """The model with low-rank weights to train and all others frozen; as it is for rank 0."""
    if rank == 0:
        return model
    import peft

    asked = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return cast("Any", peft).get_peft_model(model, asked)


def trained(
    model: Any, passages: Passages, recipe: Recipe, out: Path, told: Callable[[int, float], object]
) -> list[float]:
    """Train a model in place and return the loss of every step; told: called with a step and its loss."""
    from transformers import Trainer, TrainerCallback, TrainingArguments, default_data_collator

    class Told(TrainerCallback):
        """Passes on each loss as it is logged."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in logs:
                told(state.global_step, float(logs["loss"]))

    cuda = device_of(model).type == "cuda"
    asked = TrainingArguments(
        output_dir=str(out / CHECKPOINTS), max_steps=recipe.steps, per_device_train_batch_size=recipe.batch,
        learning_rate=recipe.learning_rate, lr_scheduler_type="linear", warmup_steps=math.ceil(WARM * recipe.steps),
        weight_decay=0.0, max_grad_norm=1.0, logging_steps=1, save_strategy="steps", save_steps=recipe.save_every,
        save_total_limit=2, seed=recipe.seed, data_seed=recipe.seed, report_to="none", disable_tqdm=True,
        remove_unused_columns=False, use_cpu=not cuda, bf16=cuda, dataloader_pin_memory=cuda,
        gradient_checkpointing=recipe.checkpointing, logging_nan_inf_filter=False,
    )  # fmt: skip
    from transformers.trainer_callback import PrinterCallback

    trainer = Trainer(
        model, asked, train_dataset=cast("Any", passages), data_collator=default_data_collator, callbacks=[Told()]
    )
    trainer.remove_callback(PrinterCallback)
    resumed = last_whole(out)
    trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
    return [each["loss"] for each in trainer.state.log_history if "loss" in each]


def last_whole(out: Path) -> Path | None:
    """Return the newest checkpoint that was written to its end; those that were not are removed."""
    found: list[tuple[int, Path]] = []
    for each in (out / CHECKPOINTS).glob("checkpoint-*"):
        try:
            step = json.loads((each / STATE).read_text(encoding="utf-8"))["global_step"]
        except (OSError, ValueError, KeyError):
            shutil.rmtree(each)
        else:
            found.append((step, each))
    return max(found, default=(0, None))[1]


def step_of(checkpoint: Path | None) -> int:
    """Return at which step a checkpoint was written; 0 for none."""
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def seconds_a_step(model: Any, passages: Passages, batch: int) -> float:
    """Return how long one step takes, from the second of two; weights and random numbers are as they were."""
    rows = [passages[n] for n in range(batch)]
    given: dict[str, Tensor] = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    given = {name: each.to(device_of(model)) for name, each in given.items()}
    took = 0.0
    with torch.random.fork_rng(), training(model):
        for _ in range(2):
            began = time.monotonic()
            with torch.autocast(device_of(model).type, torch.bfloat16, enabled=device_of(model).type == "cuda"):
                loss = model(**given, use_cache=False).loss
            loss.backward()
            # Waits for the device.
            float(loss.detach())
            took = time.monotonic() - began
            model.zero_grad(set_to_none=True)
    return took


@contextmanager
def training(model: Any) -> Generator[None]:
    """Let a model train for a while."""
    before = model.training
    model.train()
    try:
        yield
    finally:
        model.train(before)
