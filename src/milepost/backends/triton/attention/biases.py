"""What bends scores, read from facets as the kernels take it: slopes, one table by distance, a soft cap."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from milepost.call.call import Call
from milepost.memory.surroundings import has_numbers
from milepost.memory.table import kept
from milepost.seams.arguments import spell
from milepost.seams.facets import HasSlopes

OnDevice = tuple[Tensor, Tensor, Tensor | None]


def unread(call: Call) -> str | None:
    """Return why the kernel cannot bend scores as the parts together do: one soft cap, before or after all biases."""
    parts = call.scheme.answering("bend")
    caps = [number for number, part in enumerate(parts) if has_facet(call, part, "cap")]
    if len(caps) > 1 or (caps and caps[0] not in (0, len(parts) - 1)):
        return f"{spell(parts[caps[-1]])} caps between other parts that bend, and the kernels cap first or last"
    if len(call.scheme.answering("slopes")) > 1:
        return "two parts have slopes, and the kernels take one"
    return None


def unknown(call: Call) -> str | None:
    """Return why the biases of this call are not known before its tokens are looked at."""
    given = call.given_length
    for part in call.scheme.answering("bend"):
        if has_facet(call, part, "cap"):
            continue
        if not call.at_index:
            return f"{spell(part)} bends by where tokens stand, and the kernels measure by their indices"
        if getattr(part, "by_length", False) and (given.numel() > 1 if given is not None else not by_place(call)):
            return f"{spell(part)} follows the length of each text, and the kernels take one for all"
        if by_place(call) or has_facet(call, part, "slopes"):
            continue
        if call.index_given and math.inf in _ends(call, part):
            return f"{spell(part)} has a number for every distance, and given indices do not say how many there are"
        if _learns(part) and (call.index_given or call.documents is not call.key_documents):
            return (
                f"{spell(part)} learns by distance, which the kernels sum along diagonals: leave out index, and give "
                f"documents once for queries and keys"
            )
    return None


def by_place(call: Call) -> bool:
    """True if indices count up by one along both rows, documents or not."""
    return call.queries.first is not None and call.keys.first is not None


def has_facet(call: Call, part: object, facet: str) -> bool:
    """True if a part of the scheme answers a facet: the scheme has looked already, and torch.compile need not."""
    return any(part is each for each in call.scheme.answering(facet))


def _learns(part: object) -> bool:
    return (
        torch.is_grad_enabled()
        and isinstance(part, nn.Module)
        and any(weight.requires_grad for weight in part.parameters())
    )


@dataclass(frozen=True)
class Line:
    """A bias by distance: rows [h n] for the distances first … first + n − 1, constant past both ends."""

    rows: Tensor
    first: int

    def over(self, first: int, last: int) -> Tensor:
        """Return the same over another range of distances."""
        at = torch.arange(first, last + 1, device=self.rows.device) - self.first
        return self.rows[:, at.clamp(0, self.rows.shape[1] - 1)]

    def __add__(self, other: Line) -> Line:
        first = min(self.first, other.first)
        last = max(line.first + line.rows.shape[1] - 1 for line in (self, other))
        return Line(self.over(first, last) + other.over(first, last), first)


def biases(call: Call) -> dict[str, Any]:
    """Return what bends scores, as the kernel takes it."""
    found: dict[str, Any] = {}
    lines: list[Line] = []
    parts: tuple[Any, ...] = call.scheme.answering("bend")
    for number, part in enumerate(parts):
        if has_facet(call, part, "cap"):
            found |= {"cap": float(part.cap), "cap_first": number == 0 and len(parts) > 1}
        elif has_facet(call, part, "slopes"):
            behind, ahead, step = _slopes(call, part)
            found |= {"slopes": behind, "slopes_ahead": ahead}
            if step is not None:
                # What every key behind the query gains, and none at it or ahead.
                lines.append(Line(torch.stack((torch.zeros_like(step), step), 1), 0))
        else:
            lines.append(_line(call, part))
    learner = _of_two_numbers(call, parts)
    if learner is not None:
        return found | _two_numbers(call, lines[0], learner)
    if lines:
        line = functools.reduce(Line.__add__, lines)
        found |= {"table": line.rows.contiguous(), "first": line.first}
    return found


def _of_two_numbers(call: Call, parts: tuple[Any, ...]) -> Any:
    """Return the one part that adds anything, where it learns two numbers a head and nothing else; or None."""
    adding = [part for part in parts if not has_facet(call, part, "cap")]
    if len(adding) != 1 or not has_facet(call, adding[0], "two_numbers") or not _learns(adding[0]):
        return None
    # The kernels sum over distances that are in the table.
    return adding[0] if min(adding[0].constant_past) == math.inf else None


def _two_numbers(call: Call, line: Line, part: Any) -> dict[str, Any]:
    """Return the table with what it follows from, in whose place it gets no gradient."""
    many = line.rows.shape[1]
    factor, number, derivative = part.two_numbers(_distances(line.first, line.first + many, call.q.device))
    return {
        "table": line.rows.detach().contiguous(), "first": line.first,
        "numbers": torch.stack((factor, number)).float(), "derivative": derivative.float(),
    }  # fmt: skip


def _slopes(call: Call, part: HasSlopes) -> OnDevice:
    """Return the slopes behind and ahead, and the step, [h] in float32 on the device."""
    length = None
    if getattr(part, "by_length", False):
        if call.given_length is not None:
            return _on_device(part, call.given_length[0, 0], call.q.device)
        assert call.keys.first is not None
        length = call.keys.first + call.keys.count
    return (_on_device if isinstance(part, nn.Module) else _kept)(part, length, call.q.device)


def _on_device(part: HasSlopes, length: Tensor | int | None, device: torch.device) -> OnDevice:
    slopes = part.slopes(length)
    behind, ahead = (each.to(device, torch.float32).contiguous() for each in (slopes.behind, slopes.ahead))
    return behind, ahead, None if slopes.step is None else slopes.step.to(device, torch.float32)


# Slopes that nothing learns are moved to the device once.
_kept = kept(64)(_on_device)


def _line(call: Call, part: Any) -> Line:
    """Return a bias by distance over the distances that occur, as far as it varies."""
    behind, ahead = _ends(call, part)
    if call.queries.first is not None and call.keys.first is not None:
        offset = call.queries.first - call.keys.first
        nearest, furthest = offset - call.keys.count + 1, offset + call.queries.count - 1
    else:
        # Without an index, every index is below the number of keys.
        furthest = math.inf if call.index_given else call.keys.count - 1
        nearest = -furthest
    first = max(nearest, -ahead)
    last = max(first, min(furthest, behind))
    ends = int(first), int(last) + 1
    if has_facet(call, part, "by_bucket") and has_numbers():
        # Loaded here, because it needs triton.
        from milepost.backends.triton.attention.t5_buckets import picked

        return Line(picked(*part.by_bucket(*ends, call.q.device)), ends[0])
    rows = (_by_distance if isinstance(part, nn.Module) else _kept_by_distance)(part, *ends, call.q.device)
    return Line(rows.expand(call.q.shape[1], -1), ends[0])


def _by_distance(part: Any, first: int, end: int, device: torch.device) -> Tensor:
    return part.by_distance(_distances(first, end, device)).float()


# What nothing learns stays as it is.
_kept_by_distance = kept(16)(_by_distance)


@kept(16)
def _distances(first: int, end: int, device: torch.device) -> Tensor:
    return torch.arange(first, end, device=device)


def _ends(call: Call, part: Any) -> tuple[float, float]:
    """Return the distances behind and ahead past which a bias is constant, or nothing is seen."""
    band = call.scheme.band()
    assert band is not None
    behind, ahead = part.constant_past
    return min(behind, math.inf if band.sinks else band.behind - 1), min(ahead, band.ahead)
