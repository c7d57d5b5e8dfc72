"""The layers of a model in one step: what the first launched is launched again for the others, with their tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import milepost as mp
from tests.backends.triton.dense import DEVICE, GPU, off
from tests.backends.triton.test_rotary import rotated

pytest.importorskip("triton")

from milepost.backends.triton.decoding import decode
from milepost.backends.triton.rotary.rotate import QueryRotation
from milepost.backends.triton.runtime import launch

B, D = (2, 64) if GPU else (1, 16)
SCHEMES = {
    "ReRoPE": lambda: mp.Scheme(mp.Rope(D), mp.Rerope(9), mp.causal),
    "ReRoPE of neighbours": lambda: mp.Scheme(mp.Rope(D, pairs="neighbours"), mp.Rerope(9), mp.causal),
    "Self-Extend": lambda: mp.Scheme(mp.Rope(D), mp.SelfExtend(4, 8), mp.causal),
    "Pivot": lambda: mp.Scheme(mp.Rope(D), mp.Pivot(mp.Rerope(9), 16), mp.causal),
    "sinks kept": lambda: mp.Scheme(
        mp.Rope(D), mp.Dilute(mp.Pivot(mp.KeepSinks(mp.Rerope(9), sinks=3), 16), 16), mp.causal
    ),
    "RoPE": lambda: mp.Scheme(mp.Rope(D), mp.causal),
    "RoPE of neighbours": lambda: mp.Scheme(mp.Rope(D, pairs="neighbours"), mp.causal),
    "RoPE of some channels": lambda: mp.Scheme(mp.Partial(mp.Rope(D // 2), D), mp.Alibi(4), mp.causal),
    "ALiBi": lambda: mp.Scheme(mp.Alibi(4), mp.causal),
    "window": lambda: mp.Scheme(mp.Alibi(4), mp.window(11)),
}


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One more number for every layer that was launched again; in the interpreter, which takes them one by one, there
    are few programs.
    """
    if not GPU:
        few = {name: each._replace(programs=8) for name, each in decode.SETTINGS.items()}
        monkeypatch.setattr(decode, "SETTINGS", few)
    calls: list[int] = []
    own = launch.Repeated.__call__

    def counted(self: launch.Repeated, *given: Tensor) -> list[Tensor]:
        calls.append(len(given))
        return own(self, *given)

    monkeypatch.setattr(launch.Repeated, "__call__", counted)
    return calls


