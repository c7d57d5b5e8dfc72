"""Queries and keys rotated by cosines and sines that are kept; on a GPU both in one launch of our own kernel.

There, tokens that do not count up by one are rotated by angles that the kernel makes of their positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from milepost.backends.has_triton import no_triton
from milepost.call.call import Call
from milepost.call.tokens import FEW
from milepost.memory.fixed import is_fixed
from milepost.memory.internals import transformed
from milepost.memory.surroundings import has_numbers
from milepost.memory.table import by_value, kept
from milepost.numerics.rotation import rotate
from milepost.seams.verbs import same

WHOLE = (torch.int64, torch.int32)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""What the kernel takes."""
LARGEST = 1 << 22
"""Numbers of a table that is kept; a longer one takes less time to make than to read attention's keys."""
ROOM = 1024
"""Tokens that the tables of a growing cache grow by."""
Waves = tuple[Tensor, Tensor]


def rotated(call: Call, dtype: torch.dtype, number: int = 0, contrasted: bool = False) -> tuple[Tensor, Tensor] | None:
    """Return queries and keys rotated by their positions in a regime; keys that stay at 0 are returned as they are.

    contrasted: queries come times 1 + the strength of the regime's contrast, where it is known from the layout. None
    where the parts' own verbs have to do it.
    """
    part = _rotation(call)
    if part is None:
        return None
    both = _counted(call, part, dtype, number, contrasted=contrasted)
    by_kernel = dtype in DTYPES and not call.keys_turned and _ready(call.q.device)
    q, k = (each if each.dtype is dtype else each.to(dtype) for each in (call.q, call.k))
    if both is None and by_kernel and not contrasted:
        found = None if _unturned(call, part, number) else _rotated_at(call, part, q, k, number)
        if found is not None:
            return found
        both = _given(call, part, number)
    if both is None:
        return None
    (cos, sin), keys = both
    if call.keys_turned or (by_kernel and has_numbers() and _unturned(call, part, number)):
        return _turned_queries(q, (cos, sin), part), k
    if by_kernel:
        # Loaded here, because it needs triton.
        from milepost.backends.triton.rotary.rotate import rotate_qk

        return rotate_qk(q, k, cos, sin, *(keys or (None, None)), neighbours=part.pairs == "neighbours")
    return _turn(q, (cos, sin), part), _turn(k, keys or (cos, sin), part)


def _rotated_at(call: Call, part: Any, q: Tensor, k: Tensor, number: int) -> tuple[Tensor, Tensor] | None:
    """Return q and k rotated where the tokens stand in the regime of that number, by our own kernel.

    None where an angle is not the position times a number, or positions are not whole.
    """
    turns = _turns(part, q.device) if hasattr(part, "steps") and is_fixed(part) else None
    regime = call.scheme.place()[number]
    keys = call.key_position
    p, r = regime.query(keys if call.over_itself else call.position), regime.key(keys)
    if turns is None or p.dtype not in WHOLE or r.dtype not in WHOLE or p.dim() != 2 or r.dim() != 2:
        return None
    if part.beyond(p, None) is not None:
        return None
    # Loaded here, because it needs triton.
    from milepost.backends.triton.rotary.rotate import rotate_qk_at

    by_twos = part.pairs == "neighbours"
    return rotate_qk_at(q, k, turns[0], p, None if p is r else r, size=turns[1], neighbours=by_twos)


@kept(16)
def _turns(part: Any, device: torch.device) -> tuple[Tensor, float] | None:
    """Return the turns of one step, and how long they make a pair."""
    steps = part.steps(device)
    if steps is None:
        return None
    # Loaded here, because it needs triton.
    from milepost.backends.triton.rotary.rotate import turns_of

    return turns_of(steps[0]), steps[1]


