"""Judging a model past its length: three protocols that must not be confused, and recall, which a window cannot fake.

All scores are bits per byte. Every protocol answers the bits of single tokens, so that means, positions and confidence
intervals are taken from the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from milepost.lab.training.reader import Reader

# Tokens read in one forward pass.
AT_ONCE = 1 << 16
# Rows of logits held at once.
ROWS = 1 << 15
LAST = 256


@torch.no_grad()
def bits(model: Reader, windows: Tensor, keep: int | None = None) -> Tensor:
    """The bits of each next byte in windows [n, T + 1]: [n, T], or of the last `keep` only, float32 on the CPU."""
    model.eval()
    device = model.device
    n, length = windows.shape[0], windows.shape[1] - 1
    keep = length if keep is None else min(keep, length)
    step = max(1, AT_ONCE // length)
    rows: list[Tensor] = []
    for first in range(0, n, step):
        part = windows[first : first + step].to(device)
        states = model.states(part[:, :-1])[:, length - keep :]
        rows.append(_bits(model, states, part[:, 1 + length - keep :]).cpu())
    return torch.cat(rows) if n else torch.empty(0, keep)


def _bits(model: Reader, states: Tensor, targets: Tensor) -> Tensor:
    """−log2 of the probability of each target, a few thousand rows of logits at a time."""
    flat, wanted = states.flatten(0, 1), targets.flatten()
    rows = [
        F.cross_entropy(model.logits(flat[a : a + ROWS]).float(), wanted[a : a + ROWS], reduction="none")
        for a in range(0, len(flat), ROWS)
    ]
    return (torch.cat(rows) / math.log(2)).view(targets.shape)


def windows(text: Tensor, length: int, total: int) -> Tensor:
    """About `total` bytes as windows of `length` + 1, spread evenly over the text, int64."""
    return _cut(text, _spread(max(1, total // length), len(text) - length - 1), length + 1)


def _spread(count: int, room: int) -> Tensor:
    """Return so many places between 0 and `room`, evenly."""
    return torch.tensor([n * room // max(1, count - 1) for n in range(count)])


def _cut(text: Tensor, starts: Tensor, size: int) -> Tensor:
    """Return stretches of a text, int64 [n, size]."""
    return text[starts[:, None] + torch.arange(size)].long()


def non_overlapping(model: Reader, text: Tensor, length: int, total: int) -> Tensor:
    """Bits of every byte in windows of `length`, [n, length]; the first of each window have little to go by."""
    return bits(model, windows(text, length, min(total, len(text) - 1)))


def at_ends(model: Reader, text: Tensor, length: int, longest: int, count: int, last: int = LAST) -> Tensor:
    """Bits of the last bytes before `count` fixed ends, given `length` bytes in all, [count, last].

    The ends are the same at every length, and so the same bytes are judged: what changes is only how far back the model
    may look. There are fewer where a short text would have its bytes judged twice.
    """
    room = len(text) - longest - 1
    starts = longest - length + _spread(min(count, room // last + 1), room)
    return bits(model, _cut(text, starts, length + 1), last)


def sliding(model: Reader, text: Tensor, length: int, stride: int, total: int) -> Tensor:
    """Bits of about `total` bytes, each given between length − stride and length bytes before it, [n, stride]."""
    count = max(1, min(total // stride, (len(text) - length - 1) // stride + 1))
    first = (len(text) - length - 1 - (count - 1) * stride) // 2
    starts = first + torch.arange(count) * stride
    return bits(model, _cut(text, starts, length + 1), stride)


def each_alone(model: Reader, text: Tensor, length: int, total: int) -> Tensor:
    """Bits of `total` bytes spread over the text, each on exactly its own last `length`, [total, 1]."""
    return bits(model, windows(text, length, total * length), 1)


def check_distance(distance: int, size: int = 128) -> None:
    """Refuse copies that would overlap."""
    if distance < size:
        raise ValueError(f"recall: copies of {size} bytes cannot stand {distance} apart")


def recall(
    model: Reader, text: Tensor, distance: int, size: int = 128, count: int = 32, seed: int = 0, real: bool = False
) -> tuple[Tensor, Tensor]:
    """Bits on `size` bytes that come again `distance` after they first came, and on the same ones fresh, [count, size].

    Both times the same bytes are judged, at the same place, after the same bytes but one stretch: where the first copy
    stands in one reading, others stand in the other. So the difference is what looking back saves, and nothing else.
    Bytes are drawn from the text one by one; `real` ones are passages of the text, in the text between them.
    """
    check_distance(distance, size)
    twice, other = (_passages if real else _drawn)(text, distance, size, count, seed)
    twice[:, distance + 1 :] = twice[:, 1 : size + 1]
    fresh = twice.clone()
    fresh[:, 1 : size + 1] = other
    return bits(model, twice, size), bits(model, fresh, size)


def _drawn(text: Tensor, distance: int, size: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random bytes, as often as each comes in the text: whole windows, and others for the place of the first copy."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.randint(0, len(text), (count, distance + 2 * size + 1), generator=generator)
    found = text[places].long()
    return found[:, : distance + size + 1].clone(), found[:, distance + size + 1 :]


def _passages(text: Tensor, distance: int, size: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Stretches spread evenly over the text; what takes the place of a first copy is from half the text away."""
    starts = _spread(count, len(text) - distance - size - 1)
    others = (starts + 1 + len(text) // 2) % (len(text) - size)
    return _cut(text, starts, distance + size + 1), _cut(text, others, size)


def lengths_up_to(length: int, longest: int) -> Iterator[int]:
    """length, and its doubles up to longest."""
    while length <= longest:
        yield length
        length *= 2
