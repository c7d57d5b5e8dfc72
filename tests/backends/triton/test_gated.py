"""Numbers by a count of open gates, in the kernels: against the formula, pair by pair, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal, window
from milepost.call.call import CannotRun
from tests.backends.triton.dense import DEVICE, GPU

pytest.importorskip("triton")

from milepost.backends.triton.attention import flash
from milepost.backends.triton.cope import kernels as gates
from milepost.backends.triton.cope import operators as gated_module
from milepost.backends.triton.cope.operators import gated
from milepost.backends.triton.runtime import configs
from milepost.backends.triton.runtime.configs import Config

CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")


def drawn(b: int, h: int, g: int, t: int, s: int, n: int, size: float = 1.0, d: int = 16) -> list[Tensor]:
    """q, k, v and entries, in float64. size: how far scores are from 0, and with them gates from 1/2."""
    made = torch.Generator().manual_seed(5)
    shapes = (b, h, t, d), (b, g, s, d), (b, g, s, 12), (b, h, t, n)
    q, k, v, entries = (torch.randn(shape, generator=made, dtype=torch.float64).to(DEVICE) for shape in shapes)
    return [q * size, k, v, entries]


def by_hand(q: Tensor, k: Tensor, v: Tensor, entries: Tensor, sees: Callable[[int, int, int], bool]) -> list[Tensor]:
    """out and lse, with sums over keys as the formula has them. sees: whether, in a row, a query sees a key."""
    (b, h, t, d), (_, g, s, _) = q.shape, k.shape
    most = entries.shape[3] - 1
    out, lse = torch.zeros(b, h, t, v.shape[3], dtype=q.dtype), torch.full((b, h, t), -torch.inf, dtype=q.dtype)
    outs, lses = [], []
    for row in range(b):
        for head in range(h):
            shared = head // (h // g)
            for i in range(t):
                seen = [j for j in range(s) if sees(row, i, j)]
                if not seen:
                    outs.append(out[row, head, i])
                    lses.append(lse[row, head, i])
                    continue
                scores = k[row, shared, seen] @ q[row, head, i] / math.sqrt(d)
                count = scores.sigmoid().flip(0).cumsum(0).flip(0)
                at = count.detach().floor().long().clamp(max=most)
                share = torch.where(at < most, count - at, 0.0)
                here, above = entries[row, head, i, at], entries[row, head, i, (at + 1).clamp(max=most)]
                bent = scores + here + share * (above - here)
                lses.append(bent.logsumexp(0))
                outs.append(bent.softmax(0) @ v[row, shared, seen])
    return [torch.stack(outs).view(b, h, t, -1), torch.stack(lses).view(b, h, t)]


def held(given: list[Tensor], sees: Callable[[int, int, int], bool], **options: object) -> None:
    """Outputs and all four gradients are those of the formula."""
    exact = [each.detach().cpu().requires_grad_() for each in given]
    ours = [each.detach().float().requires_grad_() for each in given]
    wanted, found = by_hand(*exact, sees), gated(*ours, **options)
    finite = wanted[1].isfinite()
    made = torch.Generator().manual_seed(6)
    weights = [torch.randn(each.shape, generator=made, dtype=torch.float64) for each in wanted]

    def total(pair: list[Tensor], weights: list[Tensor], finite: Tensor) -> Tensor:
        return (pair[0] * weights[0]).sum() + (pair[1] * weights[1])[finite].sum()

    on_device = [each.float().to(DEVICE) for each in weights]
    grads = torch.autograd.grad(total(wanted, weights, finite), exact)
    ours_too = torch.autograd.grad(total([*found], on_device, finite.to(DEVICE)), ours)
    for one, other in zip((*found, *ours_too), (*wanted, *grads), strict=True):
        torch.testing.assert_close(one.detach().double().cpu(), other.detach(), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((1, 2, 1, 40, 40, 5), 1.0),
        ((1, 1, 1, 70, 70, 3), 1.0),
        ((1, 2, 2, 33, 33, 64), 1.0),
        ((1, 1, 1, 36, 36, 12), 6.0),
        ((1, 1, 1, 35, 35, 2), 0.1),
    ],
    ids=["grouped", "mostly far", "never full", "open or shut", "two entries"],
)
def test_it_is_the_formula_and_its_gradients(shape: tuple[int, ...], size: float):
    held(drawn(*shape, size), lambda row, i, j: j <= i)


@pytest.mark.parametrize(
    ("far", "documents", "shape"),
    [
        (64, None, (1, 2, 1, 90, 90, 3)),
        (32, None, (1, 1, 1, 60, 100, 4)),
        (16, [0] * 60 + [1] * 20 + [-1] * 30, (1, 1, 1, 110, 110, 3)),
    ],
    ids=["grouped", "more keys", "packed"],
)
def test_tiles_of_near_and_far_keys_have_any_sizes(far: int, documents: list[int] | None, shape: tuple[int, ...]):
    """Those of the pass over rows, and the larger ones of the pass over keys, that reads what the first one left."""
    offset = shape[4] - shape[3]
    own = None if documents is None else torch.tensor([documents], device=DEVICE)
    rows, keys, beyond = Config(32, 16, 4, 1, False, far=far), Config(16, 16, 4, 1, False), Config(32, 32, 4, 1, False)
    options = {"offset": offset} if own is None else {"documents": own, "key_documents": own}
    with configs.override(gates=rows, gates_rows=rows, gates_keys=keys, gates_far=beyond):
        held(
            drawn(*shape),
            lambda row, i, j: (
                j <= i + offset and (documents is None or (documents[i] >= 0 and documents[i] == documents[j]))
            ),
            **options,
        )


def test_a_block_between_far_rows_may_be_near(monkeypatch: pytest.MonkeyPatch):
    """Rows whose gates are shut have all keys near, wherever they stand; blocks of rows follow one another here."""
    monkeypatch.setattr(gated_module, "ROOM", 1)
    q, k, v, entries = drawn(1, 1, 1, 140, 140, 4, d=1)
    q, k = q.abs() + 2, k.abs() + 2
    q[:, :, 96:128] *= -1
    rows, keys, beyond = Config(32, 16, 4, 1, False, far=32), Config(16, 32, 4, 1, False), Config(16, 32, 4, 1, False)
    with configs.override(gates=rows, gates_rows=rows, gates_keys=keys, gates_far=beyond):
        # Memory that is handed out holds the largest numbers then, of keys that nobody has.
        torch.use_deterministic_algorithms(True)
        try:
            held([q, k, v, entries], lambda row, i, j: j <= i)
        finally:
            torch.use_deterministic_algorithms(False)


def test_rows_in_any_order_are_done_by_one_pass_or_the_other():
    """A block of rows may see one half of a block of far keys, and not the other."""
    documents = [0] * 32 + [1] * 32 + [0] * 64 + [1] * 64
    own = torch.tensor([documents], device=DEVICE)
    tiles = {name: Config(32, 32, 4, 1, False) for name in ("gates", "gates_rows", "gates_keys")}
    with configs.override(**tiles, gates_far=Config(32, 64, 4, 1, False)):
        held(
            drawn(1, 1, 1, 192, 192, 3, d=2),
            lambda row, i, j: j <= i and documents[i] == documents[j],
            documents=own,
            key_documents=own,
        )


@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_tiles_of_all_passes_fit_together(width: int, packed: bool, itemsize: int):
    rows, keys, far = (
        configs.choose(name, width, itemsize, False, packed) for name in ("gates_rows", "gates_keys", "gates_far")
    )
    assert far.keys % keys.keys == 0
    assert keys.keys % rows.keys == 0
    assert rows.rows % keys.rows == rows.rows % far.rows == 0


@pytest.mark.parametrize("offset", [30, -5], ids=["later", "before all keys"])
def test_queries_that_stand_elsewhere(offset: int):
    held(drawn(1, 1, 1, 20, 40, 6), lambda row, i, j: j <= i + offset, offset=offset)


def test_documents_and_indices_of_their_own():
    documents = torch.tensor([[0] * 9 + [4] * 20 + [-1] * 11, [2] * 35 + [-1] + [2] * 4])
    index = torch.stack([torch.arange(40) % 29, torch.arange(40) + 1_000_000])

    def sees(row: int, i: int, j: int) -> bool:
        own = documents[row]
        return bool(own[i] >= 0 and own[i] == own[j] and index[row, j] <= index[row, i])

    documents, at = documents.to(DEVICE), index.to(DEVICE)
    held(
        drawn(2, 1, 1, 40, 40, 4), sees, documents=documents, key_documents=documents, index=at, key_index=at
    )  # fmt: skip


@pytest.mark.parametrize(
    "documents", [[0] * 50 + [1] * 50, [0] * 20 + [-1] * 70 + [0] * 10], ids=["two", "a gap of padding"]
)
def test_memory_that_nobody_wrote_is_never_read(documents: list[int]):
    """Blocks of rows that see nothing of a block of keys leave nothing for it; what lies there may be no number."""
    own = torch.tensor([documents])
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        # Memory that is handed out then holds NaN.
        held(
            drawn(1, 1, 1, 100, 100, 4),
            lambda row, i, j: documents[i] >= 0 and documents[i] == documents[j] and j <= i,
            documents=own.to(DEVICE),
            key_documents=own.to(DEVICE),
        )
    finally:
        torch.use_deterministic_algorithms(before)


def test_packed_texts_read_the_keys_of_their_own(monkeypatch: pytest.MonkeyPatch):
    """Indices begin anew in every document; sorted by them alone, each block of keys would have tokens of all."""
    nears, bounds = [], flash.bounds
    monkeypatch.setattr(flash, "bounds", lambda *given: nears.append(bounds(*given)) or nears[-1])
    q, k, v, _ = (each.float() for each in drawn(1, 1, 1, 256, 256, 2))
    documents = torch.arange(256, device=DEVICE)[None] // 64
    mp.attend(q, k, v, mp.Scheme(mp.Cope(16, 4), causal).to(DEVICE), backend="triton", documents=documents)
    start, end = nears[0][0][0, :, 2], nears[0][0][0, :, 5]
    assert (end - start).max() <= 64


def test_a_query_that_is_no_number_is_answered_by_none():
    q, k, v, _ = (each.float() for each in drawn(1, 1, 1, 20, 20, 2))
    q[:, :, 7] = torch.nan
    scheme = mp.Scheme(mp.Cope(16, 4), causal).to(DEVICE)
    ours, exact = (mp.attend(q, k, v, scheme, backend=name) for name in ("triton", "reference"))
    torch.testing.assert_close(ours, exact, equal_nan=True)
    assert ours[:, :, 7].isnan().all()


def test_rows_that_do_not_fit_at_once_follow_one_another(monkeypatch: pytest.MonkeyPatch):
    launched, launch = [], gated_module.launch
    monkeypatch.setattr(gated_module, "ROOM", 1)
    monkeypatch.setattr(gated_module, "launch", lambda kernel, *args, **named: launched.append(kernel) or launch(
        kernel, *args, **named
    ))  # fmt: skip
    held(drawn(1, 1, 1, 100, 100, 9, d=1), lambda row, i, j: j <= i)
    assert launched.count(gates.backward_keys) > 1


def test_a_block_with_padding_has_far_keys_too(monkeypatch: pytest.MonkeyPatch):
    """Rows of padding count nothing, and nobody waits until they have."""
    nears, launch = [], gated_module.launch

    def spied(kernel: object, grid: tuple[int, ...], *args: object, **named: object) -> None:
        launch(kernel, grid, *args, **named)
        if kernel is gates.backward_rows:
            nears.append(args[11])

    monkeypatch.setattr(gated_module, "launch", spied)
    t = 160
    documents = torch.where(torch.arange(t, device=DEVICE) < t - 5, 0, -1)[None]
    q, k, v, entries = (each.float().requires_grad_() for each in drawn(1, 1, 1, t, t, 2, 0.1))
    gated(q, k, v, entries, documents=documents, key_documents=documents)[0].sum().backward()
    near = nears[0].flatten()[: -(-t // 32)].tolist()
    assert near[-1] >= 64
    assert near[0] == 0


def test_gates_of_one_half_have_counts_at_which_there_is_no_slope():
    """Keys of zeros, as they may start: every second count is whole, and there the specification has no slope."""
    scheme = mp.Scheme(mp.Cope(16, 6), causal).to(DEVICE)
    torch.nn.init.normal_(scheme.parts[0].table)
    q, k, v, _ = (each.float() for each in drawn(1, 1, 1, 20, 20, 2))
    leaves = [q.requires_grad_(), torch.zeros_like(k, requires_grad=True), v.requires_grad_(), *scheme.parameters()]
    weights = torch.linspace(-1, 1, v.numel(), device=DEVICE).view_as(v)
    answers = []
    for backend in ("triton", "reference"):
        out = mp.attend(*leaves[:3], scheme, backend=backend)
        answers.append(torch.autograd.grad((out * weights).sum(), leaves))
    for ours, exact in zip(*answers, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)


def test_one_entry_is_refused():
    q, k, v, entries = (each.float() for each in drawn(1, 1, 1, 8, 8, 1))
    with pytest.raises(ValueError, match="between at least two numbers"):
        gated(q, k, v, entries)


def test_no_keys_and_no_queries():
    q, k, v, entries = (each.float() for each in drawn(1, 2, 1, 4, 4, 3))
    out, lse = gated(q, k[:, :, :0], v[:, :, :0], entries)
    assert (out == 0).all()
    assert (lse == -torch.inf).all()
    assert gated(q[:, :, :0], k, v, entries[:, :, :0])[0].shape == (1, 2, 0, 12)


@pytest.mark.parametrize("turned", [False, True], ids=["heads first", "tokens first"])
def test_torch_checks_the_operators(turned: bool):
    q, k, v, entries = (each.float() for each in drawn(1, 2, 1, 20, 20, 4))
    if turned:
        q, k, v = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (q, k, v))
    torch.library.opcheck(torch.ops.milepost.gated.default, (q, k, v, entries, 0.25, 0), test_utils=CHECKS)
    out, lse = torch.ops.milepost.gated(q, k, v, entries, 0.25, 0)
    inputs = (torch.randn_like(out), None, q, k, v, entries, out, lse, 0.25, 0)
    torch.library.opcheck(torch.ops.milepost.gated_backward.default, inputs, test_utils=CHECKS)


@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_it_traces_whole_with_its_gradient():
    scheme = mp.Scheme(mp.Rope(16), mp.Cope(16, 5), causal).to(DEVICE)
    torch.nn.init.normal_(scheme.parts[1].table)
    q, k, v, _ = (each.float().requires_grad_() for each in drawn(1, 2, 1, 20, 20, 2))

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return mp.attend(q, k, v, scheme, backend="triton")

    whole = torch.compile(ours, fullgraph=True, backend="inductor" if GPU else "aot_eager")
    for traced, eager in zip(
        *(torch.autograd.grad(each(q, k, v).sum(), [q, k, v, *scheme.parameters()]) for each in (whole, ours)),
        strict=True,
    ):
        torch.testing.assert_close(traced, eager)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((mp.Cope(16, 4, gates="values"), causal), r"Cope.* opens gates by something else than scores"),
        ((mp.Cope(16, 4), mp.Alibi(2), causal), r"Cope.* counts scores that Alibi\(2.*\) changed"),
        ((mp.Rope(16), mp.Cope(16, 4), mp.LogN(9), causal), r"Cope.* counts scores that LogN.* changed"),
        ((mp.Cope(16, 4), window(5)), r"Cope.* with a window"),
    ],
)
def test_what_is_not_in_the_kernels_is_refused_by_name(parts: tuple[object, ...], said: str):
    q, k, v, _ = (each.float() for each in drawn(1, 2, 1, 9, 9, 2))
    with pytest.raises(CannotRun, match=said):
        mp.attend(q, k, v, mp.Scheme(*parts).to(DEVICE), backend="triton")
