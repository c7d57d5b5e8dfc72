"""Order and position apart: which keys are visible, and which come first, goes by the index."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import milepost as mp
from milepost import Alibi, Dilute, DualChunk, KeepSinks, Pivot, Rerope, Rope, Scheme, Stream, attend, causal
from tests.oracles import assert_same, inputs, turned

T, SINKS, WINDOW = 14, 2, 4
AT = {
    "one later": torch.arange(T) + 1,
    "far out": torch.arange(T) + 1000,
    "with gaps": torch.arange(T) * 3,
    "starting over": torch.arange(T) % 9,
    "backwards": torch.arange(T).flip(0),
}
BACKENDS = [None, "reference", "chunked", "flex"]


def asked(q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, at: Tensor, backend: str | None) -> Tensor | None:
    """The output, or None where the backend refuses by name."""
    try:
        with torch.no_grad():
            return attend(q, k, v, scheme, position=at, key_position=at, backend=backend)
    except RuntimeError as refusal:
        assert backend == "flex"
        assert "order of tokens" in str(refusal)
        return None


def rotary(q: Tensor, k: Tensor, distance: Callable[[int, int], float | None]) -> Tensor:
    """The scores of RoPE [b h t s] where the key j lies distance(i, j) behind the query i; −∞ where that is None."""
    scores = torch.full((*q.shape[:3], k.shape[2]), -math.inf, dtype=torch.float64)
    keys = turned(k.repeat_interleave(q.shape[1] // k.shape[1], 1), torch.tensor(0))
    for i in range(q.shape[2]):
        for j in range(k.shape[2]):
            far = distance(i, j)
            if far is not None:
                pairs = turned(q[:, :, i], torch.tensor(far)) * keys[:, :, j].conj()
                scores[:, :, i, j] = pairs.real.sum(-1) / math.sqrt(q.shape[3])
    return scores


def mixed(scores: Tensor, v: Tensor) -> Tensor:
    return scores.softmax(-1) @ v.repeat_interleave(scores.shape[1] // v.shape[1], 1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", AT)
def test_sinks_are_the_first_tokens_of_the_text_wherever_they_stand(name: str, backend: str | None):
    """A far sink lies as far behind as in a cache of just those keys, whose slots count tokens."""
    (q, k, v), at = inputs(t=T, dv=5), AT[name]

    def distance(i: int, j: int) -> float | None:
        if 0 <= i - j < WINDOW:
            return float(at[i] - at[j])
        return min(i, SINKS + WINDOW - 1) - j if j < SINKS and j <= i else None

    found = asked(q, k, v, Scheme(Rope(8), Stream(SINKS, WINDOW)), at, backend)
    if found is not None:
        assert_same(found, mixed(rotary(q, k, distance), v))


def test_a_shift_of_all_positions_changes_nothing_in_a_stream():
    q, k, v = inputs(t=T)
    for part in (Rope(8), Alibi(4)):
        scheme = Scheme(part, Stream(SINKS, WINDOW))
        moved = attend(q, k, v, scheme, position=AT["far out"], key_position=AT["far out"])
        assert_same(moved, attend(q, k, v, scheme), within=1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", AT)
def test_kept_sinks_are_the_first_tokens_of_the_text_wherever_they_stand(name: str, backend: str | None):
    (q, k, v), at = inputs(t=T, dv=5), AT[name]
    near, trained = 4, 6

    def distance(i: int, j: int) -> float | None:
        if j > i:
            return None
        far = float(at[i] - at[j])
        return far if abs(far) < near else math.copysign(near, far)

    scores = rotary(q, k, distance)
    lowered = scores.clone()
    for i in range(T):
        by = math.log(max(1, i + 1 - near) / (trained - near))
        for j in range(i + 1):
            if abs(int(at[i] - at[j])) >= near and j >= SINKS:
                lowered[:, :, i, j] -= max(0.0, by)
    found = asked(q, k, v, Scheme(Rope(8), Dilute(KeepSinks(Rerope(near), sinks=SINKS), trained), causal), at, backend)
    if found is not None:
        assert_same(found, mixed(lowered, v))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", AT)
def test_dual_chunk_shows_what_is_visible_wherever_it_stands(name: str, backend: str | None):
    """Keys ahead by position and behind by index are placed as those behind are, mirrored."""
    (q, k, v), at = inputs(t=T, dv=5), AT[name]
    chunk, local = 6, 2
    size = chunk - local

    def behind(p: int, r: int) -> int:
        place = [p % size, min(p % size + size, chunk), min(2 * size - 1, chunk)][min(p // size - r // size, 2)]
        return place - r % size

    def distance(i: int, j: int) -> float | None:
        if j > i:
            return None
        p, r = int(at[i]), int(at[j])
        return behind(p, r) if p // size >= r // size else -behind(r, p)

    found = asked(q, k, v, Scheme(Rope(8), DualChunk(chunk, local), causal), at, backend)
    assert found is not None
    assert_same(found, mixed(rotary(q, k, distance), v))


@pytest.mark.parametrize(
    "place", [Stream(2, 4), KeepSinks(Rerope(4), sinks=2), Pivot(KeepSinks(Rerope(4), sinks=2), 5)], ids=str
)
def test_what_goes_by_the_index_decodes_as_one_pass_at_any_position(place: Any):
    (q, k, v), at = inputs(t=T), AT["one later"]
    scheme = Scheme(Rope(8), place, causal)
    whole = attend(q, k, v, scheme, position=at, key_position=at)
    last = attend(q[:, :, -3:], k, v, scheme, position=at[-3:], key_position=at)
    assert_same(last, whole[:, :, -3:])


@pytest.mark.slow
def test_a_range_of_any_length_traces_whole():
    torch._dynamo.reset()
    scheme, compiled = Scheme(Rope(8), causal), torch.compile(attend, backend="eager", fullgraph=True)
    for t in (7, 9, 11):
        q, k, v = inputs(t=t)
        found = compiled(q, k, v, scheme, index=range(2, t + 2), key_index=range(2, t + 2))
        assert_same(found, attend(q, k, v, scheme, index=range(2, t + 2), key_index=range(2, t + 2)))
    with pytest.raises(ValueError, match=r"index is range\(2, 9\), 7 indices for 11 tokens"):
        attend(q, k, v, scheme, index=range(2, 9), key_index=range(2, 13))


def _told(name: str, each: Tensor) -> dict[str, Any]:
    return {"index": each, "key_index": each} if name == "index" else {name: each}


BY_ROW: dict[str, Tensor] = {
    "documents": torch.tensor([[0] * 10, [-1] * 2 + [0] * 2 + [1] * 6]),
    "index": torch.stack((torch.arange(10), torch.arange(10) * 2)),
    "position": torch.stack((torch.arange(10.0), torch.arange(10) * 0.5)),
    "length": torch.tensor([[10, 11], [12, 13]]),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", BY_ROW)
@pytest.mark.parametrize("part", [mp.Rope(8), mp.Xpos(8), mp.Rope(8, stretch=mp.DynamicNtk(4))], ids=str)
def test_what_is_said_of_tokens_may_be_mapped_over(part: object, name: str):
    scheme, (q, k, v) = mp.Scheme(part, causal), inputs(t=10)

    def ours(each: Tensor) -> Tensor:
        return mp.attend(q, k, v, scheme, **_told(name, each))

    assert_same(torch.vmap(ours)(BY_ROW[name]), torch.stack([ours(each) for each in BY_ROW[name]]))


@pytest.mark.parametrize("name", BY_ROW)
def test_fake_tensors_have_no_values_to_check(name: str):
    scheme, (q, k, v), each = mp.Scheme(mp.Xpos(8), causal), inputs(t=10), BY_ROW[name][0]
    with FakeTensorMode() as mode:
        given = [mode.from_tensor(each) for each in (q, k, v)]
        told = _told(name, mode.from_tensor(each))
        assert mp.attend(*given, scheme, **told).shape == (2, 4, 10, 8)
