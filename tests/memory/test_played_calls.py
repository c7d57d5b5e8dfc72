"""Calls that look alike are played from what one of them did: with the answers and gradients of one that is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import milepost as mp
from milepost.backends.triton.packed.regimes import is_empty
from milepost.call.resolve import resolve
from milepost.memory import kind as plan
from milepost.memory.table import MEMORY
from milepost.memory.tape import Tape
from tests.oracles import assert_same, inputs

SCHEMES: dict[str, Callable[[], mp.Scheme]] = {
    "plain": lambda: mp.Scheme(mp.causal),
    "rope": lambda: mp.Scheme(mp.Rope(8), mp.causal),
    "rerope": lambda: mp.Scheme(mp.Rope(8), mp.Rerope(3), mp.causal),
    "pivot": lambda: mp.Scheme(mp.Rope(8), mp.Pivot(mp.Rerope(3), 4), mp.causal),
    "alibi": lambda: mp.Scheme(mp.Alibi(4), mp.causal),
    "t5": lambda: mp.Scheme(mp.T5Bias(4, buckets=8, reach=6), mp.causal),
    "kerple": lambda: mp.Scheme(mp.Kerple(4), mp.causal),
    "shaw": lambda: mp.Scheme(mp.Shaw(8, reach=3), mp.causal),
    "sinks": lambda: mp.Scheme(mp.Rope(8), mp.SinkLogit(4), mp.causal & (mp.window(4) | mp.sinks(1))),
}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU taken for a device that Python is too slow for."""
    monkeypatch.setattr("milepost.memory.surroundings.PLAYS_ON", ("cpu",))


def learning(t: int = 6, seed: int = 0, **shapes: int) -> tuple[Tensor, ...]:
    return tuple(each.requires_grad_() for each in inputs(t=t, h=4, g=2, seed=seed, **shapes))


def answers(
    q: Tensor, k: Tensor, v: Tensor, scheme: mp.Scheme, backend: str | None = None, **options: Any
) -> list[Tensor]:
    """The output, its log-sum-exp and all gradients."""
    out, lse = mp.attend(q, k, v, scheme, backend=backend, return_lse=True, **options)
    ends = (
        torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape),
        torch.linspace(0, 1, lse.numel()).view(lse.shape),
    )
    found = torch.autograd.grad((out, lse), (q, k, v, *scheme.parameters()), (ends[0], ends[1].to(lse)))
    return [out, lse, *found]


def plans(scheme: mp.Scheme) -> list[plan.Kind]:
    """The kinds of calls that are remembered, but for the specification's and decoding steps, which are not played."""
    found = [(asked, kind) for asked, kind in MEMORY.of(scheme).items() if isinstance(kind, plan.Kind)]
    return [kind for asked, kind in found if kind.chosen.backend != "reference" and not asked.steps]


def played(scheme: mp.Scheme) -> bool:
    return any(each.kept is not None for each in plans(scheme))


def warm(scheme: mp.Scheme, **options: Any) -> None:
    """Calls until one is written down."""
    for seed in range(plan.SEEN + 2):
        answers(*learning(seed=seed), scheme, **options)
    assert played(scheme)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_call_that_is_played_answers_as_the_reference(name: str):
    scheme = SCHEMES[name]().double()
    warm(scheme)
    for seed in (10, 11):
        given = learning(seed=seed)
        for ours, theirs in zip(answers(*given, scheme), answers(*given, scheme, "reference"), strict=True):
            assert_same(ours, theirs, 1e-10)


@pytest.mark.parametrize("name", SCHEMES)
def test_without_gradients_too(name: str):
    scheme = SCHEMES[name]().double()
    with torch.no_grad():
        for seed in range(plan.SEEN + 3):
            q, k, v = inputs(h=4, g=2, t=6, seed=seed)
            assert_same(mp.attend(q, k, v, scheme), mp.attend(q, k, v, scheme, backend="reference"), 1e-10)
    assert played(scheme)


