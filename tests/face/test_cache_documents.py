"""Documents of keys out of a cache: an index restarts in each as in one pass, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal
from tests.oracles import assert_same, inputs
from tests.refusals import refused

T = 14
PADDED = torch.tensor([-1] * 5 + [0] * 9)
SCHEMES: dict[str, list[object]] = {
    "sinks": [mp.Rope(8), causal & (mp.window(4) | mp.sinks(2))],
    "log-n": [mp.Rope(8), mp.LogN(4), causal],
    "dynamic": [mp.Rope(8, stretch=mp.DynamicNtk(5, factor=2.0)), causal],
    "chunks": [mp.Rope(8), causal & mp.chunks(4)],
    "stream": [mp.Rope(8), mp.Stream(2, 4)],
}
NO_CHANGE: dict[str, Callable[[Any], Any]] = {
    "narrow": lambda keys: keys.narrow(2, 0, T),
    "split": lambda keys: keys.split(T, 2)[0],
    "index_select": lambda keys: keys.index_select(2, torch.arange(T)),
    "a list": lambda keys: keys[:, :, list(range(T))],
    "cat of halves": lambda keys: torch.cat([keys[:, :, :7], keys[:, :, 7:]], 2),
    "cat of chunks": lambda keys: torch.cat(keys.chunk(3, 2), 2),
    "cat of rows": lambda keys: torch.cat([keys[:1], keys[1:]], 0),
}
CHANGED: dict[str, Callable[[Any], Any]] = {
    "backwards": lambda keys: keys[:, :, list(range(T))[::-1]],
    "a part": lambda keys: torch.cat([keys[:, :, :4], keys[:, :, 3:13]], 2),
    "turned around": lambda keys: torch.cat([keys[:, :, 7:], keys[:, :, :7]], 2),
}


def filled(scheme: mp.Scheme, turned: bool, **how: Any) -> tuple[mp.Cache, Tensor, Tensor, Tensor]:
    q, k, v = inputs(t=T)
    cache = mp.Cache(scheme) if turned else mp.Cache()
    cache.append(k, v, **how)
    return cache, q, k, v


def alone(scheme: mp.Scheme, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last token's row of the text without its padding."""
    return mp.attend(q[:, :, 5:], k[:, :, 5:], v[:, :, 5:], scheme)[:, :, -1:]


@pytest.mark.parametrize("turned", [True, False], ids=["turned", "raw"])
@pytest.mark.parametrize("name", SCHEMES)
def test_operations_that_change_nothing_leave_the_restart(name: str, turned: bool):
    scheme = mp.Scheme(*SCHEMES[name])
    cache, q, k, v = filled(scheme, turned)
    for change in NO_CHANGE.values():
        out = mp.attend(q[:, :, -1:], change(cache.keys), cache.values, scheme, key_documents=PADDED)
        assert_same(out, alone(scheme, q, k, v))
    for change in CHANGED.values():
        text = r"attend: these are not known to be all tokens of their cache.*append keys with their index"
        with pytest.raises(ValueError, match=text):
            mp.attend(q[:, :, -1:], change(cache.keys), cache.values, scheme, key_documents=PADDED)


@pytest.mark.parametrize("name", ["sinks", "stream"])
def test_keys_between_sinks_and_window_that_were_trimmed_are_missed_by_name(name: str):
    scheme = mp.Scheme(*SCHEMES[name])
    cache, q, _, _ = filled(scheme, True)
    cache.trim(scheme)
    kept = cache.index[0].clone()
    with pytest.raises(ValueError, match=r"not known to be all tokens.*append keys with their index"):
        mp.attend(q[:, :, -1:], cache.keys, cache.values, scheme, key_documents=PADDED[kept])
    # Their own indices say which are sinks.
    own = (torch.arange(T) - 5).clamp(min=0)
    cache, q, k, v = filled(scheme, True, index=own)
    want = alone(scheme, q, k, v)
    assert_same(mp.attend(q[:, :, -1:], cache.keys, cache.values, scheme, key_documents=PADDED), want)


