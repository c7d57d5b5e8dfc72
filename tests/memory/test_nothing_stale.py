"""What is remembered between calls is never stale: what changes an answer changes the fingerprint, or is not kept."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.modules.module import register_module_forward_hook

import milepost as mp
from milepost.memory import internals
from milepost.memory.fixed import value_of
from milepost.memory.table import MEMORY
from tests.oracles import assert_same, inputs

SOURCE = Path(mp.__file__).parent
BACKENDS = ("sdpa", "chunked", "flex", None)


def exact(q: Tensor, k: Tensor, v: Tensor, angle: Callable[[Tensor], Tensor]) -> Tensor:
    """Causal attention with RoPE in float64; angle: of positions, [t d/2]."""
    at = angle(torch.arange(q.shape[2], dtype=torch.float64))

    def turned(x: Tensor) -> Tensor:
        a, b = x.double().chunk(2, -1)
        return torch.cat((a * at.cos() - b * at.sin(), b * at.cos() + a * at.sin()), -1)

    scores = turned(q) @ turned(k).mT / q.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v.double()


def frequencies(d: int = 8) -> Tensor:
    return 10000.0 ** (-2 * torch.arange(d // 2, dtype=torch.float64) / d)


class Divide:
    """A stretch of a user's own that can be written to."""

    def __init__(self, by: float) -> None:
        self.by = by

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        return f / self.by

    def magnitude(self, length: Tensor) -> float:
        return 1.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stretch_that_is_written_to_is_read_again(backend: str | None):
    """C5: an ordinary class inside one of our frozen ones."""
    stretch = Divide(2.0)
    scheme, (q, k, v) = mp.Scheme(mp.Rope(8, stretch=stretch), mp.causal), inputs(g=4, t=12)  # pyright: ignore
    for by in (2.0, 2.0, 8.0, 0.5):
        stretch.by = by
        want = exact(q, k, v, lambda p, by=by: p[:, None] * frequencies() / by)
        for _ in range(3):
            assert_same(mp.attend(q, k, v, scheme, backend=backend), want, 1e-10)


class Slowed(mp.Rope):
    """A subclass with a number that its equality does not see."""

    def __init__(self, dim: int, by: float) -> None:
        super().__init__(dim)
        object.__setattr__(self, "by", by)

    def angles(self, position: Tensor, length: Any = None) -> Tensor:
        return super().angles(position, length) / self.by  # pyright: ignore


@dataclass(frozen=True)
class SlowedField(mp.Rope):
    """The same as a field that is not compared."""

    by: float = field(default=1.0, compare=False, kw_only=True)

    def angles(self, position: Tensor, length: Any = None) -> Tensor:
        return super().angles(position, length) / self.by


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [lambda by: Slowed(8, by), lambda by: SlowedField(8, by=by)])
def test_equal_parts_that_differ_have_tables_of_their_own(make: Callable[[float], mp.Rope], backend: str | None):
    """C5: the second object got the first one's cosines."""
    q, k, v = inputs(g=4, t=12)
    for by in (1.0, 4.0, 16.0):
        want = exact(q, k, v, lambda p, by=by: p[:, None] * frequencies() / by)
        for _ in range(3):
            assert_same(mp.attend(q, k, v, mp.Scheme(make(by), mp.causal), backend=backend), want, 1e-10)


class Last:
    """A mask of a user's own that can be written to: the last n keys."""

    relative = is_causal = True

    def __init__(self, n: int) -> None:
        self.n = n

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (i - j < self.n)


def windowed(q: Tensor, k: Tensor, v: Tensor, n: int) -> Tensor:
    i = torch.arange(q.shape[2])
    seen = (i[None] <= i[:, None]) & (i[:, None] - i[None] < n)
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v.double()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_that_is_written_to_is_made_again(backend: str | None):
    """C6: FlexAttention's blocks were those of the first n."""
    part = Last(16)
    scheme, (q, k, v) = mp.Scheme(part, mp.causal), inputs(g=4, t=300)
    for part.n in (16, 200, 3):
        for _ in range(2):
            assert_same(mp.attend(q, k, v, scheme, backend=backend), windowed(q, k, v, part.n), 1e-10)


