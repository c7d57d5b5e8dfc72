"""`attend(backend="triton")` with documents, indices and positions, against the specification."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal, everything, sinks, window
from tests.backends.triton.test_attend import DEVICE, GPU, D, H, T, close
from tests.backends.triton.test_attend import inputs as rows_of
from tests.backends.triton.test_attend import made as drawn

pytest.importorskip("triton")

PACKED = torch.tensor([[0] * 5 + [1] * 32, [-1] * 7 + [3] * 12 + [2] * 18], device=DEVICE)
MIXED = torch.tensor([[n % 3 - (n > 33) for n in range(T)]], device=DEVICE)
LEFT = (torch.arange(T, device=DEVICE) - torch.tensor([[0], [11]], device=DEVICE)).clamp(min=0)
PADDED = torch.where(torch.arange(T, device=DEVICE) < torch.tensor([[0], [11]], device=DEVICE), -1, 0)

SCHEMES: dict[str, Callable[[], mp.Scheme]] = {
    "Rope": lambda: mp.Scheme(mp.Rope(D), causal),
    "Alibi": lambda: mp.Scheme(mp.Alibi(H), causal),
    "OffsetAlibi": lambda: mp.Scheme(mp.OffsetAlibi(H), everything),
    "T5Bias": lambda: mp.Scheme(mp.T5Bias(H, buckets=8, reach=20), causal),
    "Kerple, window": lambda: mp.Scheme(mp.Kerple(H), causal & (window(9) | sinks(2))),
    "Rerope": lambda: mp.Scheme(mp.Rope(D), mp.Rerope(7), causal),
    "KeepSinks": lambda: mp.Scheme(mp.Rope(D), mp.Pivot(mp.KeepSinks(mp.Rerope(7), sinks=3), 9), causal),
    "Pivot, LogN": lambda: mp.Scheme(mp.Rope(D), mp.Pivot(mp.Rerope(7), 9), mp.LogN(9), causal),
    "DualChunk": lambda: mp.Scheme(mp.Rope(D), mp.DualChunk(8, 3), causal),
    "Stream": lambda: mp.Scheme(mp.Rope(D), mp.Stream(3, 9)),
}


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return rows_of(b=2)


def both(scheme: mp.Scheme, qkv: tuple[Tensor, ...], **options: object) -> None:
    """Outputs, log-sum-exps and gradients are the specification's."""
    q, k, v = qkv
    leaves = [q, k, v, *(each for each in scheme.parameters() if each.requires_grad)]
    answers = []
    for backend in ("triton", "reference"):
        out, lse = mp.attend(q, k, v, scheme, backend=backend, return_lse=True, **options)
        weights = torch.linspace(-1, 1, out.numel(), device=DEVICE).view_as(out)
        total = (out * weights).sum() + lse.masked_fill(lse.isinf(), 0.0).sum()
        answers.append((out, lse, *torch.autograd.grad(total, leaves, materialize_grads=True)))
    for ours, exact in zip(*answers, strict=True):
        close(ours, exact)


def made(name: str) -> mp.Scheme:
    return drawn(name, SCHEMES)


@pytest.mark.parametrize(
    "name", SCHEMES if GPU else ["Rope", "T5Bias", "Kerple, window", "Pivot, LogN", "DualChunk", "Stream"]
)
def test_packed_documents_are_the_specifications(name: str):
    both(made(name), inputs(), documents=MIXED if name in ("T5Bias", "Rope") else PACKED)


def test_chunks_of_documents_with_any_numbers_are_told_apart():
    """Chunks are numbered within documents, whose own numbers may fill all bits."""
    far = torch.where(PACKED < 0, PACKED, (1 << 60) + PACKED * (1 << 58))
    both(made("DualChunk"), inputs(), documents=far)
    # Chunk 2³¹ of one document beside chunk 0 of the next.
    scheme, apart = mp.Scheme(mp.Rope(D), mp.DualChunk(4, 3), causal), (PACKED == 1) * (1 << 31) + LEFT
    both(scheme, inputs(), documents=(PACKED == 0).long(), index=apart, key_index=apart)


@pytest.mark.parametrize(
    "name", ["Rope", "Alibi", "Rerope", "DualChunk", "Stream"] if GPU else ["Alibi", "DualChunk", "Stream"]
)
def test_left_padding_is_the_specifications(name: str):
    both(made(name), inputs(), key_index=LEFT, key_documents=PADDED)


FAR_ON = (1 << 31) - 20


@pytest.mark.parametrize("name", ["Alibi", "T5Bias", "Kerple, window", "Rerope", "KeepSinks", "Cope"])
def test_indices_past_32_bits_are_the_specifications(name: str):
    """Of two documents in a row one crosses 2³¹, and one has the first keys, which are sinks."""
    schemes = SCHEMES | {"Cope": lambda: mp.Scheme(mp.Cope(D, 6), causal)}
    documents = (torch.arange(T, device=DEVICE) >= 9)[None].long()
    index = torch.where(documents == 0, torch.arange(T, device=DEVICE), torch.arange(T, device=DEVICE) + FAR_ON)
    scheme, given = drawn(name, schemes).requires_grad_(False), rows_of(b=1)
    options = {"index": index, "key_index": index, "documents": documents}
    if name == "Kerple, window":
        # The bias has a number for every distance, which indices do not bound.
        scheme = mp.Scheme(mp.Alibi(H), causal & (window(9) | sinks(2)))
    both(scheme, given, **options)
    q, k, v = (each.detach() for each in given)
    last = options | {"index": index[:, -2:], "documents": documents[:, -2:], "key_documents": documents}
    if name != "Cope":
        close(*(mp.attend(q[:, :, -2:], k, v, scheme, backend=each, **last) for each in ("triton", "reference")))


