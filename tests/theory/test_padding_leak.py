"""The padding leak (arXiv:2001.08248): zeros at the border tell a convolution where it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from milepost import padding_leak

# The same numbers meet in the same sums, but a convolution may order them differently from place to place.
ROUNDING = 1e-12


def places(leak: Tensor) -> list[int]:
    """Where the output differs from its middle."""
    return (leak > ROUNDING).nonzero().flatten().tolist()


def test_three_layers_of_three_know_the_outermost_three():
    leak = padding_leak(length=21, depth=3, kernel=3)
    assert leak.shape == (21,)
    assert leak.dtype == torch.float64
    assert places(leak) == [0, 1, 2, 18, 19, 20]
    # What they know is no rounding error.
    assert float(leak[[0, 1, 2, 18, 19, 20]].min()) > 1e-3


@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_border_is_felt_as_far_as_the_receptive_field(kernel, depth, seed):
    reach, length = (kernel - 1) // 2 * depth, 41
    leak = padding_leak(length, depth=depth, kernel=kernel, seed=seed)
    assert places(leak) == [n for n in range(length) if n < reach or n >= length - reach]


@pytest.mark.parametrize("padding", ["circular", "reflect", "replicate"])
@pytest.mark.parametrize(("kernel", "depth"), [(3, 3), (5, 2), (7, 1)])
def test_padding_with_the_text_itself_tells_nothing(padding, kernel, depth):
    leak = padding_leak(21, depth=depth, kernel=kernel, padding=padding)
    assert leak.shape == (21,)
    assert places(leak) == []


@pytest.mark.parametrize(("kernel", "depth"), [(3, 3), (5, 2), (7, 1), (1, 4)])
def test_no_padding_tells_nothing_and_shortens_the_output(kernel, depth):
    leak = padding_leak(21, depth=depth, kernel=kernel, padding="none")
    assert leak.shape == (21 - (kernel - 1) * depth,)
    assert places(leak) == []


def test_what_is_known_is_the_distance_to_the_border():
    # A longer text changes nothing within reach of either border.
    short, long = padding_leak(21), padding_leak(60)
    torch.testing.assert_close(long[:3], short[:3], rtol=0, atol=ROUNDING)
    torch.testing.assert_close(long[-3:], short[-3:], rtol=0, atol=ROUNDING)
    assert places(long) == [0, 1, 2, 57, 58, 59]


def test_the_shortest_text_with_a_place_that_sees_no_border():
    assert places(padding_leak(length=7, depth=3, kernel=3)) == [0, 1, 2, 4, 5, 6]
    with pytest.raises(ValueError, match=r"padding_leak\(length=6\): every place would see a border.*more than 6"):
        padding_leak(length=6, depth=3, kernel=3)


def test_a_seed_decides_the_weights():
    assert torch.equal(padding_leak(seed=3), padding_leak(seed=3))
    assert not torch.equal(padding_leak(seed=3), padding_leak(seed=4))


def test_the_callers_random_numbers_are_left_alone():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = torch.rand(3)
        torch.manual_seed(0)
        padding_leak()
        assert torch.equal(torch.rand(3), expected)


def test_more_channels_leak_too():
    for channels in (1, 3, 32):
        assert places(padding_leak(channels=channels)) == [0, 1, 2, 18, 19, 20]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"kernel": 4}, ValueError, r"padding_leak\(kernel=4\): kernel must be odd, so that it has a middle"),
        ({"kernel": 0}, ValueError, "kernel must be at least 1"),
        ({"kernel": 3.0}, TypeError, "kernel must be an integer, not float"),
        ({"depth": 0}, ValueError, r"padding_leak\(depth=0\): depth must be at least 1"),
        ({"depth": -1}, ValueError, "depth must be at least 1"),
        ({"length": 0}, ValueError, "length must be at least 1"),
        ({"length": "21"}, TypeError, "length must be an integer, not str"),
        ({"channels": 0}, ValueError, "channels must be at least 1"),
        (
            {"padding": "same"},
            ValueError,
            r"padding_leak\(padding='same'\): padding must be one of 'zeros'",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        padding_leak(**arguments)