class Normal(Last):
    """The same, which also says its normal form."""

    def normal(self) -> Any:
        from milepost.seams.band import Band

        return Band(self.n, 0, 0, None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_normal_form_that_changes_is_read_again(backend: str | None):
    part = Normal(16)
    scheme, (q, k, v) = mp.Scheme(part), inputs(g=4, t=300)
    for part.n in (16, 200, 3):
        assert_same(mp.attend(q, k, v, scheme, backend=backend), windowed(q, k, v, part.n), 1e-10)


class Shifted:
    """A part that moves tokens, and can be written to."""

    relative = True

    def __init__(self, by: float) -> None:
        self.by = by

    def place(self) -> tuple[mp.Regime, ...]:
        by = self.by
        return (mp.Regime(query=lambda p: p * by, key=lambda r: r * by),)


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_a_placement_that_is_written_to_is_read_again(backend: str | None):
    part = Shifted(1.0)
    scheme, (q, k, v) = mp.Scheme(mp.Rope(8), part, mp.causal), inputs(g=4, t=12)
    for part.by in (1.0, 3.0, 0.25):
        want = exact(q, k, v, lambda p: p[:, None] * part.by * frequencies())
        for _ in range(2):
            assert_same(mp.attend(q, k, v, scheme, backend=backend), want, 1e-10)


@pytest.mark.parametrize("backend", ["sdpa", "chunked", "flex", "diagonals", "reference", None])
@pytest.mark.parametrize("warm", [0, 4])
def test_forward_mode_keeps_its_tangent(backend: str | None, warm: int):
    """C2: a call that was remembered lost the tangent, or had a wrong one."""
    scheme, (q, k, v) = mp.Scheme(mp.Alibi(2), mp.causal), inputs(h=2, g=2, t=10)
    tangent = torch.randn(q.shape, dtype=q.dtype, generator=torch.Generator().manual_seed(1))
    slopes = torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64)

    def oracle(q: Tensor) -> Tensor:
        i = torch.arange(10)
        far = (i[:, None] - i[None]).double()
        scores = q @ k.mT / q.shape[-1] ** 0.5 - slopes[:, None, None] * far
        return scores.masked_fill(far < 0, -torch.inf).softmax(-1) @ v

    _, want = torch.autograd.functional.jvp(oracle, q, tangent)
    for _ in range(warm):
        try:
            mp.attend(q, k, v, scheme, backend=backend)
        except mp.CannotRun:
            return
    try:
        _, found = torch.func.jvp(lambda q: mp.attend(q, k, v, scheme, backend=backend), (q,), (tangent,))
        with forward_ad.dual_level():
            out = mp.attend(forward_ad.make_dual(q, tangent), k, v, scheme, backend=backend)
            dual = forward_ad.unpack_dual(out).tangent
    except (mp.CannotRun, NotImplementedError):
        # Refused by name, ours or torch's.
        assert backend is not None
        return
    assert_same(found, want, 1e-10)
    assert dual is not None
    assert_same(dual, want, 1e-10)


def test_a_class_that_declares_itself_fixed_is_remembered_and_may_not_change():
    class Declared(Divide):
        fixed = True

    class Inherited(Declared):
        pass

    part = Declared(2.0)
    assert value_of(part) == value_of(Declared(2.0)) != value_of(Declared(3.0))
    assert value_of(Inherited(2.0)) is None
    assert value_of(Divide(2.0)) is None
    scheme, (q, k, v) = mp.Scheme(mp.Rope(8, stretch=part), mp.causal), inputs(t=6)  # pyright: ignore
    mp.attend(q, k, v, scheme)
    part.by = 3.0
    with pytest.raises(TypeError, match=r"Declared: the class declares itself fixed, and an object of it was changed"):
        mp.attend(q, k, v, scheme)
    part = Declared(2.0)
    part.notes = []  # pyright: ignore
    with pytest.raises(TypeError, match=r"Declared.notes: .* a list may change"):
        mp.attend(q, k, v, mp.Scheme(mp.Rope(8, stretch=part), mp.causal))  # pyright: ignore


