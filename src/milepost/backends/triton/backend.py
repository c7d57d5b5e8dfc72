"""Our own kernels, for schemes whose work on a score is told by facets: slopes, tables by distance, a soft cap."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from milepost.backends.estimate import seconds, seen_pairs
from milepost.backends.kept import kept
from milepost.backends.rotated import rotated_queries
from milepost.backends.views import refusal, turned, values, views
from milepost.call.call import Call
from milepost.call.merge import merge
from milepost.seams.arguments import spell
from milepost.seams.band import Band
from milepost.seams.facets import HasSlopes, has_facet

CANNOT: dict[str, str] = {
    "relate": "adds tables looked up by distance to the dot products, which these kernels do not do yet",
    "bends_unread": "bends scores in a way that no facet tells",
    "bend_rows": "bends whole rows of scores",
}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST = 256
FEW = 16
"""Query tokens up to which keys are split over programs."""
OnDevice = tuple[Tensor, Tensor, Tensor | None]


def refuses(call: Call) -> str | None:
    """Why the kernels cannot run this: first what lasts, then what another call or machine could change."""
    reason = refusal(call, CANNOT) or _unread(call)
    if reason is not None:
        return reason
    if torch.compiler.is_compiling():
        return "inside torch.compile the kernels are not used yet"
    if call.dropout:
        return "dropout is not in the kernels; flex has it"
    if call.q.dtype not in DTYPES:
        return f"the kernels take bfloat16, float16 and float32, not {call.q.dtype}"
    if max(call.q.shape[-1], call.v.shape[-1]) > WIDEST:
        return f"heads are wider than {WIDEST} channels"
    if call.layout is None or not call.at_index:
        return "indices, positions or documents were given, and the kernels count tokens from the shapes"
    band = call.scheme.band()
    if band is None or band.chunk is not None or band.behind == -math.inf:
        return "what is visible is no window with sinks"
    return _regimes_unread(call, band) or _no_device(call.q.device)


def cost(call: Call) -> float:
    """Plain attention, and a little more."""
    if call.q.device.type != "cuda":
        # Triton's interpreter, which is there to be checked against.
        return math.inf
    each = 1.15 if call.scheme.answering("bend") else 1.1
    return seconds(call, seen_pairs(call), each * (2.5 if call.q.dtype == torch.float32 else 1), launches=16)


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """Turn, and let the kernels do the rest."""
    out, lse = _by_regimes(call) if call.scheme.answering("place") else _whole(call)
    rest = call.scheme.rest()
    if rest is not None:
        rest = rest.to(lse)[:, None]
        out, lse = out * torch.sigmoid(lse - rest)[..., None].to(out.dtype), torch.logaddexp(lse, rest)
    return out, lse if call.return_lse else None


def _whole(call: Call) -> tuple[Tensor, Tensor]:
    """One softmax over all keys that are seen."""
    layout, band = call.layout, call.scheme.band()
    assert layout is not None
    assert band is not None
    v = values(call, call.v.dtype)
    # Sinks are the first keys of the text, and these keys may begin later.
    near = _limits(band.behind, band.ahead) | {"sinks": max(0, band.sinks - layout.key_first)}
    how = near | _biases(call) | {"sharpen": _sharpness(call)}
    rotated = rotated_queries(call) if _few(call) else None
    if rotated is None:
        return _launch(call, *turned(call, call.q.dtype), v, how)
    q, waves, neighbours = rotated
    if waves is not None:
        how |= {"key_cos": waves[0], "key_sin": waves[1], "neighbours": neighbours}
    return _launch(call, q, call.k, v, how)


def _by_regimes(call: Call) -> tuple[Tensor, Tensor]:
    """Near and far keys each by themselves, as far apart as their bounds say, merged.

    Far scores that are turned about what near keys offer, score + c · (score − near), are scores sharpened by 1 + c and
    shifted by one number a row, which moves the row's log-sum-exp and nothing else.
    """
    band, v = call.scheme.band(), values(call, call.v.dtype)
    assert band is not None
    found: list[Tensor] = []
    for view in views(call, call.q.dtype):
        least, most = view.regime.distances()
        sharpness, shift = _sharpness(call), None
        if view.regime.contrast is not None and found:
            strength = view.regime.contrast(call.index, call.length).float().expand(-1, call.queries.count)
            sharpness = (1 + strength if sharpness is None else sharpness * (1 + strength)).contiguous()
            shift = strength[:, None] * torch.where(found[1] > -torch.inf, found[1], 0.0)
        how = _limits(min(band.behind, most + 1), min(band.ahead, -least)) | _biases(call) | {"sharpen": sharpness}
        out, lse = _launch(call, view.q, view.k, v, how)
        found += [out, lse if shift is None else lse - shift]
    return merge(*found)


def _launch(call: Call, q: Tensor, k: Tensor, v: Tensor, how: dict[str, Any]) -> tuple[Tensor, Tensor]:
    # Loaded here, because it needs triton.
    from milepost.backends.triton.decode import decode
    from milepost.backends.triton.flash import flash

    assert call.layout is not None
    kernel = decode if _few(call) else flash
    return kernel(q, k, v, scale=call.scheme.scale(call.q.shape[-1]), offset=call.layout.offset, **how)


def _few(call: Call) -> bool:
    """Whether keys are split over programs, because there are few queries."""
    return call.queries.count <= FEW and not call.needs_grad


def _limits(behind: float, ahead: float) -> dict[str, Any]:
    return {
        "behind": None if behind == math.inf else int(behind),
        "ahead": None if ahead == math.inf else int(ahead),
    }


def _sharpness(call: Call) -> Tensor | None:
    """What each query's scores are multiplied by, [b|1 t], or None."""
    sharpness = call.scheme.sharpen(call.index, call.length) if call.scheme.answering("sharpen") else None
    return None if sharpness is None else sharpness.float().expand(-1, call.queries.count).contiguous()