def _turned_queries(q: Tensor, waves: Waves, part: Any) -> Tensor:
    """Return queries alone, by the kernel where it can run."""
    if q.dtype not in DTYPES or not has_numbers() or not _ready(q.device):
        return _turn(q, waves, part)
    # Loaded here, because it needs triton.
    from milepost.backends.triton.rotary.rotate import rotate_queries

    return rotate_queries(q, *waves, neighbours=part.pairs == "neighbours")


def angles(call: Call, number: int = 0) -> tuple[Waves, Waves | None, bool] | None:
    """Return cosines and sines [1 t width/2] of the queries in a regime, those [1 ≥ s width/2] of keys that
    are still to be rotated, and whether pairs neighbour.

    For a kernel that rotates as it reads. None where these are not known from the layout.
    """
    part = _rotation(call)
    both = None if part is None else _counted(call, part, call.q.dtype, number, ROOM)
    if part is None or both is None:
        return None
    queries, keys = both
    if keys is not None and _unturned(call, part, number):
        keys = None
    return queries, keys, part.pairs == "neighbours"


def steps_turned(call: Call) -> Callable[[Tensor, int], Tensor | None] | None:
    """Return what turns the queries of such steps, given the index of the first, where keys are turned already.

    None where that does not follow from the parts.
    """
    if not call.scheme.answering("turn"):
        return lambda q, first: q
    waves = steps_angles(call) if call.keys_turned else None
    part = _rotation(call)
    if waves is None or part is None:
        return None

    if call.q.dtype in DTYPES and _ready(call.q.device):
        # Loaded here, because it needs triton.
        from milepost.backends.triton.rotary.rotate import QueryRotation

        return QueryRotation(lambda first: waves(first, 0, 0), part.pairs == "neighbours")

    def turn(q: Tensor, first: int) -> Tensor | None:
        found = waves(first, 0, 0)
        return None if found is None else _turn(q, found[0], part)

    return turn


Angles = Callable[[int, int, int], "tuple[Waves, Waves | None] | None"]