def test_numbers_of_other_types_are_other_values():
    assert len({value_of(x) for x in (2, 2.0, True, 0.0, -0.0, False, 0, "2", (2,), (2.0,))}) == 10


def test_keys_are_turned_once_only_by_what_cannot_change():
    """A cache of keys turned by weights would be stale after the next step of an optimizer."""
    assert mp.Scheme(mp.Rope(8), mp.causal).turns_keys_once
    assert not mp.Scheme(mp.LearnedRope(8), mp.causal).turns_keys_once
    assert not mp.Scheme(mp.Rope(8, stretch=Divide(2.0)), mp.causal).turns_keys_once  # pyright: ignore


@pytest.mark.parametrize("name", internals.NAMES)
def test_without_a_private_name_of_torch_answers_are_right(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("milepost.memory.surroundings.PLAYS_ON", ("cpu",))
    owner, _, last = name.rpartition(".")
    words = owner.split(".")
    module: Any = importlib.import_module(words[0])
    for word in words[1:]:
        module = getattr(module, word)
    monkeypatch.delattr(module, last, raising=False)
    MEMORY.forget()
    scheme = mp.Scheme(mp.T5Bias(4, buckets=8, reach=6).double(), mp.causal)
    for seed in range(6):
        q, k, v = (each.requires_grad_() for each in inputs(h=4, g=2, t=9, seed=seed))
        # What every operation of torch needs, torch itself must have.
        found: list[tuple[Tensor, ...]] = []
        for backend in (None, "reference"):
            out = mp.attend(q, k, v, scheme, backend=backend)
            found.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v, *scheme.parameters()))))
        for ours, theirs in zip(*found, strict=True):
            assert_same(ours, theirs, 1e-10)


MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default device": lambda: torch.device("cpu"),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
}


def test_modes_switched_between_calls_change_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("milepost.memory.surroundings.PLAYS_ON", ("cpu",))
    scheme = mp.Scheme(mp.Kerple(4).double(), mp.causal)
    order = [*MODES, None] * 4
    for number, name in enumerate(order):
        q, k, v = inputs(h=4, g=2, t=9, seed=number)
        if name is None:
            found = mp.attend(q, k, v, scheme)
        else:
            with MODES[name]():
                found = mp.attend(q, k, v, scheme)
        assert_same(found.detach(), mp.attend(q, k, v, scheme, backend="reference").detach(), 1e-10)


def test_another_default_dtype_is_another_kind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("milepost.memory.surroundings.PLAYS_ON", ("cpu",))
    scheme, given = mp.Scheme(mp.Sandwich(4, 8), mp.causal), [each.float() for each in inputs(h=4, t=9)]
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            for _ in range(4):
                ours = mp.attend(*given, scheme)
                assert ours.dtype == torch.float32
                assert_same(ours, mp.attend(*given, scheme, backend="reference"), 1e-5)
    finally:
        torch.set_default_dtype(before)


def test_a_hook_on_every_module_is_heard(monkeypatch: pytest.MonkeyPatch):
    """A call that was written down before would leave it out."""
    monkeypatch.setattr("milepost.memory.surroundings.PLAYS_ON", ("cpu",))
    scheme, given = mp.Scheme(mp.TransformerXL(10, 4, 8).double(), mp.causal), inputs(h=4, g=4, t=9)
    for weight in scheme.parameters():
        torch.nn.init.normal_(weight)
    with torch.no_grad():
        for _ in range(4):
            mp.attend(*given, scheme)
        hook = register_module_forward_hook(lambda module, given, out: 3 * out)
        try:
            assert_same(mp.attend(*given, scheme), mp.attend(*given, scheme, backend="reference"))
        finally:
            hook.remove()