def _regimes_unread(call: Call, band: Band) -> str | None:
    """Why the kernel cannot tell near keys from far ones as the scheme does."""
    for part in call.scheme.answering("place"):
        if any(not bound.by_distance for regime in call.scheme.place() for bound in regime.bounds):
            return f"{spell(part)} tells regions by more than the distance, which these kernels do not do yet"
        if band.sinks and band.behind < math.inf:
            return f"{spell(part)} beside a window with sinks is not in these kernels yet"
        if any(part not in call.scheme.answering("cap") for part in call.scheme.answering("bend")):
            return f"{spell(part)} moves tokens, and the kernels bend scores by where they stood"
        if call.scheme.answering("bend") and any(regime.contrast for regime in call.scheme.place()):
            return f"{spell(part)} turns scores that were capped, which these kernels do not do"
    return None


def _unread(call: Call) -> str | None:
    """Why the kernel cannot bend scores as the parts do together: one soft cap, before all biases or after them."""
    parts, capping = call.scheme.answering("bend"), call.scheme.answering("cap")
    caps = [number for number, part in enumerate(parts) if any(part is each for each in capping)]
    if len(caps) > 1 or (caps and caps[0] not in (0, len(parts) - 1)):
        return f"{spell(parts[caps[-1]])} caps between other parts that bend, and the kernels cap first or last"
    if len(call.scheme.answering("slopes")) > 1:
        return "two parts have slopes, and the kernels take one"
    return None


@dataclass(frozen=True)
class Line:
    """A bias by distance: rows [h n] for the distances first … first + n − 1, constant past both ends."""

    rows: Tensor
    first: int

    def over(self, first: int, last: int) -> Tensor:
        """The same over another range of distances."""
        at = torch.arange(first, last + 1, device=self.rows.device) - self.first
        return self.rows[:, at.clamp(0, self.rows.shape[1] - 1)]

    def __add__(self, other: Line) -> Line:
        first = min(self.first, other.first)
        last = max(line.first + line.rows.shape[1] - 1 for line in (self, other))
        return Line(self.over(first, last) + other.over(first, last), first)


def _biases(call: Call) -> dict[str, Any]:
    """What bends scores, as the kernel takes it."""
    found: dict[str, Any] = {}
    lines: list[Line] = []
    parts: tuple[Any, ...] = call.scheme.answering("bend")
    for number, part in enumerate(parts):
        if has_facet(part, "cap"):
            found |= {"cap": float(part.cap), "cap_first": number == 0 and len(parts) > 1}
        elif has_facet(part, "slopes"):
            behind, ahead, step = _slopes(call, part)
            found |= {"slopes": behind, "slopes_ahead": ahead}
            if step is not None:
                # What every key behind the query gains, and none at it or ahead.
                lines.append(Line(torch.stack((torch.zeros_like(step), step), 1), 0))
        else:
            lines.append(_line(call, part))
    if lines:
        line = functools.reduce(Line.__add__, lines)
        found |= {"table": line.rows.contiguous(), "first": line.first}
    return found


def _slopes(call: Call, part: HasSlopes) -> OnDevice:
    """The slopes behind and ahead, and the step, [h] in float32 on the device."""
    assert call.keys.first is not None
    length = call.keys.first + call.keys.count if getattr(part, "by_length", False) else None
    if call.given_length is not None and length is not None:
        return _on_device(part, call.given_length[0, 0], call.q.device)
    return (_on_device if isinstance(part, nn.Module) else _kept)(part, length, call.q.device)


def _on_device(part: HasSlopes, length: Tensor | int | None, device: torch.device) -> OnDevice:
    slopes = part.slopes(length)
    behind, ahead = (each.to(device, torch.float32).contiguous() for each in (slopes.behind, slopes.ahead))
    return behind, ahead, None if slopes.step is None else slopes.step.to(device, torch.float32)


# Slopes that nothing learns are moved to the device once.
_kept = kept(64)(_on_device)


def _line(call: Call, part: Any) -> Line:
    """A bias by distance over the distances that occur, as far as it varies."""
    layout, band = call.layout, call.scheme.band()
    assert layout is not None
    assert band is not None
    nearest, furthest = layout.offset - call.keys.count + 1, layout.offset + call.queries.count - 1
    behind, ahead = part.constant_past
    first = max(nearest, -band.ahead, -ahead)
    last = max(first, min(furthest, behind, math.inf if band.sinks else band.behind - 1))
    rows = part.by_distance(torch.arange(int(first), int(last) + 1, device=call.q.device)).float()
    return Line(rows.expand(call.q.shape[1], -1), int(first))


@functools.lru_cache(maxsize=16)
def _no_device(device: torch.device) -> str | None:
    """Why this machine cannot run the kernels."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install 'milepost[triton]'"
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if device.type != "cuda":
        return f"its kernels run on CUDA devices, and the tensors are on {device.type}"
    if torch.cuda.get_device_capability(device) < (9, 0):
        return "its kernels are written for compute capability 9.0 and later"
    return None