@pytest.mark.parametrize("t", [2, T])
@pytest.mark.parametrize("name", ["Alibi", "Rope"])
def test_distances_past_30_bits_give_no_number(name: str, t: int):
    """The kernels cannot measure them, and on a GPU nobody looks at indices before: NaN, in these rows alone."""
    q, k, v = (each.detach() for each in rows_of(b=2))
    index = torch.arange(T, device=DEVICE).repeat(2, 1)
    index[1, -1] = 1 << 30
    with torch.no_grad():
        out = mp.attend(q[:, :, T - t :], k, v, made(name), index=index[:, T - t :], key_index=index, backend="triton")
    assert out[0].isfinite().all()
    assert out[1, :, -1].isnan().all()


def test_a_range_beside_documents_counts_through_the_row():
    both(made("T5Bias"), inputs(), index=range(T), key_index=range(T), documents=PACKED)


def test_positions_turn_and_nothing_else_reads_them():
    both(made("Rope"), inputs(), position=torch.arange(T, device=DEVICE) * 0.5)


@pytest.mark.parametrize("name", ["Rope", "Alibi", "T5Bias", "Rerope"] if GPU else ["Rope", "T5Bias"])
def test_ragged_rows_decode_as_the_specification(name: str):
    scheme = made(name)
    q, k, v = (each.detach() for each in inputs())
    for t in (1, 3):
        index, known = LEFT[:, T - t :], {"key_index": LEFT, "key_documents": PADDED}
        with torch.no_grad():
            ours, exact = (
                mp.attend(q[:, :, :t], k, v, scheme, index=index, backend=backend, **known)
                for backend in ("triton", "reference")
            )
        close(ours, exact)


@pytest.mark.parametrize(
    ("scheme", "options", "says"),
    [
        (
            lambda: mp.Scheme(mp.Alibi(H), causal),
            {"position": torch.arange(T, device=DEVICE) * 2},
            f"Alibi({H}) bends by where tokens stand, and the kernels measure by their indices",
        ),
        (
            lambda: mp.Scheme(mp.Rope(D), mp.Rerope(7), causal),
            {"position": torch.arange(T, device=DEVICE) * 2},
            "Rerope(7) goes by where tokens stand, and the kernels measure by their indices",
        ),
        (
            lambda: mp.Scheme(mp.Kerple(H), causal),
            {"key_index": LEFT},
            "has a number for every distance, and given indices do not say how many there are",
        ),
        (
            lambda: mp.Scheme(mp.T5Bias(H, buckets=8, reach=20), causal),
            {"key_index": LEFT},
            "learns by distance, which the kernels sum along diagonals: leave out index",
        ),
        (
            lambda: mp.Scheme(mp.Alibi(H, stretch=mp.AlibiDynamicNtk(9)), causal),
            {"documents": PACKED},
            "follows the length of each text, and the kernels take one for all",
        ),
        (
            lambda: mp.Scheme(mp.Alibi(H, stretch=mp.AlibiDynamicNtk(9)), causal),
            {"length": torch.tensor([40, 99], device=DEVICE)},
            "follows the length of each text, and the kernels take one for all",
        ),
        (
            lambda: mp.Scheme(mp.Rope(D), mp.DualChunk(8, 3), causal & window(20)),
            {},
            "DualChunk(8, 3) with a window is not in these kernels yet",
        ),
        (
            lambda: mp.Scheme(mp.Rope(D), mp.Rerope(7), causal & (window(20) | sinks(2))),
            {},
            "Rerope(7) with a window with sinks is not in these kernels yet",
        ),
    ],
    ids=["Alibi", "Rerope", "Kerple", "T5Bias", "AlibiDynamicNtk", "two lengths", "DualChunk, window", "Rerope, sinks"],
)
def test_what_is_refused_says_why(scheme: Callable[[], mp.Scheme], options: dict[str, Tensor], says: str):
    q, k, v = inputs()
    with pytest.raises(mp.CannotRun) as error:
        mp.attend(q, k, v, scheme().to(DEVICE), backend="triton", **options)
    assert says in str(error.value)


@pytest.mark.parametrize("parts", [(), (mp.Rope(16),), (mp.Rope(16), mp.LogN(5))], ids=["bare", "turned", "sharpened"])
def test_tokens_of_documents_that_lie_anywhere_come_in_their_order(parts: tuple[object, ...]):
    documents = torch.tensor([[0, 3, 0, 3, 3, -1, 0, 7, 3, 0, 7, 7, 0, 3, -1, 0, 3, 3, 7, 0]], device=DEVICE)
    torch.manual_seed(3)
    given = [torch.randn(1, heads, 20, 16, device=DEVICE).requires_grad_() for heads in (2, 1, 1)]
    scheme, answers = mp.Scheme(*parts, mp.causal), []
    for backend in ("triton", "reference"):
        out = mp.attend(*given, scheme, documents=documents, backend=backend)
        answers.append([out, *torch.autograd.grad((out * torch.linspace(-1, 1, 16, device=DEVICE)).sum(), given)])
    for ours, exact in zip(*answers, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)


def test_nobody_numbers_tokens_whose_order_is_all_that_counts(monkeypatch: pytest.MonkeyPatch):
    def numbered(documents: Tensor) -> Tensor:
        raise AssertionError("numbered")

    monkeypatch.setattr("milepost.call.resolve.order_within", numbered)
    q = torch.randn(1, 1, 40, 16, device=DEVICE)
    documents = torch.arange(40, device=DEVICE)[None] // 9
    mp.attend(q, q, q, mp.Scheme(mp.causal), documents=documents, backend="triton")
    with pytest.raises(AssertionError, match="numbered"):
        mp.attend(q, q, q, mp.Scheme(mp.Alibi(1), mp.causal), documents=documents, backend="triton")