def test_weights_are_read_as_they_are_now():
    scheme = SCHEMES["t5"]().double()
    warm(scheme)
    given = learning(seed=20)
    before = answers(*given, scheme)[0]
    with torch.no_grad():
        for weight in scheme.parameters():
            weight.add_(torch.randn_like(weight))
    after = answers(*given, scheme)[0]
    assert not torch.allclose(before, after)
    assert_same(after, answers(*given, scheme, "reference")[0], 1e-10)
    for weight in scheme.parameters():
        weight.data = torch.randn_like(weight)
    assert_same(answers(*given, scheme)[0], answers(*given, scheme, "reference")[0], 1e-10)


class Steep(nn.Module):
    """A bias of a user's own, with a number that he changes: a module has a state, which is read at every call."""

    relative = True
    fixed = True

    def __init__(self) -> None:
        super().__init__()
        self.steep = 1.0

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score - self.steep * (p - r).abs()


def test_what_is_said_to_a_part_between_two_calls_is_heard():
    part = Steep()
    scheme = mp.Scheme(part, mp.causal)
    warm(scheme)
    given = learning(seed=20)
    before = answers(*given, scheme)[0]
    part.steep = 0.1
    after = answers(*given, scheme)[0]
    assert not torch.allclose(before, after)
    assert_same(after, answers(*given, scheme, "reference")[0])


def test_a_part_that_cannot_be_read_is_run_every_time():
    part = Steep()
    part.notes = ["anything"]  # pyright: ignore
    scheme = mp.Scheme(part, mp.causal)
    for seed in range(plan.SEEN + 2):
        answers(*learning(seed=seed), scheme)
    assert not plans(scheme)


def test_tensors_that_lie_otherwise_have_a_plan_of_their_own():
    scheme = SCHEMES["rope"]()
    warm(scheme)
    q, k, v = (each.detach().transpose(1, 2).contiguous().transpose(1, 2) for each in learning(seed=30))
    given = tuple(each.requires_grad_() for each in (q, k, v))
    for _ in range(plan.SEEN + 3):
        for ours, theirs in zip(answers(*given, scheme), answers(*given, scheme, "reference"), strict=True):
            assert_same(ours, theirs, 1e-10)
    assert len([each for each in plans(scheme) if each.kept is not None]) == 2


def test_documents_are_given_anew(monkeypatch: pytest.MonkeyPatch):
    # As on a GPU, where their numbers are not looked at.
    monkeypatch.setattr("milepost.call.inputs.checking_values", lambda *values: False)
    scheme = SCHEMES["rope"]()
    kinds = [torch.tensor(each) for each in ([0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, -1], [0, 0, 1, 1, 2, 2])]
    for seed in range(plan.SEEN + 4):
        given, documents = learning(seed=seed), kinds[seed % 3]
        ours = answers(*given, scheme, "chunked", documents=documents)
        for one, two in zip(ours, answers(*given, scheme, "reference", documents=documents), strict=True):
            assert_same(one.nan_to_num(neginf=0), two.nan_to_num(neginf=0), 1e-10)
    assert played(scheme)


def test_layers_may_all_run_forward_before_one_runs_backward():
    scheme = SCHEMES["kerple"]().double()
    q, k, v = learning()
    for _ in range(plan.SEEN + 3):
        x = q
        for _ in range(3):
            x = mp.attend(x, k, v, scheme)
        y = q
        for _ in range(3):
            y = mp.attend(y, k, v, scheme, backend="reference")
        ends = torch.randn_like(x)
        ours, theirs = (torch.autograd.grad(out, (q, k, v, *scheme.parameters()), ends) for out in (x, y))
        for one, two in zip(ours, theirs, strict=True):
            assert_same(one, two, 1e-10)
    assert played(scheme)


def test_gradients_that_lie_otherwise_are_right_as_well():
    scheme = SCHEMES["rerope"]()
    for seed in range(plan.SEEN + 4):
        q, k, v = learning(seed=seed)
        out = mp.attend(q, k, v, scheme)
        # The gradient of a sum has no memory of its own.
        loss = out.sum() if seed % 2 else (out * out.detach().cos()).sum()
        ours = torch.autograd.grad(loss, (q, k, v))
        want = mp.attend(q, k, v, scheme, backend="reference")
        loss = want.sum() if seed % 2 else (want * out.detach().cos()).sum()
        for one, two in zip(ours, torch.autograd.grad(loss, (q, k, v)), strict=True):
            assert_same(one, two, 1e-10)