def steps_angles(call: Call, number: int = 0, contrasted: bool = False) -> Angles | None:
    """`angles` of steps like this one, by the index of the first query, that of the first key, and how many keys.

    contrasted: as for `rotated`. None where that does not follow from the parts.
    """
    part, place = _rotation(call), _place(call)
    if part is None or not is_fixed((part, place)) or _by_text(part) or call.queries.count > FEW:
        return None
    t, device, exact = call.queries.count, call.q.device, torch.promote_types(call.q.dtype, torch.float32)
    raw = call.keys_turned or _unturned(call, part, number)

    def at(first: int, key_first: int, s: int) -> tuple[Waves, Waves | None] | None:
        if s * part.width > 2 * LARGEST:
            return None
        if contrasted:
            length = key_first + s
            queries = _along(part, place, number, length, exact, "contrasted", first, t, device)
        else:
            queries = _of_few(part, place, number, None, exact, first, t, device)
        if queries is None or raw:
            return None if queries is None else (queries, None)
        keys = _along(part, place, number, None, exact, "key", key_first, -(-s // ROOM) * ROOM, device)
        return None if keys is None else (queries, keys)

    return at


def _rotation(call: Call) -> Any | None:
    """Return the one part that turns queries and keys, where cosines and sines say all that it does."""
    parts: tuple[Any, ...] = call.scheme.answering("turn")
    if len(parts) != 1 or not call.scheme.answering("cos_sin") or torch.compiler.is_compiling() or transformed():
        return None
    # The verb refuses a width that does not fit.
    return parts[0] if parts[0].blocks == 1 and parts[0].head_dim == call.q.shape[-1] else None


def _place(call: Call) -> Any | None:
    """Return the part that moves tokens, or None."""
    return next(iter(call.scheme.answering("place")), None)


def _by_text(part: Any) -> bool:
    """Return whether the angle of a token follows from its whole text, not from its position alone."""
    return getattr(part, "by_length", False) or getattr(part, "centred", False)


def _turn(x: Tensor, waves: Waves, part: Any) -> Tensor:
    """Rotate the first channels of x [b h n d]."""
    cos, sin = (each[:, None] for each in waves)
    if x.shape[-1] == part.width:
        return rotate(x, cos, sin, pairs=part.pairs)
    return torch.cat((rotate(x[..., : part.width], cos, sin, pairs=part.pairs), x[..., part.width :]), -1)


def _counted(
    call: Call, part: Any, dtype: torch.dtype, number: int = 0, room: int = 0, contrasted: bool = False
) -> tuple[Waves, Waves | None] | None:
    """Return cosines and sines of tokens that count up by one, [1 n width/2], for queries and, where unlike, keys.

    room: keys get a multiple of so many tokens, so that a table serves many steps; 0 for as many as there are.
    """
    layout, place = call.layout, _place(call)
    by_length = getattr(part, "by_length", False)
    if layout is None or not call.at_index or getattr(part, "centred", False) or not is_fixed((part, place)):
        return None
    if by_length and call.given_length is not None:
        return None
    t, s = call.queries.count, call.keys.count
    if max(t, s) * part.width > 2 * LARGEST:
        return None
    length = layout.key_first + s if by_length or contrasted else None
    exact = torch.promote_types(dtype, torch.float32)
    where = (part, place, number, length, exact)
    queries = _of_few(*where, layout.first, t, call.q.device) if t <= FEW and t < s and length is None else None
    if queries is None:
        queries = _along(*where, "contrasted" if contrasted else "query", layout.first, t, call.q.device)
    # Queries that are the keys' own tokens share their angles.
    alike = layout.offset == 0 and t == s and not room and (place is None or _stay(place, number))
    if queries is None or call.keys_turned or alike:
        return None if queries is None else (queries, None)
    count = s if not room else -(-s // room) * room
    keys = _along(*where, "key", layout.key_first, count, call.q.device)
    return None if keys is None else (queries, keys)


@kept(64)
def _of_few(
    part: Any, place: Any | None, number: int, length: int | None, dtype: torch.dtype, first: int, count: int,
    device: torch.device,
) -> Waves | None:  # fmt: skip
    """Return those of a few queries, out of a table that serves many steps."""
    start = first // ROOM * ROOM
    waves = _along(part, place, number, length, dtype, "query", start, ROOM + FEW, device)
    if waves is None:
        return None
    return waves[0].narrow(1, first - start, count), waves[1].narrow(1, first - start, count)


@kept(16)
def _along(
    part: Any, place: Any | None, number: int, length: int | None, dtype: torch.dtype,
    side: Literal["query", "key", "contrasted"], first: int, count: int, device: torch.device,
) -> Waves | None:  # fmt: skip
    index = position = torch.arange(first, first + count, device=device)[None]
    if place is not None:
        regime = place.place()[number]
        position = regime.key(index) if side == "key" else regime.query(index)
    # A contrast makes whole queries longer, which cosines and sines of some channels do not say.
    if part.beyond(position, length) is not None or (side == "contrasted" and part.width < part.head_dim):
        return None
    cos, sin = _waves(part.cos_sin(position, length, "key" if side == "key" else "query", dtype))
    if side != "contrasted":
        return cos, sin
    assert place is not None
    assert length is not None
    more = (1 + place.place()[number].contrast(index, torch.full((1, 1), length, device=device)))[..., None]
    return (cos * more).to(dtype), (sin * more).to(dtype)


@by_value(64)
def _stay(place: Any, number: int) -> bool:
    """True if the regime of that number leaves tokens where they are."""
    regime = place.place()[number]
    return regime.query is same and regime.key is same


def _picked(
    index: Tensor, part: Any, place: Any | None, number: int, count: int, side: Literal["query", "key"]
) -> Waves | None:
    """Return cosines and sines of tokens with these indices, all below the count, [b|1 n width/2]."""
    waves = _along(part, place, number, None, torch.float32, side, 0, count, index.device)
    return None if waves is None else (waves[0][0, index], waves[1][0, index])


def _unturned(call: Call, part: Any, number: int) -> bool:
    """True if all keys of that regime stand at 0, and are left as they are there."""
    place = _place(call)
    return place is not None and is_fixed((part, place)) and _at_zero(place, number) and _still(part)


@by_value(64)
def _at_zero(place: Any, number: int) -> bool:
    return place.place()[number].key is torch.zeros_like


@by_value(64)
def _still(part: Any) -> bool:
    """True if a token at 0 is not even made longer."""
    if _by_text(part):
        return False
    cos, sin = part.cos_sin(torch.zeros(1, 1, dtype=torch.int64), None, "key", torch.float64)
    return bool((cos == 1).all()) and not bool(sin.any())


def _given(call: Call, part: Any, number: int) -> tuple[Waves, Waves | None] | None:
    """Return the same of tokens that stand anywhere."""
    place = _place(call)
    if call.at_index and not call.index_given and not _by_text(part) and is_fixed((part, place)):
        # Documents: every index is below the number of keys.
        where = (part, place, number, call.keys.count)
        queries = _picked(call.key_index if call.over_itself else call.index, *where, "query")
        shared = call.over_itself and (place is None or _stay(place, number))
        return None if queries is None else (queries, None if shared else _picked(call.key_index, *where, "key"))
    regime = call.scheme.place()[number]
    p, r = regime.query(call.position), regime.key(call.key_position)
    if part.beyond(p, call.length) is not None:
        return None
    queries = _waves(part.cos_sin(p, call.length, "query"))
    if queries[0].requires_grad:
        return None
    return queries, None if p is r else _waves(part.cos_sin(r, call.key_length, "key"))


def _waves(waves: Waves) -> Waves:
    """Return cosines and sines as [b|1 n width/2]."""
    cos, sin = (each if each.dim() == 3 else each[None] for each in waves)
    return cos, sin


@functools.lru_cache(maxsize=16)
def _ready(device: torch.device) -> bool:
    """Return whether the kernel can run there: on NVIDIA's GPUs that Triton supports. Others rotate by plain torch."""
    if device.type != "cuda" or torch.version.hip is not None or no_triton() is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


# Several rotations at once: of near keys, and of far ones

Ways = tuple[tuple[Waves, Waves], tuple[Waves, Waves | None], bool]


def near_and_far_waves(call: Call, near: int, far: int, contrasted: bool) -> Ways | None:
    """Return those of queries and of keys, each in the regimes of these numbers, and whether pairs neighbour.

    None for far keys that stay as they are. contrasted: as for `rotated`. None for all where our kernel cannot do it.
    """
    part = _rotation(call)
    if part is None or call.keys_turned or call.q.dtype not in DTYPES or not _ready(call.q.device):
        return None
    beside = _counted(call, part, call.q.dtype, near)
    apart = _counted(call, part, call.q.dtype, far, contrasted=contrasted)
    if beside is None or apart is None:
        return None
    keys, far_keys = beside[1] or beside[0], None if _unturned(call, part, far) else apart[1] or apart[0]
    return (beside[0], apart[0]), (keys, far_keys), part.pairs == "neighbours"


def waves_by_regime(call: Call, numbers: Iterable[int]) -> tuple[dict[int, Waves], Waves, bool] | None:
    """Return those of the queries in these regimes, those of the keys in any of them, as keys are alike in
    all, and whether pairs neighbour; [1 n width/2] in float32.

    None where no kernel can turn by them.
    """
    part = _rotation(call)
    if part is None or call.keys_turned or call.q.dtype not in DTYPES:
        return None
    found: dict[int, tuple[Waves, Waves]] = {}
    for number in numbers:
        both = _counted(call, part, call.q.dtype, number) or _given(call, part, number)
        if both is None or any(each.shape[0] > 1 or each.dtype != torch.float32 for each in both[0]):
            return None
        found[number] = both[0], both[1] or both[0]
    keys = next(iter(found.values()))[1]
    return {number: queries for number, (queries, _) in found.items()}, keys, part.pairs == "neighbours"
