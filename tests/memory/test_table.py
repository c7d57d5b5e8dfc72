"""What is kept between calls: cosines and sines, made once, and never where they do not belong."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import milepost as mp
from milepost.backends.rotary import by_table as rotated
from milepost.memory.table import kept
from milepost.seams.facets import facets_of
from tests.oracles import assert_same, inputs

SCHEME = mp.Scheme(mp.Rope(8), mp.causal)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many positions cosines were made for, each time."""
    counts: list[int] = []
    own = mp.Rope.cos_sin

    def counting(self: mp.Rope, position: torch.Tensor, *rest: object) -> object:
        counts.append(position.shape[-1])
        return own(self, position, *rest)  # pyright: ignore

    monkeypatch.setattr(mp.Rope, "cos_sin", counting)
    return counts


def test_a_training_loop_makes_its_cosines_once(made: list[int]):
    scheme = mp.Scheme(mp.Rope(8, theta=777.0), mp.causal)
    q, k, v = inputs(t=9)
    for _ in range(3):
        ours = mp.attend(q, k, v, scheme)
    assert made == [9]
    assert_same(ours, mp.attend(q, k, v, scheme, backend="reference"))


def test_every_layer_of_many_decoding_steps_shares_its_cosines(made: list[int]):
    scheme = mp.Scheme(mp.Rope(8, theta=778.0), mp.causal)
    q, k, v = inputs(t=20)
    cache = mp.Cache(scheme)
    cache.append(k[:, :, :9], v[:, :, :9])
    made.clear()
    for n in range(9, 20):
        cache.append(k[:, :, n : n + 1], v[:, :, n : n + 1])
        for _ in range(4):
            ours = mp.attend(q[:, :, n : n + 1], cache.keys, cache.values, scheme)
        exact = mp.attend(q[:, :, n : n + 1], k[:, :, : n + 1], v[:, :, : n + 1], scheme, backend="reference")
        assert_same(ours, exact)
    assert sum(each > 20 for each in made) == 1, "one table for all steps; keys are turned as they come"


@pytest.mark.parametrize("first", [1000, 1024, 2040, 5000])
def test_cosines_out_of_a_table_are_those_of_the_place(first: int):
    scheme = mp.Scheme(mp.Rope(8, theta=778.0), mp.Rerope(6), mp.causal)
    q, k, v = inputs(t=30)
    step = {"key_index": range(first, first + 30)}
    for t in (1, 5, 16):
        ours = mp.attend(q[:, :, -t:], k, v, scheme, **step)  # pyright: ignore
        assert_same(ours, mp.attend(q[:, :, -t:], k, v, scheme, **step, backend="reference"))  # pyright: ignore


def test_what_inference_mode_made_is_not_given_to_a_backward_pass():
    scheme = mp.Scheme(mp.Rope(8, theta=779.0), mp.causal)
    q, k, v = inputs(t=7)
    with torch.inference_mode():
        mp.attend(q, k, v, scheme)
    q.requires_grad_()
    mp.attend(q, k, v, scheme).sum().backward()
    assert q.grad is not None


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
def test_tensors_without_numbers_are_not_kept(backend: str):
    scheme = mp.Scheme(mp.Rope(8, theta=781.0), mp.causal & mp.window(4))
    shapes = (1, 2, 300, 8), (1, 2, 300, 8), (1, 2, 300, 8)
    for _ in range(2):
        with FakeTensorMode(), torch.no_grad():
            mp.attend(*(torch.ones(shape) for shape in shapes), scheme, backend=backend)
        with torch.no_grad():
            mp.attend(*(torch.ones(shape) for shape in shapes), scheme, backend=backend)


def test_what_depends_on_the_length_is_made_for_each_length():
    scheme = mp.Scheme(mp.Rope(8, stretch=mp.DynamicNtk(5)), mp.causal)
    for t in (4, 9, 12, 4):
        q, k, v = inputs(t=t)
        assert_same(mp.attend(q, k, v, scheme), mp.attend(q, k, v, scheme, backend="reference"))
        assert_same(mp.attend(q, k, v, scheme, length=20), mp.attend(q, k, v, scheme, length=20, backend="reference"))


def test_frequencies_that_are_learned_are_never_kept():
    scheme = mp.Scheme(mp.LearnedRope(8).double(), mp.causal)
    q, k, v = inputs(t=6)
    before = mp.attend(q, k, v, scheme)
    with torch.no_grad():
        for weight in scheme.parameters():
            weight.add_(0.3)
    after = mp.attend(q, k, v, scheme)
    assert not torch.equal(before, after)
    assert_same(after, mp.attend(q, k, v, scheme, backend="reference"))


def test_long_tables_are_not_kept(made: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rotated, "LARGEST", 8)
    scheme = mp.Scheme(mp.Rope(8, theta=780.0), mp.causal)
    q, k, v = inputs(t=9)
    mp.attend(q, k, v, scheme)
    made.clear()
    mp.attend(q, k, v, scheme)
    assert made


def test_a_verb_of_ones_own_is_not_answered_by_the_facet_it_inherits():
    class Backwards(mp.Rope):
        """Turns the other way."""

        def turn(self, x, position, side="query", length=None):  # pyright: ignore
            return super().turn(x, -position, side, length)

    class Slower(mp.Rope):
        """Other angles, which facet and verb share."""

        def angles(self, position, length=None):  # pyright: ignore
            return super().angles(position, length) / 2

    assert facets_of(Backwards(8)) == ()
    assert facets_of(Slower(8)) == ("cos_sin",)
    q, k, v = inputs(t=6)
    for part in (Backwards(8), Slower(8)):
        scheme = mp.Scheme(part, mp.causal)
        assert_same(mp.attend(q, k, v, scheme), mp.attend(q, k, v, scheme, backend="reference"))


def test_heads_of_another_width_are_refused():
    q, k, v = inputs(t=6, d=16)
    for backend in (None, "sdpa", "chunked"):
        with pytest.raises(ValueError, match=r"Rope\(head_dim=8\).*Partial"):
            mp.attend(q, k, v, SCHEME, backend=backend)


def test_the_oldest_is_forgotten():
    asked: list[int] = []

    @kept(2)
    def square(x: int, device: torch.device) -> int:
        asked.append(x)
        return x * x

    assert [square(x, torch.device("cpu")) for x in (1, 2, 1, 3, 2)] == [1, 4, 1, 9, 4]
    assert asked == [1, 2, 3, 2]


def test_what_is_written_to_unheard_is_read_anew():
    # As a collective does, too: the tensor's version stays, its numbers do not.
    numbers = numpy.array([0, 0, 1, 1, 1, 1])
    documents = torch.from_numpy(numbers)
    q, k, v = inputs(t=6)
    mp.attend(q, k, v, SCHEME, documents=documents)
    numbers[1] = 1
    ours = mp.attend(q, k, v, SCHEME, documents=documents)
    assert_same(ours, mp.attend(q, k, v, SCHEME, documents=documents.clone(), backend="reference"))