def test_a_call_of_fused_kernels_keeps_nothing_but_what_its_backward_pass_reads():
    scheme = SCHEMES["rope"]()
    for seed in range(plan.SEEN + 2):
        q, k, v = learning(seed=seed)
        torch.autograd.grad(mp.attend(q, k, v, scheme).sum(), (q, k, v))
    (only,) = plans(scheme)
    assert only.kept is not None
    assert only.kept.once
    q, k, v = learning(seed=60)
    kept: list[Tensor] = []
    out = mp.attend(q * 1, k * 1, v, scheme)
    kept = [each for each in out.grad_fn.saved_tensors if each.shape == q.shape]  # pyright: ignore
    # The turned queries and the output, and not the raw queries besides.
    assert len(kept) == 2
    first = torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
    want = mp.attend(q, k, v, scheme, backend="reference")
    for one, two in zip(first, torch.autograd.grad(want.sum(), (q, k, v)), strict=True):
        assert_same(one, two, 1e-10)
    # A gradient with other steps than the one written down, and then one that has no gradient.
    ends = torch.randn(out.shape[::-1], dtype=out.dtype).permute(3, 2, 1, 0)
    ours = torch.autograd.grad(out, (q, k, v), ends, retain_graph=True)
    want = mp.attend(q, k, v, scheme, backend="reference")
    for one, two in zip(ours, torch.autograd.grad(want, (q, k, v), ends), strict=True):
        assert_same(one, two, 1e-10)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()


class Hidden:
    """A bias whose weight nobody is told of."""

    relative = True

    def __init__(self, weight: Tensor) -> None:
        self.weight = (lambda: weight,)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score + self.weight[0]() * (p - r).abs()


def test_a_weight_that_nobody_gave_has_its_gradient(monkeypatch: pytest.MonkeyPatch):
    # Taken for a part that can be read.
    monkeypatch.setattr("milepost.seams.parts.state_of", lambda part: 1)
    weight = torch.tensor(-0.5, dtype=torch.float64, requires_grad=True)
    scheme = mp.Scheme(Hidden(weight), mp.causal)
    found: list[Tensor] = []
    for _ in range(plan.SEEN + plan.STRIKES + 2):
        q, k, v = learning()
        found += torch.autograd.grad(mp.attend(q, k, v, scheme).square().sum(), weight)
    assert not played(scheme)
    for each in found[1:]:
        assert_same(each, found[0])


def test_one_backward_pass_may_follow_another():
    scheme = SCHEMES["pivot"]()
    warm(scheme)
    q, k, v = learning(seed=40)
    out, _ = mp.attend(q, k, v, scheme, return_lse=True)
    ends = torch.randn_like(out)
    first = torch.autograd.grad(out, (q, k, v), ends, retain_graph=True)
    second = torch.autograd.grad(out, (q, k, v), ends)
    for one, two in zip(first, second, strict=True):
        assert_same(one, two)


@pytest.mark.parametrize("calls", [plan.SEEN, plan.SEEN + 2])
def test_a_gradient_has_a_gradient(calls: int):
    scheme = SCHEMES["t5"]().double()
    for _ in range(calls):
        answers(*learning(), scheme, "chunked")
    second: list[tuple[Tensor, ...]] = []
    for backend in ("chunked", "reference"):
        q, k, v = learning(seed=50)
        out, _ = mp.attend(q, k, v, scheme, backend=backend, return_lse=True)
        first = torch.autograd.grad(out.square().sum(), (q, k, v), create_graph=True)
        second.append(torch.autograd.grad(sum(each.square().sum() for each in first), (q, k, v, *scheme.parameters())))  # pyright: ignore
    for one, two in zip(*second, strict=True):
        assert_same(one, two, 1e-9)


def test_checkpoints_count_what_is_saved():
    scheme = SCHEMES["alibi"]().double()
    for seed in range(plan.SEEN + 3):
        q, k, v = learning(seed=seed)
        out = checkpoint(lambda q, k, v: mp.attend(q, k, v, scheme), q, k, v, use_reentrant=False)
        ours = torch.autograd.grad(out.sum(), (q, k, v))
        theirs = torch.autograd.grad(mp.attend(q, k, v, scheme, backend="reference").sum(), (q, k, v))
        for one, two in zip(ours, theirs, strict=True):
            assert_same(one, two, 1e-10)
        answers(q, k, v, scheme)