@pytest.mark.parametrize("turned", [True, False], ids=["turned", "raw"])
def test_an_index_that_was_given_restarts_nowhere_whatever_its_form(turned: bool):
    scheme = mp.Scheme(*SCHEMES["sinks"])
    q, k, v = inputs(t=T)
    want = mp.attend(q, k, v, scheme, documents=PADDED, index=range(T), key_index=range(T))[:, :, -1:]
    assert (want - alone(scheme, q, k, v)).abs().max() > 0.1
    counted, _, _, _ = filled(scheme, turned)
    for given in (range(T), torch.arange(T), torch.arange(T).expand(2, -1), counted.index):
        cache, _, _, _ = filled(scheme, turned, index=given)
        assert_same(mp.attend(q[:, :, -1:], cache.keys, cache.values, scheme, key_documents=PADDED), want)


@pytest.mark.parametrize("turned", [True, False], ids=["turned", "raw"])
@pytest.mark.parametrize("joined", [False, True], ids=["one cache", "cat"])
def test_an_index_that_was_given_after_tokens_were_counted_is_refused(turned: bool, joined: bool):
    # The given ones were counted anew with the others, even where they go on from these.
    scheme = mp.Scheme(*SCHEMES["sinks"])
    q, k, v = inputs(t=T)
    cache = mp.Cache(scheme) if turned else mp.Cache()
    other = mp.Cache(scheme) if turned else mp.Cache()
    cache.append(k[:, :, :6], v[:, :, :6])
    (other if joined else cache).append(k[:, :, 6:], v[:, :, 6:], index=range(6, T))
    keys = torch.cat((cache.keys, other.keys), 2) if joined else cache.keys
    assert_same(mp.attend(q, keys, v, scheme), mp.attend(q, k, v, scheme))
    text = "attend: some of these keys were counted by their cache and others were given an index"
    refused(ValueError, text, lambda: mp.attend(q[:, :, -1:], keys, v, scheme, key_documents=PADDED))
    # What is left out after given ones goes on from these, and stays with them.
    cache = mp.Cache(scheme) if turned else mp.Cache()
    cache.append(k[:, :, :6], v[:, :, :6], index=(torch.arange(6) - 5).clamp(min=0))
    cache.append(k[:, :, 6:], v[:, :, 6:])
    assert_same(mp.attend(q[:, :, -1:], cache.keys, v, scheme, key_documents=PADDED), alone(scheme, q, k, v))


def test_an_index_of_the_queries_alone_leaves_the_restart_of_the_keys():
    scheme = mp.Scheme(*SCHEMES["sinks"])
    cache, q, k, v = filled(scheme, False)
    told: dict[str, Any] = {"key_documents": PADDED, "index": torch.tensor([8])}
    want = alone(scheme, q, k, v)
    assert_same(mp.attend(q[:, :, -1:], k, v, scheme, **told), want)
    assert_same(mp.attend(q[:, :, -1:], cache.keys, cache.values, scheme, **told), want)


@pytest.mark.parametrize("parts", [(mp.Rope(8),), (mp.Rope(8), mp.Alibi(4))], ids=["rope", "rope and alibi"])
@pytest.mark.parametrize("apart", [[0] * 3 + [-1] * 2 + [0] * 9, [0, 1] * 7, [0] * 2 + [1] * 2 + [0] * 10])
def test_turned_keys_of_documents_that_lie_apart_are_refused(apart: list[int], parts: tuple[object, ...]):
    scheme, documents = mp.Scheme(*parts, causal), torch.stack((torch.zeros(T, dtype=torch.long), torch.tensor(apart)))
    cache, q, k, v = filled(scheme, True)
    text = (
        "attend: these keys were turned by their cache as it counted them, and the tokens of a document are not known"
    )
    refused(ValueError, text, lambda: mp.attend(q, cache.keys, cache.values, scheme, documents=documents))
    refused(
        ValueError, text, lambda: mp.attend(q[:, :, -1:], cache.keys, cache.values, scheme, key_documents=documents)
    )
    raw, _, _, _ = filled(scheme, False)
    want = mp.attend(q, k, v, scheme, documents=documents)
    assert_same(mp.attend(q, raw.keys, raw.values, scheme, documents=documents), want)