def layer(seed: int, s: int, t: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one layer."""
    torch.manual_seed(seed)
    return tuple(torch.randn(B, heads, n, D).to(DEVICE) for heads, n in ((4, t), (2, s), (2, s)))  # pyright: ignore


def check(q: Tensor, k: Tensor, v: Tensor, scheme: mp.Scheme) -> None:
    """Ours against the specification in float64, with the sums of rows where they can be merged."""
    alone = mp.attend(q, k, v, scheme, backend="triton")
    exact = mp.attend(q.double(), k.double(), v.double(), scheme.double(), backend="reference")
    scheme.float()
    assert off(alone, exact) < 2e-6
    if scheme.needs_whole_rows is not None and q.shape[2] != k.shape[2]:
        return
    ours = mp.attend(q, k, v, scheme, backend="triton", return_lse=True)
    assert torch.equal(alone, ours[0])
    exact = mp.attend(q.double(), k.double(), v.double(), scheme.double(), backend="reference", return_lse=True)[1]
    scheme.float()
    assert off(ours[1], exact) < 2e-6


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("name", "t", "little"), [*((name, 1, 1 << 25) for name in SCHEMES), ("Pivot", 3, 0), ("ALiBi", 3, 0)]
)
@torch.no_grad()
def test_layers_of_a_step_are_launched_again_with_their_own_tensors(
    name: str, t: int, little: int, repeated: list[int], monkeypatch: pytest.MonkeyPatch
):
    # Near keys are shared out otherwise where there is little to read.
    monkeypatch.setattr(decode, "LITTLE", little)
    scheme = SCHEMES[name]().to(DEVICE)
    for s in (40, 41):
        for number in range(3):
            check(*layer(10 * s + number, s, t), scheme)
    # The very first is looked at; then, of each step, the first layer; with the log-sum-exp and without.
    assert len(repeated) == (2 if scheme.needs_whole_rows is None else 1) * (2 * 3 - 1 - 2)


@pytest.mark.parametrize("name", ["ReRoPE", "ALiBi"])
@torch.no_grad()
def test_tensors_that_lie_otherwise_are_looked_at(name: str, repeated: list[int]):
    scheme = SCHEMES[name]().to(DEVICE)
    for number in range(3):
        check(*layer(number, 40), scheme)
    assert len(repeated) == 2
    q, k, v = layer(3, 40)
    check(q, k.transpose(1, 2).contiguous().transpose(1, 2), v, scheme)
    # These are copied, and the copy is not what the next layer has.
    check(q, k, v.mT.contiguous().mT, scheme)
    check(q, k, k.mT.contiguous().mT, scheme)
    check(q, k, k, scheme)
    check(q, k.clone(), v.clone(), scheme)
    wide = torch.randn(B * 4 * D + 1, device=DEVICE)
    check(wide[1:].view(B, 4, 1, D), k, v, scheme)
    check(q, torch.cat((k, k), 2)[:, :, :40], v, scheme)
    assert len(repeated) == 2
    check(*layer(4, 40), scheme)
    check(*layer(5, 40), scheme)
    assert len(repeated) == 4


@pytest.mark.parametrize("name", ["RoPE", "RoPE of neighbours", "RoPE of some channels"])
@torch.no_grad()
def test_queries_are_turned_as_they_are_read_where_keys_are_turned_already(name: str, repeated: list[int]):
    scheme = SCHEMES[name]().to(DEVICE)
    for number, first in enumerate((0, 0, 0, 70, 70)):
        q, k, v = layer(number, 40)
        cache = mp.Cache(scheme)
        cache.append(k, v, index=range(first, first + 40))
        ours = mp.attend(q, cache.keys, cache.values, scheme, backend="triton")
        exact = mp.attend(
            q.double(), k.double(), v.double(), scheme.double(), backend="reference",
            key_index=range(first, first + 40),
        )  # fmt: skip
        scheme.float()
        assert off(ours, exact) < 2e-6
    # One kind of step after another: the first of all is looked at, and the first that begins elsewhere.
    assert len(repeated) == 2


@torch.no_grad()
def test_keys_that_begin_at_another_index_are_looked_at(repeated: list[int]):
    # How strongly far scores are turned goes by the index.
    scheme = SCHEMES["Pivot"]().to(DEVICE)
    q, k, v = layer(7, 40)
    for first in (0, 0, 0, 100, 100, 0):
        cache = mp.Cache()
        cache.append(k, v, index=range(first, first + 40))
        ours = mp.attend(q, cache.keys, cache.values, scheme, backend="triton")
        exact = mp.attend(
            q.double(), k.double(), v.double(), scheme, backend="reference", key_index=range(first, first + 40)
        )
        assert off(ours, exact) < 2e-6
    assert repeated


@pytest.mark.parametrize("neighbours", [False, True])
@torch.no_grad()
def test_queries_of_layers_are_rotated_where_they_stand(neighbours: bool, repeated: list[int]):
    asked: list[int] = []

    def angle(first: int) -> Tensor:
        return (torch.arange(D // 2).double()[None, None] + first).to(DEVICE)

    def waves(first: int) -> tuple[tuple[Tensor, Tensor], None] | None:
        asked.append(first)
        return None if first < 0 else ((angle(first).cos().float(), angle(first).sin().float()), None)

    rotation = QueryRotation(waves, neighbours)
    for first in (3, 3, 3, 4, 4, 3):
        q = layer(first + len(asked), 1)[0]
        found = rotation(q, first)
        assert found is not None
        assert off(found, rotated(q.double(), angle(first), neighbours)) < 2e-7
    assert asked == [3, 4, 3]
    assert len(repeated) == 3
    assert rotation(layer(9, 1)[0], -1) is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", SCHEMES)
@torch.no_grad()
def test_graphs_and_streams_have_launches_of_their_own(name: str, repeated: list[int]):
    scheme = SCHEMES[name]().to(DEVICE)
    q, k, v = layer(0, 40)
    for _ in range(3):
        check(q, k, v, scheme)
    before = len(repeated)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mp.attend(q, k, v, scheme, backend="triton")
    assert len(repeated) == before
    for s in range(41, 60):
        # Tables of other steps take the place of those that the graph reads.
        check(*layer(s, s), scheme)
    for each, other in zip((q, k, v), layer(1, 40), strict=True):
        each.copy_(other)
    graph.replay()
    exact = mp.attend(q.double(), k.double(), v.double(), scheme.double(), backend="reference")
    scheme.float()
    assert off(out, exact) < 2e-6
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        check(*layer(2, 40), scheme)
    torch.cuda.current_stream().wait_stream(side)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ReRoPE", "sinks kept", "RoPE"])
@pytest.mark.parametrize("b", [1, 24])
@torch.no_grad()
def test_kernels_that_start_early_wait_for_what_they_read(name: str, b: int):
    # Each step's queries, keys and values are written right before it, and what is joined lies where it lay before.
    scheme = SCHEMES[name]().to(DEVICE)
    q, k, v = (torch.empty(b, 4, n, D, device=DEVICE, dtype=torch.bfloat16) for n in (1, 6000, 6000))
    drawn = [[torch.randn_like(each) for each in (q, k, v)] for _ in range(3)]
    exact = [mp.attend(*(each.double() for each in some), scheme, backend="reference") for some in drawn]

    def step(number: int) -> Tensor:
        for each, other in zip((q, k, v), drawn[number % 3], strict=True):
            each.copy_(other)
        return mp.attend(q, k, v, scheme, backend="triton")

    eager = [step(number) for number in range(60)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = [step(number) for number in range(30)]
    graph.replay()
    for some in (eager, recorded):
        for number, out in enumerate(some):
            assert off(out, exact[number % 3]) < 1e-2
            assert torch.equal(out, some[number % 3])