def test_calls_without_a_backward_pass_are_not_written_down_for_ever():
    scheme = SCHEMES["rope"]()
    given = learning()
    for _ in range(plan.SEEN + 2 * plan.STRIKES):
        mp.attend(*given, scheme)
    (only,) = plans(scheme)
    assert only.strikes >= plan.STRIKES


def test_transforms_of_functions_are_run():
    scheme = SCHEMES["plain"]()
    q, k, v = inputs(h=4, g=2, t=6)
    several = torch.stack((q, 2 * q))
    for _ in range(plan.SEEN + 3):
        ours = torch.func.vmap(lambda q: mp.attend(q, k, v, scheme, backend="chunked"))(several)
        assert_same(ours[1], mp.attend(2 * q, k, v, scheme, backend="reference"))


def test_inference_mode_has_its_own():
    scheme = SCHEMES["rope"]()
    q, k, v = inputs(h=4, g=2, t=6)
    for _ in range(plan.SEEN + 2):
        with torch.inference_mode():
            mp.attend(q, k, v, scheme)
    given = learning()
    for _ in range(plan.SEEN + 2):
        answers(*given, scheme)
    for ours, theirs in zip(answers(*given, scheme), answers(*given, scheme, "reference"), strict=True):
        assert_same(ours, theirs, 1e-10)


def test_a_scheme_forgotten_takes_its_plans_along():
    import gc
    import weakref

    scheme = SCHEMES["t5"]().double()
    warm(scheme)
    alive = weakref.ref(plans(scheme)[0])
    del scheme
    gc.collect()
    assert alive() is None


def test_where_keys_grow_with_every_step_writing_down_is_given_up():
    scheme = SCHEMES["rope"]()
    with torch.no_grad():
        for s in range(26, 28 + plan.TRIED):
            q, k, v = inputs(h=4, g=2, t=20, s=s)
            for _ in range(plan.SEEN + 3):
                ours = mp.attend(q, k, v, scheme)
            assert_same(ours, mp.attend(q, k, v, scheme, backend="reference"), 1e-10)
    found = plans(scheme)
    assert sum(each.kept is not None for each in found) == plan.TRIED
    assert not found[0].worth


@pytest.mark.parametrize("name", SCHEMES)
def test_steps_of_a_text_that_grows_are_weighed_once_until_it_has_doubled(name: str):
    scheme = SCHEMES[name]().double()
    cache = mp.Cache(scheme)
    q, k, v = inputs(h=4, g=2, t=40)
    with torch.no_grad():
        cache.append(k[:, :, :31], v[:, :, :31])
        for n in range(31, 40):
            step = slice(n, n + 1)
            cache.append(k[:, :, step], v[:, :, step])
            ours = mp.attend(q[:, :, step], cache.keys, cache.values, scheme)
            bare = mp.attend(q[:, :, step], k[:, :, : n + 1], v[:, :, : n + 1], scheme)
            exact = mp.attend(q[:, :, step], k[:, :, : n + 1], v[:, :, : n + 1], scheme, backend="reference")
            assert_same(ours, exact, 1e-10)
            assert_same(bare, exact, 1e-10)
    steps = [asked for asked in MEMORY.of(scheme) if getattr(asked, "steps", False)]
    assert len(steps) == (2 if cache.turned else 1) + 1, "by whether keys are turned; and those of the specification"
    assert not plans(scheme)


def test_a_step_that_does_not_fit_is_refused_though_others_like_it_ran():
    scheme = SCHEMES["rope"]()
    q, k, v = inputs(h=4, g=2, t=40)
    with torch.no_grad():
        mp.attend(q[:, :, -1:], k, v, scheme)
        with pytest.raises(ValueError, match="do not fit together"):
            mp.attend(q[:, :, -1:], k[:, :, 1:], v, scheme)
        with pytest.raises(ValueError, match="heads cannot share"):
            mp.attend(q[:, :3, -1:], k, v, scheme)
        mp.attend(q[:, :, :9], k[:, :, :15], v[:, :, :15], scheme)
        with pytest.raises(ValueError, match="9 queries but 8 keys"):
            mp.attend(q[:, :, :9], k[:, :, :8], v[:, :, :8], scheme)


