"""Operations written down once do the same to other tensors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from milepost.memory.tape import Tape, running_tape


def assert_same(one: Tensor, two: Tensor) -> None:
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


TABLE = torch.arange(12.0).view(3, 4)


def in_place(x: Tensor, y: Tensor) -> Tensor:
    room = torch.empty_like(x)
    room.copy_(x)
    room[:, 1:].add_(y[:, :-1])
    return room


def several(x: Tensor, y: Tensor) -> Tensor:
    first, second = x.split(2, dim=1)
    return torch.cat((first * y[:, :2], torch.stack((second, second))[1]), dim=1)


def with_constants(x: Tensor, y: Tensor) -> Tensor:
    return x * TABLE[torch.tensor([0, 2, 1])] + torch.arange(4) * y.transpose(0, 1)[:, :1].mT[:, :1]


def fused(x: Tensor, y: Tensor) -> Tensor:
    return scaled_dot_product_attention(x[None, None], y[None, None], y[None, None], is_causal=True)[0, 0]


@pytest.mark.parametrize("f", [in_place, several, with_constants, fused])
def test_what_was_written_down_is_done_to_other_tensors(f: Callable[[Tensor, Tensor], Tensor]):
    x, y = torch.randn(2, 3, 4)
    with Tape(x, y) as tape:
        answer = f(x, y)
    play = tape.finished([answer])
    assert not tape.refused
    assert_same(answer, f(x, y))
    for _ in range(2):
        x, y = torch.randn(2, 3, 4)
        assert_same(play(x, y)[0], f(x, y))


def test_a_constant_is_read_again_and_not_copied():
    constant, x = torch.ones(3), torch.randn(3)
    with Tape(x) as tape:
        answer = x * constant
    play = tape.finished([answer])
    constant.fill_(2.0)
    assert_same(play(x)[0], 2 * x)


def test_what_is_made_from_no_tensor_is_made_once():
    x = torch.randn(5)
    with Tape(x) as tape:
        answer = x + (torch.arange(5) * 2).cos()
    play = tape.finished([answer])
    assert [str(step.run) for step in tape.steps] == ["aten.add.Tensor"]
    assert_same(play(x)[0], answer)


def test_what_follows_from_a_constant_is_made_again():
    constant, x = torch.ones(5), torch.randn(5)
    with Tape(x) as tape:
        answer = x + constant.exp()
    play = tape.finished([answer])
    constant.fill_(2.0)
    assert_same(play(x)[0], x + constant.exp())


def test_a_conjugate_is_another_tensor():
    x = torch.randn(3, dtype=torch.complex64)
    with Tape(x) as tape:
        answer = x * x.conj()
    play = tape.finished([answer])
    assert_same(play(2 * x)[0], 4 * x * x.conj())


def test_a_view_that_lies_where_another_given_tensor_lies_is_refused():
    x = torch.randn(3, 4)
    with Tape(x, x[:, 2:]) as tape:
        x[:, 2:].sum()
    assert "given elsewhere" in tape.refused
    with Tape(x) as tape:
        made = x + 1
    assert "given again" in Tape(made, after=tape).refused


def test_room_that_is_written_to_is_made_anew():
    x = torch.randn(5)
    with Tape(x) as tape:
        room = torch.zeros(5)
        room.add_(x)
    play = tape.finished([room])
    first, second = play(x)[0], play(2 * x)[0]
    assert_same(first, x)
    assert_same(second, 2 * x)


def test_a_kernel_that_torch_does_not_see_is_launched_again():
    x, room = torch.randn(4), torch.zeros(4)

    def double(source: Tensor, to: Tensor) -> None:
        to.numpy()[:] = 2 * source.numpy()

    with Tape(x) as tape:
        room = torch.empty(4)
        with tape.aside():
            double(x, room)
        tape.launched(double, [x, room])
        answer = room + 1
    play = tape.finished([answer])
    y = torch.randn(4)
    assert_same(play(y)[0], 2 * y + 1)
    assert_same(answer, 2 * x + 1)


def test_a_kernel_reads_of_a_tensor_what_it_was_told_to():
    x, seen = torch.arange(4.0), list[tuple[float, int, str]]()

    def kernel(total: float, count: int, word: str) -> None:
        seen.append((total, count, word))

    with Tape(x) as tape:
        doubled = 2 * x
        tape.launched(kernel, [(doubled, lambda each: each.sum().item()), 7, "seven"])
    play = tape.finished([doubled])
    play(torch.ones(4))
    play(x)
    assert seen == [(8.0, 7, "seven"), (12.0, 7, "seven")]


def test_room_for_no_numbers_is_one_for_all_and_that_for_some_is_not():
    x, seen = torch.ones(3), list[tuple[Tensor, Tensor]]()
    with Tape(x) as tape:
        nothing, some = x.new_empty(0), x.new_empty(3)
        tape.launched(lambda one, two: seen.append((one, two)), [nothing, some])
        answer, handed_out = some + x, x.new_empty(0, 2)
    play = tape.finished([answer, handed_out])
    found = [play(x), play(x)]
    (one, first), (two, second) = seen
    assert one is two
    assert first is not second
    assert found[0][1] is not found[1][1]


def test_what_is_answered_is_made_anew_each_time():
    """The caller may write to it: a gradient of zeros, say, or what follows from room for no numbers."""
    x = torch.randn(3)
    with Tape(x) as tape:
        answers = [x + 1, torch.zeros(2), torch.logsumexp(x.new_empty(2, 0), 1), torch.zeros(4).view(2, 2)[0]]
    play = tape.finished(answers)
    first = play(x)
    for each in first:
        each.fill_(3.0)
    for one, two in zip(play(x), [x + 1, torch.zeros(2), torch.full((2,), -torch.inf), torch.zeros(2)], strict=True):
        assert_same(one, two)


def test_a_tape_goes_with_who_holds_it():
    x, constant = torch.randn(3), torch.randn(3)
    gone = weakref.ref(constant)
    with Tape(x) as tape:
        answer = x + constant
    play = tape.finished([answer])
    gc.collect()
    gc.disable()
    try:
        del tape, constant
        assert gone() is not None
        del play
        assert gone() is None
    finally:
        gc.enable()


def test_an_argument_may_have_the_name_of_a_word_of_python():
    library = torch.library.Library("milepost_test_words", "FRAGMENT")
    library.define("scaled(Tensor x, *, float lambda, float by) -> Tensor")
    library.impl("scaled", lambda x, **said: x * said["lambda"] - said["by"], "CPU")
    x = torch.randn(3)
    with Tape(x) as tape:
        answer = torch.ops.milepost_test_words.scaled(x, **{"lambda": 3.0, "by": 1.0})
    play = tape.finished([answer])
    assert_same(play(2 * x)[0], 6 * x - 1)


def test_a_weight_that_autocast_has_at_hand_is_read_again():
    x, weight = torch.randn(2, 2), torch.nn.Parameter(torch.randn(2, 2))

    def f(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, weight).float()

    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        f(x, weight)
        with Tape(x, weight) as tape:
            answer = f(x, weight)
        play = tape.finished([answer])
        assert torch.is_autocast_cache_enabled()
        assert not tape.refused
    other = torch.randn(2, 2)
    with torch.no_grad():
        assert_same(play(x, other)[0], (x.bfloat16() @ other.bfloat16().mT).float())


def test_tensors_in_lists_and_by_name_are_played():
    x, y = torch.randn(2, 3), torch.randn(2, 3)

    def f(x: Tensor, y: Tensor) -> Tensor:
        one, two = torch.split(torch.cat([x, 2 * y], dim=1), [2, 4], dim=1)
        low, high = torch.aminmax(torch.stack((two, two + 1)), dim=0)
        return torch.clamp(one.repeat(1, 2), min=low, max=high)

    with Tape(x, y) as tape:
        answer = f(x, y)
    play = tape.finished([answer, None, answer])
    other = torch.randn(2, 3), torch.randn(2, 3)
    first, nothing, third = play(*other)
    assert nothing is None
    assert first is third
    assert_same(first, f(*other))
    with pytest.raises(TypeError, match="a tape of 2 tensors was given 1"):
        play(x)


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (lambda x: torch.add(x, 1, out=torch.empty(0)), "changes how a tensor lies"),
        (lambda x: torch.sparse.mm(torch.eye(4).to_sparse(), x[:, None])[:, 0], "not strided"),
        (lambda x: x * float(x.sum()), "_local_scalar_dense"),
        (lambda x: x[x > 0], "index"),
        (lambda x: x if torch.equal(x, x) else -x, "equal"),
        (lambda x: x.nonzero(), "nonzero"),
    ],
    ids=["resized", "sparse", "item", "mask", "equal", "nonzero"],
)
def test_what_looks_at_numbers_cannot_be_played(f: Callable[[Tensor], Tensor], why: str):
    x = torch.randn(4)
    with Tape(x) as tape:
        f(x)
    assert why in tape.refused


def test_one_tensor_given_twice_is_refused():
    x = torch.randn(4)
    assert "twice" in Tape(x, x).refused


def test_an_answer_from_elsewhere_is_refused():
    x = torch.randn(4)
    with Tape(x) as tape:
        pass
    tape.finished([torch.ones(3)])
    assert "elsewhere" in tape.refused


def test_a_backward_pass_reads_what_its_forward_pass_made():
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return (x @ weight).tanh().square()

    with Tape(x, weight) as forward:
        out = f(x)
    grad = torch.randn(3, 4)
    with Tape(grad, after=forward) as backward:
        found = torch.autograd.grad(out, (x, weight), grad)
    back = backward.finished(found)
    play = forward.finished([out], also=tuple(backward.saved.values()))
    assert not forward.refused
    assert not backward.refused
    other, grad = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    with torch.no_grad():
        answer, *saved = play(other, weight)
        ours = back(grad, *saved)
    expected = f(other)
    assert_same(answer, expected)
    for one, two in zip(ours, torch.autograd.grad(expected, (other, weight), grad), strict=True):
        assert_same(one, two)


def test_what_is_read_no_more_is_let_go():
    x = torch.randn(4)
    alive: list[weakref.ref[Tensor]] = []

    def watch(made: Tensor) -> None:
        alive.append(weakref.ref(made))

    def dead(made: Tensor) -> None:
        gc.collect()
        assert alive[0]() is None

    with Tape(x) as tape:
        made = x + 1
        tape.launched(watch, [made])
        answer = made * 2
        tape.launched(dead, [answer])
    play = tape.finished([answer])
    assert_same(play(x)[0], 2 * x + 2)


def test_only_a_tape_alone_is_running():
    from torch.utils.flop_counter import FlopCounterMode

    assert running_tape() is None
    with Tape() as tape:
        assert running_tape() is tape
        with tape.aside():
            assert running_tape() is None
        with FlopCounterMode(display=False):
            assert running_tape() is None


def test_a_tape_that_would_hold_much_more_than_it_was_given_is_refused_and_lets_go(monkeypatch: pytest.MonkeyPatch):
    """Attention in blocks frees one before it makes the next; a tape of it would hold them all."""
    monkeypatch.setattr("milepost.memory.tape.HELD", 1 << 16)
    made: list[weakref.ref[Tensor]] = []
    x = torch.randn(64, dtype=torch.float64)
    with Tape(x) as tape:
        total = x.sum()
        for _ in range(32):
            block = x[:, None] * x[None]
            made.append(weakref.ref(block))
            total = total + block.sum()
            del block
    assert "memory" in tape.refused
    gc.collect()
    assert sum(each() is not None for each in made) == 0
    torch.testing.assert_close(total, x.sum() + 32 * x.sum() ** 2)
    # What it would play, nobody keeps.
    tape.finished([total])
