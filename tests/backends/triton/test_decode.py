"""Few queries against many keys, split over programs, against dense float64."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

from tests.backends.triton.dense import DEVICE, GPU, Case, attention, drawn, off
from tests.backends.triton.test_rotary import rotated

pytest.importorskip("triton")

from milepost.backends.triton.attention.flash import UNLIMITED
from milepost.backends.triton.decoding import decode as decoding
from milepost.backends.triton.decoding.decode import Field, Turns, decode, decode_fields


def random_step(seed: int) -> Case:
    """A step of decoding, drawn at random."""
    pick = Random(seed)
    torch.manual_seed(seed)
    b, g = pick.choice([1, 2]), pick.choice([1, 2])
    h, t = g * pick.choice([1, 3, 8]), pick.choice([1, 1, 2, 7, 16])
    s = t + pick.choice([0, 1, 63, 130, 3000 if GPU else 300])
    d = pick.choice([64, 128, 40, 96] if GPU else [16, 24])
    dv = pick.choice([d, d, 48 if GPU else 20])
    options: dict[str, Any] = {
        "scale": d**-0.5,
        "behind": pick.choice([None, None, 7, 40, 129]),
        "ahead": pick.choice([0, 0, 0, None, 3]),
        "sinks": pick.choice([0, 2, 20]),
    }
    if pick.random() < 0.4:
        options["slopes"] = torch.rand(h, device=DEVICE) * 0.2
        if pick.random() < 0.5:
            options["slopes_ahead"] = torch.rand(h, device=DEVICE) * 0.2
    if pick.random() < 0.4:
        n = pick.choice([1, 9, 50])
        options.update(table=torch.randn(h, n, device=DEVICE), first=pick.choice([0, -(n // 2), 3]))
    if pick.random() < 0.25:
        options.update(cap=3.0, cap_first=pick.random() < 0.5)
    if pick.random() < 0.25:
        options["sharpen"] = torch.rand(b, t, device=DEVICE) + 0.5
    return Case(*drawn(b, h, g, t, s, d, dv, turned=pick.random() < 0.5), options)


def agree(case: Case, dtype: torch.dtype, **more: Any) -> None:
    """At most twice the error of dense torch in the same dtype."""
    rounded = case.to(dtype, torch.float32)
    offset = case.k.shape[2] - case.q.shape[2]
    wide = rounded.to(torch.float64, torch.float64)
    exact = attention(wide.q, wide.k, wide.v, offset=offset, **wide.options)
    dense = attention(rounded.q, rounded.k, rounded.v, offset=offset, **rounded.options)
    ours = decode(rounded.q.detach(), rounded.k.detach(), rounded.v.detach(), **rounded.options, **more)
    for mine, theirs, true in zip(ours, dense, exact, strict=True):
        assert off(mine, true) <= 2 * off(theirs, true) + 2e-6


@pytest.mark.parametrize("programs", [1, 528])
@pytest.mark.parametrize("seed", range(60 if GPU else 6))
def test_steps_agree_with_float64(seed: int, programs: int, monkeypatch: pytest.MonkeyPatch):
    # One program for all keys writes the answer itself; many leave parts to be joined.
    some = {name: each._replace(programs=programs) for name, each in decoding.SETTINGS.items()}
    monkeypatch.setattr(decoding, "SETTINGS", some)
    dtype = Random(seed).choice([torch.float32, torch.bfloat16, torch.float16]) if GPU else torch.float32
    agree(random_step(seed), dtype)


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("pairs", [16, 12, 5])
def test_raw_keys_are_rotated_as_they_are_read(pairs: int, neighbours: bool):
    torch.manual_seed(pairs)
    q, k, v = drawn(2, 4, 2, 3, 90, 32, 32)
    angle = torch.randn(1, 90, pairs, device=DEVICE, dtype=torch.float64)
    exact = attention(
        q.double(), rotated(k.double(), angle, neighbours), v.double(), scale=32**-0.5, offset=87, ahead=0
    )
    ours = decode(q, k, v, key_cos=angle.cos().float(), key_sin=angle.sin().float(), neighbours=neighbours)
    assert off(ours[0], exact[0]) < 1e-6
    assert off(ours[1], exact[1]) < 1e-6


def test_lengths_are_where_each_row_ends():
    torch.manual_seed(0)
    q, k, v = drawn(3, 2, 1, 2, 100, 16, 16)
    lengths = torch.tensor([100, 37, 2], device=DEVICE, dtype=torch.int32)
    out, lse = decode(q, k, v, lengths=lengths, behind=30, sinks=4)
    for row, length in enumerate(lengths.tolist()):
        alone = attention(
            q[row : row + 1].double(), k[row : row + 1, :, :length].double(), v[row : row + 1, :, :length].double(),
            scale=0.25, offset=length - 2, ahead=0, behind=30, sinks=4,
        )  # fmt: skip
        assert off(out[row : row + 1], alone[0]) < 1e-6
        assert off(lse[row : row + 1], alone[1]) < 1e-6


def test_a_query_that_sees_nothing_gives_zeros():
    q, k, v = drawn(1, 2, 2, 1, 50, 16, 16)
    out, lse = decode(q, k, v, offset=90, behind=10)
    assert not out.any()
    assert bool(lse.isneginf().all())


def test_errors_say_what_to_give():
    q, k, v = drawn(2, 2, 2, 1, 8, 16, 16)
    table = torch.rand(1, 4, 8, device=DEVICE)
    for options, says in (
        ({"key_cos": table}, "key_cos and key_sin come together; give both or neither"),
        ({"key_cos": table, "key_sin": table}, "key_cos is [1, 4, 8]; give [2 or 1, 8, width/2]"),
        ({"lengths": torch.tensor([8])}, "lengths is [1] in torch.int64; give [2] in torch.int32"),
        ({"lengths": torch.ones(2, dtype=torch.int32), "offset": 3}, "leave offset out"),
    ):
        with pytest.raises(ValueError) as error:
            decode(q, k, v, **options)
        assert says in str(error.value)


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("pairs", [16, 5])
def test_queries_are_rotated_as_they_are_read(pairs: int, neighbours: bool):
    torch.manual_seed(pairs)
    q, k, v = drawn(2, 4, 2, 3, 90, 32, 32)
    angle = torch.randn(1, 3, pairs, device=DEVICE, dtype=torch.float64)
    exact = attention(
        rotated(q.double(), angle, neighbours), k.double(), v.double(), scale=32**-0.5, offset=87, ahead=0
    )
    ours = decode(q, k, v, query_cos=angle.cos().float(), query_sin=angle.sin().float(), neighbours=neighbours)
    assert off(ours[0], exact[0]) < 1e-6
    assert off(ours[1], exact[1]) < 1e-6


@pytest.mark.sample(8)
@pytest.mark.parametrize(("programs", "little"), [(1, 0), (8, 1 << 25), (40, 0), (528, 1 << 25)])
@pytest.mark.parametrize(
    ("t", "s", "near", "strong"),
    [(1, 400, 20, True), (3, 200, 64, False), (16, 130, 1, True), (2, 70, 500, False), (2, 70, 500, True)],
)
def test_near_and_far_keys_are_joined_at_once(
    t: int, s: int, near: int, strong: bool, programs: int, little: int, monkeypatch: pytest.MonkeyPatch
):
    # A block of near keys for each program, or as many keys as there are far ones.
    monkeypatch.setattr(decoding, "LITTLE", little)
    some = {name: each._replace(programs=programs) for name, each in decoding.SETTINGS.items()}
    monkeypatch.setattr(decoding, "SETTINGS", some)
    torch.manual_seed(s)
    q, k, v = drawn(2, 4, 2, t, s, 32, 24)
    at = lambda n: torch.randn(1, n, 16, device=DEVICE, dtype=torch.float64)  # noqa: E731
    beside, keys, apart = at(t), at(s), at(t)
    strength = torch.rand(1, t, device=DEVICE) if strong else None
    fields = (
        Field(Turns(*waves(beside), *waves(keys)), near, 0),
        Field(Turns(*waves(apart)), UNLIMITED, -near),
    )

    raw = k.double().repeat_interleave(2, 1)
    one = rotated(q.double(), beside, False) @ rotated(raw, keys, False).mT * 0.2
    two = rotated(q.double(), apart, False) @ raw.mT * 0.2
    distance = torch.arange(s - t, s, device=DEVICE)[:, None] - torch.arange(s, device=DEVICE)
    close, further = (distance >= 0) & (distance < near), distance >= near
    if strength is not None:
        offered = one.masked_fill(~close, -torch.inf).logsumexp(-1, keepdim=True)
        two = two + strength.double()[:, None, :, None] * (two - offered)
    scores = torch.where(close, one, torch.where(further, two, -torch.inf))
    exact = scores.softmax(-1) @ v.double().repeat_interleave(2, 1), scores.logsumexp(-1)
    if strength is not None:
        # The kernel is given queries that are longer by 1 + strength, as its caller has them.
        longer = tuple(each * (1 + strength[..., None]) for each in waves(apart))
        fields = fields[0], Field(Turns(*longer), UNLIMITED, -near)
    ours = decode_fields(q, k, v, *fields, scale=0.2, offset=s - t, strength=strength)
    assert off(ours[0], exact[0]) < 2e-6
    assert off(ours[1], exact[1]) < 2e-6


def waves(angle: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return angle.cos().float(), angle.sin().float()


@pytest.mark.parametrize(
    ("near", "far", "first", "second"),
    # A window of 512 in 8,192 keys: a block each. Half of them near; nearly all; and far fewer than there are programs.
    [(544, 7681, 17, 49), (4128, 4097, 44, 22), (8192, 1, 65, 1), (64, 65, 2, 3)],
)
def test_near_keys_leave_room_for_far_ones(near: int, far: int, first: int, second: int):
    shape = decoding._Shape(16, 32, 1, 66, 2, 3)
    assert shape.near_and_far(near, far, 0, little=True) == (first, second)
    for own in (0, 1):
        some = shape.near_and_far(near, far, own, little=False)
        assert min(some) >= 1
        assert sum(some) + own <= 128