def test_several_queries_of_a_step_without_a_mask_stand_where_they_are():
    scheme, (q, k, v) = mp.Scheme(mp.Rope(8)), inputs(h=4, g=2, t=24)
    cache = mp.Cache(scheme)
    cache.append(k[:, :, :16], v[:, :, :16])
    with torch.no_grad():
        for n in range(16, 24):
            cache.append(k[:, :, n : n + 1], v[:, :, n : n + 1])
            rows = slice(n - 2, n + 1)
            exact = mp.attend(q[:, :, rows], k[:, :, : n + 1], v[:, :, : n + 1], scheme, backend="reference")
            assert_same(mp.attend(q[:, :, rows], cache.keys, cache.values, scheme), exact)


def test_a_part_that_changes_is_asked_at_every_step():
    class Changing:
        """A scale of one's own that is written to."""

        relative = True
        factor = 1.0

        def scale(self, dim: int) -> float:
            return self.factor

    part = Changing()
    scheme, (q, k, v) = mp.Scheme(part, mp.causal), inputs(h=4, g=2, t=20)
    with torch.no_grad():
        for part.factor in (1.0, 4.0, 7.0):
            ours = mp.attend(q[:, :, -1:], k, v, scheme)
            assert_same(ours, mp.attend(q[:, :, -1:], k, v, scheme, backend="reference"))


def test_a_gradient_of_keys_out_of_a_cache_is_not_lost():
    scheme, (q, k, v) = SCHEMES["rope"](), inputs(h=4, g=2, t=20)
    cache = mp.Cache()
    cache.append(k, v)
    with pytest.raises(ValueError, match=r"requires_grad_.*keys\.plain"):
        cache.keys.requires_grad_()
    for _ in range(3):
        assert mp.attend(q[:, :, -1:], cache.keys.plain.requires_grad_(), cache.values, scheme).requires_grad


@pytest.mark.parametrize("wrong", ["rows", "name", "dropout"])
def test_what_is_said_wrongly_of_a_step_is_refused_though_others_like_it_ran(wrong: str):
    scheme, (q, k, v) = SCHEMES["rope"](), inputs(b=2, h=4, g=2, t=20)
    cache, other = mp.Cache(), mp.Cache()
    cache.append(k, v)
    other.append(k[:1].repeat(3, 1, 1, 1), v[:1].repeat(3, 1, 1, 1))
    said = {"rows": {"key_index": other.index}, "name": {"foo": None}, "dropout": {"dropout": None}}[wrong]
    with torch.no_grad():
        mp.attend(q[:, :, -1:], cache.keys, cache.values, scheme)
        with pytest.raises(
            (TypeError, ValueError), match=r"key_index must be|no option is called|share of the weights"
        ):
            mp.attend(q[:, :, -1:], cache.keys, cache.values, scheme, **said)  # pyright: ignore


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_listens_to_a_weights_gradient_hears_it_once(when: str):
    scheme = SCHEMES["t5"]().double()
    (weight,) = scheme.parameters()
    if when == "after":
        warm(scheme)
    handle = weight.register_hook(lambda grad: grad / 2)
    for seed in range(plan.SEEN + 3):
        q, k, v = learning(seed=seed)
        found = [
            torch.autograd.grad(mp.attend(q, k, v, scheme, backend=backend).square().sum(), weight)[0]
            for backend in (None, "reference")
        ]
        assert_same(found[0], found[1], 1e-10)
    handle.remove()


def test_weights_of_another_dtype_are_another_kind():
    scheme = SCHEMES["kerple"]()
    q, k, v = (each.float().requires_grad_() for each in inputs(h=4, g=2, t=6))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        scheme.to(dtype)
        for _ in range(plan.SEEN + 3):
            ours, theirs = (
                torch.autograd.grad(mp.attend(q, k, v, scheme, backend=backend).square().sum(), q)[0]
                for backend in (None, "reference")
            )
            assert_same(ours, theirs, 1e-4)