@pytest.mark.parametrize("together", [[-1] * 3 + [0] * 11, [0] * 3 + [-1] * 11, [2, 2, -1, -1, -1, 1] + [0] * 8])
def test_turned_keys_of_documents_that_lie_together_are_right(together: list[int]):
    scheme, documents = mp.Scheme(mp.Rope(8), causal), torch.tensor(together)
    cache, q, k, v = filled(scheme, True)
    want = mp.attend(q, k, v, scheme, documents=documents)
    assert_same(mp.attend(q, cache.keys, cache.values, scheme, documents=documents), want)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_documents_that_are_mapped_over_are_refused_for_turned_keys():
    scheme = mp.Scheme(mp.Rope(8), causal)
    cache, q, _, _ = filled(scheme, turned=True)

    def run(documents: Tensor) -> Tensor:
        return mp.attend(q[:, :, -1:], cache.keys, cache.values, scheme, key_documents=documents)

    text = "attend: these keys were turned by their cache as it counted them"
    refused(ValueError, text, lambda: torch.vmap(run)(torch.zeros(3, 2, T, dtype=torch.long)))


@pytest.mark.parametrize("t", [1, T])
def test_a_position_of_the_queries_is_refused_where_documents_count_turned_keys_anew(t: int):
    # Queries at their restarted positions would meet keys that were turned as the cache counted them.
    scheme, documents = mp.Scheme(mp.Rope(8), causal), torch.tensor([0] * 6 + [1] * 8)
    cache, q, k, v = filled(scheme, True)
    q, at = q[:, :, -t:], torch.cat((torch.arange(6), torch.arange(8)))
    want = mp.attend(q, k, v, scheme, key_documents=documents)
    text = "says where queries stand, but these keys were turned by their cache as it counted them"
    for told in ({"position": at[-t:]}, {"position": at[-t:], "index": at[-t:]}, {"index": at[-t:]}):
        ask = lambda told=told: mp.attend(q, cache.keys, cache.values, scheme, key_documents=documents, **told)  # noqa: E731
        refused(ValueError, f"attend: {next(iter(told))} {text}", ask)
    counted = torch.arange(T)
    told = {"key_documents": documents, "position": counted[-t:], "key_position": counted}
    assert_same(mp.attend(q, cache.keys, cache.values, scheme, **told), want)


@pytest.mark.parametrize("form", [torch.arange, range, lambda *ends: torch.arange(*ends)[None]])
def test_an_index_through_the_row_is_refused_where_documents_count_the_keys_of_a_cache_anew(form: Any):
    """Queries counted on through the row and keys anew in each document, so that every distance was wrong."""
    scheme = mp.Scheme(mp.Alibi(4), causal)
    cache, q, k, v = filled(scheme, False)
    for t in (1, 3, T):
        told: dict[str, Any] = {"documents": PADDED[-t:], "key_documents": PADDED}
        with pytest.raises(ValueError, match=r"attend: index is not known to count queries as.*append keys with their"):
            mp.attend(q[:, :, -t:], cache.keys, cache.values, scheme, index=form(T - t, T), **told)
        anew = form(T - t - 5, T - 5) if t < T else (torch.arange(T) - 5).clamp(min=0)
        out = mp.attend(q[:, :, -t:], cache.keys, cache.values, scheme, index=anew, **told)
        assert_same(out[:, :, -1:], alone(scheme, q, k, v))


def test_no_keys_say_nothing_of_the_index_of_the_next():
    _, k, v = inputs(t=2)
    cache = mp.Cache()
    cache.append(k[:, :, :0], v[:, :, :0], index=range(5, 5))
    cache.append(k, v)
    assert cache.index.tolist() == [[0, 1]] * 2


def test_queries_of_other_documents_than_the_last_keys_are_refused_over_turned_keys():
    """Such a query stands where a key of another text does, and turned keys were counted through both texts."""
    q, k, v = inputs(b=1, t=5)
    scheme = mp.Scheme(mp.Rope(8))
    held, own = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 0, 1, 0, -1])
    raw, turned = mp.Cache(), mp.Cache(scheme)
    for cache in (raw, turned):
        cache.append(k, v)
    expected = mp.attend(q, k, v, scheme, documents=own, key_documents=held)
    assert torch.allclose(mp.attend(q, raw.keys, v, scheme, documents=own, key_documents=held), expected)
    with pytest.raises(ValueError, match="queries are of other documents than the last keys"):
        mp.attend(q, turned.keys, v, scheme, documents=own, key_documents=held)
    # Padding among the queries stands nowhere.
    own = torch.tensor([0, 0, 1, 1, -1])
    expected = mp.attend(q, k, v, scheme, documents=own, key_documents=held)
    assert torch.allclose(mp.attend(q, turned.keys, v, scheme, documents=own, key_documents=held), expected)
