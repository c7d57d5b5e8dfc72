"""Keys, values and indices that do not fit into a cache are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal, window
from tests.oracles import inputs


def filled() -> tuple[mp.Cache, Tensor, Tensor]:
    _, k, v = inputs(t=3)
    cache = mp.Cache()
    cache.append(k, v)
    return cache, k, v


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda k, v: (k[:1], v[:1]), r"k \[1, 2, 3, 8\]"),
        (lambda k, v: (k[:, :1], v[:, :1]), r"k \[2, 1, 3, 8\]"),
        (lambda k, v: (k[..., :4], v), r"k \[2, 2, 3, 4\]"),
        (lambda k, v: (k, v[..., :4]), r"v \[2, 2, 3, 4\]"),
        (lambda k, v: (k.float(), v.float()), r"k \[2, 2, 3, 8\] torch.float32"),
    ],
    ids=["batch", "heads", "width", "width of values", "dtype"],
)
def test_keys_that_do_not_continue_what_is_held_are_refused(change, named: str):
    cache, k, v = filled()
    with pytest.raises(ValueError, match=rf"Cache\.append: {named}.* does not continue .*8\] torch.float64"):
        cache.append(*change(k, v))
    assert len(cache) == 3


def test_keys_on_another_device_are_refused():
    cache, k, v = filled()
    with pytest.raises(ValueError, match=r"Cache\.append: k .*meta.* cpu"):
        cache.append(k.to("meta"), v.to("meta"))
    assert len(cache) == 3
    with pytest.raises(ValueError, match=r"Cache\.append: .*cpu.*meta"):
        mp.Cache().append(k, v.to("meta"))


def test_keys_and_values_of_different_dtypes_are_refused():
    _, k, v = inputs(t=3)
    with pytest.raises((TypeError, ValueError), match=r"Cache\.append: .*float64.*float32"):
        mp.Cache().append(k, v.float())


def test_keys_and_values_must_fit_together():
    _, k, v = inputs(t=3)
    for one, other in ((k[0], v[0]), (k, v[:, :, :2]), (k[:1], v), (k, v[:, :1])):
        with pytest.raises(ValueError, match=r"Cache\.append: k is \[b g n d\] and v \[b g n dv\]; given \["):
            mp.Cache().append(one, other)


def test_a_cache_keeps_no_gradients_and_says_what_to_do():
    _, k, v = inputs(t=3)
    k.requires_grad_()
    with pytest.raises(ValueError, match=r"Cache\.append: a cache keeps no gradients; decode under torch.no_grad\(\)"):
        mp.Cache().append(k, v)
    cache = mp.Cache()
    with torch.no_grad():
        cache.append(k, v)
    assert not cache.keys.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_an_index_of_a_cache_is_integers(dtype: torch.dtype):
    _, k, v = inputs(t=3)
    with pytest.raises(TypeError, match=r"Cache\.append: index must be integers, given torch\.(float32|bool)"):
        mp.Cache().append(k, v, index=torch.arange(3).to(dtype))


@pytest.mark.parametrize("shape", [(4,), (1,), (), (3, 3), (2, 4), (1, 2, 3)], ids=str)
def test_an_index_of_a_cache_has_the_shape_of_its_keys(shape: tuple[int, ...]):
    _, k, v = inputs(t=3)
    with pytest.raises(ValueError, match=r"Cache\.append: index must be \[3\] or \[2, 3\], given \["):
        mp.Cache().append(k, v, index=torch.zeros(shape, dtype=torch.long))


def test_trim_wants_a_scheme():
    cache, _, _ = filled()
    with pytest.raises(TypeError, match=r"Cache\.trim: .*Scheme.*given Stream"):
        cache.trim(mp.Stream(2, 4))
    schedule = mp.Schedule([mp.Scheme(causal & window(3))])
    with pytest.raises(TypeError, match=r"Cache\.trim: .*Scheme.*given Schedule"):
        cache.trim(schedule)


def test_positions_have_three_axes_at_most():
    _, k, v = inputs(t=3)
    cache = mp.Cache()
    with pytest.raises(ValueError, match=r"position must be \[3\], \[2, 3\] or \[2, 3, axes\], given \[2, 3, 2, 1\]"):
        cache.append(k, v, position=torch.zeros(2, 3, 2, 1))
    assert len(cache) == 0