def test_a_buffer_is_read_as_it_is_now():
    class Buffered(Steep):
        fixed = True

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("share", torch.tensor(0.1, dtype=torch.float64))

        def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
            return score - self.share.exp() * (p - r).abs()  # pyright: ignore

    part = Buffered()
    scheme = mp.Scheme(part, mp.causal)
    warm(scheme)
    part.load_state_dict({"share": torch.tensor(2.0)})
    given = learning(seed=70)
    assert_same(answers(*given, scheme)[0], answers(*given, scheme, "reference")[0], 1e-10)
    # Another tensor in its place, and none of the old one's numbers.
    part.share = torch.tensor(-1.0, dtype=torch.float64)
    assert_same(answers(*given, scheme)[0], answers(*given, scheme, "reference")[0], 1e-10)


class Changing(nn.Module):
    """A bias of a user's own, of which anything may change."""

    relative = True
    fixed = True

    def __init__(self) -> None:
        super().__init__()
        self.act: nn.Module = nn.Tanh()
        self.by: float = 2
        self.a, self.b, self.c = (nn.Parameter(torch.tensor(n / 4, dtype=torch.float64)) for n in (1, 2, 3))
        self.register_buffer("one", torch.tensor(0.5, dtype=torch.float64))
        self.register_buffer("two", None)
        self.register_buffer("size", torch.zeros(3))

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        far = (p - r).abs().to(score.dtype)
        if self.one is not None:
            far = far * self.one
        far = far + self.size.shape[0] * (torch.tensor(self.by, dtype=torch.int64) if type(self.by) is int else -1)
        return self.act(score) - self.a * far - self.b * far**2 + self.c


def _hooked(part: Changing) -> None:
    part.act.register_forward_hook(lambda module, given, found: -found)


def _moved(part: Changing) -> None:
    part.two, part.one = part.one, None


def _tied(part: Changing) -> None:
    part.b = part.a


def _tied_otherwise(part: Changing) -> None:
    part.b = part.c


def _resized(part: Changing) -> None:
    """Often the next one lies where the last one lay."""
    count = part.size.shape[0] + 1
    del part.size
    part.register_buffer("size", torch.zeros(count))


@pytest.mark.parametrize(
    "changes",
    [
        [lambda part: setattr(part, "act", nn.Sigmoid())], [lambda part: setattr(part, "by", 2.0)], [_hooked], [_moved],
        [_tied, _tied_otherwise], [_resized] * 8,
    ],
    ids=["class of a child", "kind of a number", "hook", "name of a buffer", "ties", "shape of a buffer"],
)  # fmt: skip
def test_whatever_changes_in_a_part_is_seen(changes: list[Callable[[Changing], None]]):
    part = Changing()
    scheme = mp.Scheme(part, mp.causal)
    warm(scheme)
    for number, change in enumerate(changes):
        change(part)
        for seed in range(70, 70 + plan.SEEN + 2):
            given = learning(seed=seed + 10 * number)
            for one, two in zip(answers(*given, scheme), answers(*given, scheme, "reference"), strict=True):
                assert_same(one, two, 1e-10)


def test_a_buffer_that_is_made_to_learn_has_its_gradient():
    part = Changing()
    scheme = mp.Scheme(part, mp.causal)
    warm(scheme)
    assert part.one is not None
    part.one.requires_grad_()
    given = learning(seed=71)
    ours, theirs = (
        torch.autograd.grad(mp.attend(*given, scheme, backend=backend, return_lse=True)[0].square().sum(), part.one)[0]
        for backend in (None, "reference")
    )
    assert_same(ours, theirs, 1e-10)


def test_modules_that_hold_one_another_are_walked_once():
    part, holder = Changing(), nn.Module()
    holder.part, part.owner = part, holder
    scheme = mp.Scheme(part, mp.causal)
    assert len(scheme.weights()) == 3
    for seed in range(plan.SEEN + 2):
        given = learning(seed=seed)
        assert_same(mp.attend(*given, scheme), mp.attend(*given, scheme, backend="reference"), 1e-10)


