"""Queries and keys rotated in one launch, against the formula in float64."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.backends.rotary import by_table as turning
from tests.backends.triton.dense import DEVICE, GPU, off

pytest.importorskip("triton")

from milepost.backends.triton.rotary import rotate as rotary
from milepost.backends.triton.rotary.rotate import rotate_qk, rotate_qk_at, turns_of

TURN = Fraction("6.283185307179586476925286766559005768394338798750211641949889")


def rotated(x: Tensor, angle: Tensor, neighbours: bool) -> Tensor:
    """(x, y) ← (x cos − y sin, x sin + y cos) for each pair of channels; the rest is kept."""
    pairs = angle.shape[-1]
    out = x.clone()
    for pair in range(pairs):
        one, two = (2 * pair, 2 * pair + 1) if neighbours else (pair, pair + pairs)
        cos, sin = angle[:, None, :, pair].cos(), angle[:, None, :, pair].sin()
        out[..., one] = x[..., one] * cos - x[..., two] * sin
        out[..., two] = x[..., one] * sin + x[..., two] * cos
    return out


@pytest.mark.parametrize("seed", range(40 if GPU else 20))
def test_rotation_agrees_with_float64(seed: int):
    pick = Random(seed)
    torch.manual_seed(seed)
    dtype = pick.choice([torch.float32, torch.bfloat16, torch.float16]) if GPU else torch.float32
    b, h, g = pick.choice([1, 2]), pick.choice([1, 3, 8, 12]), pick.choice([1, 2, 3])
    t, d = pick.choice([1, 5, 33, 1000] if GPU else [1, 5, 33]), pick.choice([16, 20, 64, 128] if GPU else [8, 16, 20])
    pairs, neighbours, same = pick.choice([d // 2, d // 2, d // 4, 3]), pick.random() < 0.5, pick.random() < 0.5
    s = t if same else pick.choice([1, 7, 40])
    q, k = (torch.randn(b, n, heads, d, device=DEVICE).to(dtype).transpose(1, 2) for n, heads in ((t, h), (s, g)))
    if pick.random() < 0.5:
        q, k = q.contiguous(), k.contiguous()
    q.requires_grad_()
    k.requires_grad_()
    angle = torch.randn(pick.choice([1, b]), t, pairs, device=DEVICE, dtype=torch.float64)
    key_angle = angle if same else torch.randn(1, s, pairs, device=DEVICE, dtype=torch.float64)
    tables = [f(a).float() for a in ((angle,) if same else (angle, key_angle)) for f in (torch.cos, torch.sin)]
    got = rotate_qk(q, k, *tables, neighbours=neighbours)
    wide = q.detach().double().requires_grad_(), k.detach().double().requires_grad_()
    exact = rotated(wide[0], angle, neighbours), rotated(wide[1], key_angle, neighbours)
    grads = torch.randn_like(got[0]), torch.randn_like(got[1])
    ours = torch.autograd.grad(got, (q, k), grads)
    true = torch.autograd.grad(exact, wide, [each.double() for each in grads])
    # One rounding to the input's dtype, half a unit in the last place at most.
    bound = 2e-7 if dtype == torch.float32 else torch.finfo(dtype).eps / 2
    assert all(each.dtype == dtype for each in (*got, *ours))
    for mine, theirs in zip((*got, *ours), (*exact, *true), strict=True):
        assert off(mine, theirs) < bound


@pytest.mark.parametrize("first", [0, 10_000_000, -3, 2**40])
@pytest.mark.parametrize(("pairs", "neighbours"), [(8, False), (8, True), (3, False)])
def test_angles_made_from_positions_are_exact(first: int, pairs: int, neighbours: bool):
    made = torch.Generator().manual_seed(3)
    b, h, g, t, s, d = 2, 3, 1, 5, 9, 16
    q, k = (torch.randn(b, heads, n, d, generator=made) for heads, n in ((h, t), (g, s)))
    frequencies = 10000.0 ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
    position = first + torch.randint(0, 50, (b, t), generator=made)
    key_position = first + torch.arange(s)[None]
    # The share of a full turn by whole numbers, since p · f in float64 has lost its last digits at 2⁴⁰.
    exact_of = [Fraction(f) for f in frequencies.tolist()]

    def angle(p: Tensor) -> Tensor:
        rows = [[[float(n * f % TURN) for f in exact_of] for n in row] for row in p.tolist()]
        return torch.tensor(rows, dtype=torch.float64)

    x, y = (each.double().requires_grad_() for each in (q, k))
    longer = torch.cat((torch.full((2 * pairs,), 1.25), torch.ones(d - 2 * pairs)))
    exact = [
        rotated(each, angle(p), neighbours) * longer for each, p in ((x, position), (y, key_position.expand(b, -1)))
    ]
    ours = [each.to(DEVICE).requires_grad_() for each in (q, k)]
    at = [each.to(DEVICE) for each in (turns_of(frequencies), position, key_position)]
    got = rotate_qk_at(*ours, *at, size=1.25, neighbours=neighbours)
    grads = [torch.randn(each.shape, generator=made) for each in exact]
    true = torch.autograd.grad(exact, (x, y), [each.double() for each in grads])
    found = torch.autograd.grad(got, ours, [each.to(DEVICE) for each in grads])
    # Past 2³² a frequency's own rounding, of 53 bits, is larger than that of float32.
    bound = 4e-7 if first < 2**32 else 4e-4
    for mine, theirs in zip((*got, *found), (*exact, *true), strict=True):
        assert off(mine.cpu(), theirs) < bound


def test_queries_and_keys_of_the_same_tokens_share_their_angles():
    q, k = torch.randn(1, 2, 4, 8, device=DEVICE), torch.randn(1, 1, 4, 8, device=DEVICE)
    turns = turns_of(torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64)).to(DEVICE)
    position = torch.tensor([[7, 0, 3, 10**7]], device=DEVICE)
    for ours, apart in zip(
        rotate_qk_at(q, k, turns, position), rotate_qk_at(q, k, turns, position, position.clone()), strict=True
    ):
        torch.testing.assert_close(ours, apart, rtol=0, atol=0)


def test_torch_checks_the_operator():
    q, k = torch.randn(1, 2, 4, 8, device=DEVICE), torch.randn(1, 1, 4, 8, device=DEVICE)
    turns, position = turns_of(torch.ones(4, dtype=torch.float64)).to(DEVICE), torch.arange(4, device=DEVICE)[None]
    given = (q, k, position, turns, None, None, 1.0, False, False)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.milepost.rotate_qk.default, given, test_utils=checks)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"documents": [0, 0, 0, 1, 1, 1, 1]},
        {"documents": [-1, -1, 0, 0, 0, 0, 0]},
        {"position": [5, 6, 7, 2, 3, 0, 10**6]},
    ],
    ids=["in order", "packed", "padded", "anywhere"],
)
@pytest.mark.parametrize("dim", [8, 4])
def test_attention_turns_by_positions(options: dict[str, list[int]], dim: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(turning, "_ready", lambda device: True)
    monkeypatch.setattr(turning, "LARGEST", 0)
    rope = mp.Rope(dim, stretch=mp.Yarn(4, 32))
    scheme = mp.Scheme(rope if dim == 8 else mp.Partial(rope, of=8), mp.causal)
    q, k, v = (torch.randn(1, heads, 7, 8, device=DEVICE) for heads in (2, 1, 1))
    given = {name: torch.tensor(each, device=DEVICE) for name, each in options.items()}
    launched: list[int] = []
    monkeypatch.setattr(rotary, "_demand_turns", counted(rotary._demand_turns, launched))
    monkeypatch.setattr(rotary, "operator", lambda name, body, given: body)
    ours = mp.attend(q, k, v, scheme, backend="sdpa", **given)
    assert launched
    exact = mp.attend(*(each.double() for each in (q, k, v)), scheme, backend="reference", **given)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


def test_a_size_of_ones_own_is_read_wherever_tokens_stand(monkeypatch: pytest.MonkeyPatch):
    class Longer(mp.Rope):
        def magnitude(self, length: Tensor) -> float:
            return 1.5

    monkeypatch.setattr(turning, "_ready", lambda device: True)
    q, k, v = (torch.randn(1, 1, 9, 8, device=DEVICE) for _ in range(3))
    scheme, position = mp.Scheme(Longer(8), mp.causal), torch.arange(9, device=DEVICE)[None]
    ours, exact = (mp.attend(q, k, v, scheme, backend=name, position=position) for name in ("sdpa", "reference"))
    torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)


def test_keys_are_turned_where_there_are_no_queries():
    angle = torch.rand(1, 5, 4, device=DEVICE)
    none, k = torch.randn(1, 2, 0, 8, device=DEVICE), torch.randn(1, 2, 5, 8, device=DEVICE)
    empty = angle[:, :0]
    alone = rotate_qk(none, k, empty.cos(), empty.sin(), angle.cos(), angle.sin())[1]
    torch.testing.assert_close(alone, rotate_qk(k, k, angle.cos(), angle.sin())[0])
    torch.testing.assert_close(alone, rotate_qk(k, none, angle.cos(), angle.sin(), empty.cos(), empty.sin())[0])


@pytest.mark.parametrize("by_positions", [False, True])
def test_a_gradient_of_the_gradient_is_a_rotation_too(by_positions: bool):
    torch.manual_seed(2)
    q, k, w = (torch.randn(1, 1, 4, 8, device=DEVICE).requires_grad_() for _ in range(3))
    frequencies, position = torch.tensor([1.0, 0.3, 0.1, 0.01], dtype=torch.float64), torch.arange(4)[None]
    angle = (position[..., None] * frequencies).to(DEVICE)

    def turn() -> Tensor:
        if by_positions:
            return rotate_qk_at(q, k, turns_of(frequencies).to(DEVICE), position.to(DEVICE))[0]
        return rotate_qk(q, k, angle.cos().float(), angle.sin().float())[0]

    found = []
    for turned in (turn(), rotated(q.double(), angle, False)):
        (first,) = torch.autograd.grad((turned.sin() * w).sum(), q, create_graph=True)
        found.append(torch.autograd.grad((first**2).sum(), (q, w)))
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), exact.double(), rtol=1e-4, atol=1e-4)


def counted(function: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    return lambda *args: calls.append(1) or function(*args)


def test_errors_say_what_to_give():
    q, table = torch.randn(1, 2, 8, 16, device=DEVICE), torch.rand(1, 8, 8, device=DEVICE)
    for arguments, says in (
        ((q, q, table[:, :4], table[:, :4]), "give both as [1 or 1, 8, width/2]"),
        ((q, q, table.double(), table.double()), "give torch.float32"),
        ((q, q, table, table, table), "key_cos and key_sin come together; give both or neither"),
        ((q[..., :8], q[..., :8], table, table), "q has 8 channels, too few for 8 pairs"),
    ):
        with pytest.raises(ValueError) as error:
            rotate_qk(*arguments)
        assert says in str(error.value)
