"""Judging a model by a task, at any length and any positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from milepost.lab.schemes.expressions import joined
from milepost.lab.schemes.named import expression
from milepost.lab.tasks.task import NOT_JUDGED, Task
from milepost.lab.training.reader import Reader

Positions = Callable[[int], Tensor]
"""How many tokens to their positions, such as Randomized(2048).sample."""
Measure = Callable[[Tensor, Tensor], Tensor]
"""Logits and targets to a score for each example: a task's accuracy or exact."""

# Examples judged at once; under random positions these share one draw.
ROWS = 64
# Judging draws from seeds that no step of training comes to. Of seeds torch reads 32 bits.
JUDGING = 1 << 31


def placed(positions: Positions | None, tokens: int, seed: int) -> Tensor | None:
    """Return the positions of so many tokens, the same whenever the seed is."""
    if positions is None:
        return None
    with torch.random.fork_rng(devices=[]):
        # The samplers draw from torch's own generator if told no other.
        torch.default_generator.manual_seed(seed)
        return positions(tokens)


def written_for(task: Task, scheme: str) -> str:
    """Return a scheme as a task needs it: encoders see everything."""
    return joined(expression(scheme), "everything") if task.bidirectional else scheme


@torch.no_grad()
def score(
    model: Reader,
    task: Task,
    length: int,
    count: int,
    seed: int,
    positions: Positions | None = None,
    measure: Measure | None = None,
) -> Tensor:
    """Return the accuracies of a model on `count` examples of one length, float32 [count] on the CPU.

    positions: as in training, or others: Randomized(n).evenly does better than drawing. measure: the task's accuracy
    if None; its `exact` counts whole answers.
    """
    model.eval()
    device = model.device
    measure = task.accuracy if measure is None else measure
    seed = JUDGING + seed * 1_000_003 + length
    inputs, targets = task.batch(count, length, torch.Generator().manual_seed(seed))
    found: list[Tensor] = []
    for first in range(0, count, ROWS):
        position = placed(positions, inputs.shape[1], seed + first)
        part = slice(first, first + ROWS)
        where = {} if position is None else {"position": position.to(device)}
        logits = model(inputs[part].to(device), **where)
        found.append(measure(logits.float(), targets[part].to(device)).cpu())
    return torch.cat(found)


def trivial(task: Task, lengths: Sequence[int], count: int) -> float:
    """Return the accuracy of the one symbol that is right most often, if it is all that is ever answered.

    Over `count` examples of each length.
    """
    shares: list[Tensor] = []
    for length in lengths:
        _, targets = task.batch(count, length, torch.Generator().manual_seed(length))
        right = torch.stack([(targets == answer).sum(1) for answer in task.answers])
        shares.append(right / (targets != NOT_JUDGED).sum(1))
    return float(torch.cat(shares, 1).mean(1).max())