def test_a_log_sum_exp_may_be_written_to():
    scheme = mp.Scheme(mp.Rope(8), mp.Rerope(3), mp.causal)
    for seed in range(plan.SEEN + 4):
        q, k, v = learning(seed=seed)
        found: list[Tensor] = []
        for backend in (None, "reference"):
            out, lse = mp.attend(q, k, v, scheme, backend=backend, return_lse=True)
            lse.mul_(2)
            found.append(torch.autograd.grad(out.sum() + lse.sum(), q)[0])
        assert_same(found[0], found[1], 1e-10)
    assert played(scheme)


def test_a_gradient_that_is_always_the_same_is_the_callers_own():
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, score: Tensor, weight: Tensor) -> Tensor:
            return score * 1.5

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore
            return grad * 1.5, torch.zeros((), dtype=torch.float64)

    class Part(Changing):
        def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
            return Nothing.apply(score, self.a)  # pyright: ignore

    part = Part()
    scheme = mp.Scheme(part, mp.causal)
    for seed in range(plan.SEEN + 4):
        q, k, v = learning(seed=seed)
        (grad,) = torch.autograd.grad(mp.attend(q, k, v, scheme, backend="chunked").sum(), part.a)
        assert grad == 0
        grad.add_(7)


def test_weights_that_are_lent_for_a_call_are_those_of_its_gradients():
    scheme = SCHEMES["t5"]().double()
    for seed in range(plan.SEEN + 3):
        q, k, v = learning(seed=seed)
        lent = {name: torch.randn_like(weight).requires_grad_() for name, weight in scheme.named_parameters()}
        found: list[tuple[Tensor, ...]] = []
        for backend in ("chunked", "reference"):
            with torch.nn.utils.stateless._reparametrize_module(scheme, lent):  # pyright: ignore
                out = mp.attend(q, k, v, scheme, backend=backend)
            found.append(torch.autograd.grad(out.square().sum(), (q, *lent.values()), create_graph=True))
        for one, two in zip(*found, strict=True):
            assert_same(one, two, 1e-10)


def test_one_tensor_may_be_the_position_of_both():
    scheme = SCHEMES["rope"]()
    for seed in range(plan.SEEN + 4):
        at = torch.arange(6) * (seed + 1)
        q, k, v = inputs(h=4, g=2, t=6, seed=seed)
        ours = mp.attend(q, k, v, scheme, position=at, key_position=at, backend="chunked")
        assert_same(ours, mp.attend(q, k, v, scheme, position=at, key_position=at, backend="reference"), 1e-10)
    assert played(scheme)


@pytest.mark.parametrize("learns", [False, True])
def test_attention_in_many_blocks_is_not_written_down(learns: bool, monkeypatch: pytest.MonkeyPatch):
    """It would hold every block at once, where one after the other is all that there is room for."""
    monkeypatch.setattr("milepost.memory.tape.HELD", 1 << 12)
    monkeypatch.setattr("milepost.backends.chunked.BLOCK", 1 << 9)
    scheme = mp.Scheme(mp.Rope(8), mp.DualChunk(6, 2), mp.causal)
    q, k, v = learning(t=64) if learns else inputs(t=64, h=4, g=2)
    for _ in range(plan.SEEN + plan.STRIKES + 2):
        out = mp.attend(q, k, v, scheme, backend="chunked")
        if learns:
            out.sum().backward()
    assert plans(scheme)
    assert not played(scheme)
    assert all("memory" in each.refused for each in plans(scheme))
    assert_same(out, mp.attend(q, k, v, scheme, backend="reference"))


def test_what_follows_from_the_layout_is_no_step_of_a_tape():
    """Kept sinks: a tensor on the CPU while a call of a GPU is recorded kept every such call from being replayed."""
    heard: list[str] = []
    scheme = mp.Scheme(mp.Rope(8), mp.Pivot(mp.KeepSinks(mp.Rerope(3), sinks=1), 4), mp.causal)
    calls = [mp.Scheme(mp.Rope(8), part, mp.causal) for part in (mp.KeepSinks(mp.Rerope(3)), mp.DualChunk(4, 1))]
    for each in (scheme, *calls):
        call = resolve(*inputs(t=12), each, {}, False)
        with Tape(call.q, call.k, call.v) as tape:
            for regime in each.place():
                heard.append(str(is_empty(call, regime)))
        assert tape.steps == []
        assert not tape.refused
    assert "False" in heard
