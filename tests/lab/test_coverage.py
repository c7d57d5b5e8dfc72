"""Two thousand simulated stores with a known answer: how often do 95 % intervals hold the truth?

A store has two rows on the same windows, from three seeds each. The difference of seed s in window w is

    d_sw = truth + a_s + b_w + e_sw

with a_s normal, and b_w and e_sw series in which neighbours are correlated. Over windows, an interval speaks of one
checkpoint: the truth there is truth + a_s. Over seeds it speaks of the method on this very text: truth + mean of b_w.
"""

from __future__ import annotations

import numpy as np
import pytest

from milepost.lab.statistics.intervals import over_seeds
from milepost.lab.statistics.measures import Measure, halves, measured, paired

STORES, SEEDS, TRUTH = 2000, 3, 0.05
CORRELATED = (0.0, 0.3, 0.5, 0.7)


def series(rng: np.random.Generator, shape: tuple[int, ...], correlated: float) -> np.ndarray:
    """x_t = r x_{t−1} + √(1 − r²) noise, along the last axis, of variance 1 from the start."""
    # It takes a second to load, in every process that collects tests.
    from scipy.signal import lfilter

    noise = rng.standard_normal((*shape[:-1], shape[-1] + 200))
    return lfilter([np.sqrt(1 - correlated**2)], [1, -correlated], noise)[..., 200:]


def files(rng: np.random.Generator, shape: tuple[int, ...], mean: int = 3) -> np.ndarray:
    """A text of files: each window has its file's own number besides noise; files are of 1 … 2 · mean − 1 windows."""
    starts = np.cumsum(rng.integers(1, 2 * mean, (*shape[:-1], shape[-1])), -1)
    which = (np.arange(shape[-1])[:, None] >= starts[..., None, :]).sum(-1)
    own = np.take_along_axis(rng.standard_normal(shape), which, -1)
    return (own + rng.standard_normal(shape)) / np.sqrt(2)


def stores(kind: float | str, windows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Differences [stores, seeds, windows], and what is true over windows [stores, seeds] and over seeds [stores]."""
    rng = np.random.default_rng(seed)

    def made(*shape: int) -> np.ndarray:
        return files(rng, shape) if kind == "files" else series(rng, shape, float(kind))

    a = 0.03 * rng.standard_normal((STORES, SEEDS))
    b, e = 0.1 * made(STORES, windows), 0.2 * made(STORES, SEEDS, windows)
    differences = TRUTH + a[..., None] + b[:, None] + e
    return differences, TRUTH + a, TRUTH + b.mean(-1)


def covered(differences: np.ndarray, of_checkpoints: np.ndarray, of_methods: np.ndarray) -> tuple[float, float]:
    """How often both intervals hold what is true, by the function that the report's differences are made with."""
    over_windows, _ = halves(differences[:, :, None])
    _, between = halves(differences)
    windows = np.abs(differences.mean(-1) - of_checkpoints) <= over_windows
    seeds = np.abs(differences.mean((-1, -2)) - of_methods) <= between
    return float(windows.mean()), float(seeds.mean())


@pytest.mark.sample(5)
@pytest.mark.parametrize("windows", [32, 128])
@pytest.mark.parametrize("kind", [*CORRELATED, "files"])
def test_intervals_hold_the_truth_as_often_as_they_say(kind: float | str, windows: int):
    over_windows, over_seeds_ = covered(*stores(kind, windows))
    print(f"{kind}, {windows} windows: over windows {over_windows:.3f}, over seeds {over_seeds_:.3f}")
    assert 0.93 <= over_windows <= 0.97
    assert 0.93 <= over_seeds_ <= 0.97


@pytest.mark.parametrize("kind", [0.3, 0.5, 0.7, "files"])
def test_intervals_for_independent_windows_would_not(kind: float | str):
    differences, of_checkpoints, _ = stores(kind, 128)
    covers = np.abs(differences.mean(-1) - of_checkpoints) <= over_seeds(differences)
    assert covers.mean() < 0.9


def test_an_interval_over_windows_says_nothing_of_the_method():
    """Of one seed, it misses the truth of the method far too often; so the two are never mixed."""
    differences, _, of_methods = stores(0.3, 128)
    halves_, _ = halves(differences[:, :1])
    assert (np.abs(differences[:, 0].mean(-1) - of_methods) <= halves_).mean() < 0.85


def test_a_difference_of_two_rows_has_just_these_intervals():
    rng = np.random.default_rng(1)
    text = 2 + series(rng, (64,), 0.8)
    one, other = (text + 0.1 * series(rng, (SEEDS, 64), 0.3) for _ in range(2))
    rows = [measured({seed: tuple(each) for seed, each in enumerate(values)}) for values in (one, other)]
    found = paired(*rows)
    assert found is not None
    over_windows, over_seeds_ = halves(one - other)
    assert (found.windows, found.seeds) == (pytest.approx(float(over_windows)), pytest.approx(float(over_seeds_)))
    assert found.mean == pytest.approx(float((one - other).mean()))
    # What the windows share falls out.
    assert rows[0].half is not None
    assert found.windows is not None
    assert found.windows < rows[0].half / 4


def test_two_rows_are_told_apart_only_by_every_interval_there_is():
    text = np.sin(np.arange(40))

    def row(*shifts: float) -> Measure:
        wave = 0.01 * np.cos(np.arange(40) ** 2)
        return measured({seed: tuple(text + shift + wave * (seed + 1)) for seed, shift in enumerate(shifts)})

    def sign(one: Measure, other: Measure) -> int:
        found = paired(one, other)
        assert found is not None
        return found.sign

    zero = measured({seed: tuple(text) for seed in range(3)})
    assert [sign(row(shift), zero) for shift in (0.1, -0.1, 0.0001)] == [1, -1, 0]
    assert sign(row(0.10, 0.11, 0.12), zero) == 1
    # Clear over windows, since every window agrees; over seeds it is not.
    assert sign(row(0.01, 0.30, 0.01), zero) == 0
    assert sign(zero, zero) == 0
    assert paired(zero, measured({5: tuple(text)})) is None
    assert paired(zero, measured({0: tuple(text[:30])})) is None
