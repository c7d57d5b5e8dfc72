"""What a cache holds while text streams through it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import milepost as mp
from milepost import explore


@pytest.mark.parametrize("stream", [mp.Stream(4, 28), mp.Stream(2, 5, evict="after"), mp.Stream(0, 6), mp.Stream(3, 1)])
def test_a_stream_is_a_list_that_drops_the_first_token_after_the_sinks(stream: Any):
    found = explore.stream_cache(stream, length=50)
    held: list[int] = []
    most = stream.sinks + stream.window
    for step in range(50):
        if stream.evict == "before" and len(held) == most:
            del held[stream.sinks]
        held.append(step)
        wanted = np.full(50, np.nan)
        wanted[held] = len(held) - 1 - np.arange(len(held))
        assert np.array_equal(found["distance seen"][step], wanted, equal_nan=True)
        if stream.evict == "after" and len(held) > most:
            del held[stream.sinks]
        # What stays is what a later token sees: the oldest goes at once where it would go before the next comes.
        stays = [each for n, each in enumerate(held) if n != stream.sinks] if len(held) == most else held
        stays = held if stream.evict == "after" else stays
        assert np.flatnonzero(np.isfinite(found["slot kept"][step])).tolist() == stays
        assert found["kept"][step] == len(stays)


def test_sinks_stay_at_the_greatest_distance_and_nothing_grows():
    found = explore.stream_cache(length=200)
    assert (found["distance seen"][40:, :4] == [31, 30, 29, 28]).all()
    assert found["kept"][-1] == 31
    assert "the last token saw 32: 4 sinks and the last 28. No distance was above 31" in found.says


def test_the_cache_of_transformers_keeps_the_same_tokens():
    pytest.importorskip("transformers")
    from milepost.hf.contexts.streaming import StreamingCache

    for evict in ("before", "after"):
        found = explore.stream_cache(mp.Stream(3, 6, evict=evict), length=30)
        cache = StreamingCache(3, 6, evict)
        for step in range(30):
            cache.begin(None, 1, 1, torch.device("cpu"), False)
            token = torch.full((1, 1, 1, 2), float(step))
            seen, _ = cache.update(token, token, 0)
            layer: Any = cache.layers[0]
            assert seen[0, 0, :, 0].tolist() == np.flatnonzero(np.isfinite(found["distance seen"][step])).tolist()
            assert layer.keys[0, 0, :, 0].tolist() == np.flatnonzero(np.isfinite(found["slot kept"][step])).tolist()


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (2, "After 2 tokens the cache keeps 2 of them, and the last token saw all 2."),
        (32, "After 32 tokens the cache keeps 31 of them, and the last token saw all 32."),
        (33, "After 33 tokens the cache keeps 31 of them, and the last token saw 32: 4 sinks and the last 28."),
    ],
)
def test_a_short_text_is_seen_whole(length: int, said: str):
    assert explore.stream_cache(mp.Stream(4, 28), length=length).says.startswith(said)


def test_what_is_no_stream_is_refused():
    with pytest.raises(TypeError, match=re.escape("stream_cache: Rerope(64) is no Stream; give one, such as")):
        explore.stream_cache(mp.Rerope(64))
    with pytest.raises(ValueError, match=re.escape("stream_cache(length=1): length must be at least 2")):
        explore.stream_cache(length=1)
