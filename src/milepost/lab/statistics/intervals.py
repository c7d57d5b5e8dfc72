"""95 % intervals of means: over windows of a text, which are correlated, and over seeds, which are not.

They answer two questions, and are never mixed. Over windows: what would this very checkpoint score on more of such
text? Over seeds: what would this method score, on this very text, from other seeds? Of that one seed says nothing.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]

WAVES = 0.4
"""WAVES · n^(2/3) cosines are averaged: the rule of Lazarus, Lewis, Stock and Watson (2018)."""
FEWEST_WAVES = 2
MOST_CORRELATED = 0.97
"""Beyond this the correlation of neighbours is not believed: dividing by 1 − r would give any width at all."""
FEWEST_WHITENED = 12
"""With fewer windows the correlation of neighbours is itself too uncertain to divide by."""


def over_windows(values: ArrayLike) -> Array:
    """Half the width of the 95 % interval of the mean of windows, in the order of the text, [… n] → […].

        v = mean of c_k² for k = 1 … K,   c_k = Σ_t e_t √(2/m) cos(π k (t + ½) / m),   K = 0.4 · m^(2/3)
        half = t_K · √( v / (1 − r)² / n ),   e_t = x_t − r x_{t−1}

    Neighbouring windows come from one file or one chapter, so their mean is less certain than that of n independent
    ones. The slow cosines see just the share of the variance that does not average out (Lazarus, Lewis, Stock and
    Watson, 2018, "HAR Inference"); what the correlation r of neighbours explains is taken out before and put back after
    (Andrews and Monahan, 1992), with Kendall's correction of r for short series. With K = m − 1 and r = 0 this would be
    Student's interval for independent values. nan for a single window.
    """
    x = np.asarray(values, dtype=np.float64)
    n = x.shape[-1]
    if n < 2:
        return np.full(x.shape[:-1], math.nan)
    # What diverged has no interval, and says nothing while it is worked out.
    with np.errstate(all="ignore"):
        e = x - x.mean(-1, keepdims=True)
        r = _neighbours(e) if n >= FEWEST_WHITENED else np.zeros(x.shape[:-1])
        e = e[..., 1:] - r[..., None] * e[..., :-1] if n >= FEWEST_WHITENED else e
        waves = freedom_over_windows(n)
        cosines = _scipy("fft").dct(e, type=2, norm="ortho", axis=-1)[..., 1 : waves + 1]
        return student(waves) * np.sqrt((cosines**2).mean(-1) / n) / (1 - r)


def over_seeds(values: ArrayLike) -> Array:
    """Half the width of the 95 % interval of the mean of independent values, [… n] → […], by Student's t.

    nan for a single one: it ranks no method.
    """
    x = np.asarray(values, dtype=np.float64)
    n = x.shape[-1]
    if n < 2:
        return np.full(x.shape[:-1], math.nan)
    with np.errstate(all="ignore"):
        return student(n - 1) * x.std(-1, ddof=1) / math.sqrt(n)


def student(freedom: int) -> float:
    """Return the 97.5 % point of Student's t."""
    return float(_scipy("special").stdtrit(freedom, 0.975))


def one_sided(half: float, freedom: int) -> float:
    """Return by how much a mean can be off to one side at 95 %, from half its two-sided interval."""
    return half * float(_scipy("special").stdtrit(freedom, 0.95)) / student(freedom)


def freedom_over_windows(n: int, drawn: bool = False) -> int:
    """Return the degrees of freedom of an interval over n windows: how many cosines, or n - 1 for independent ones."""
    if drawn or n < 2:
        return max(0, n - 1)
    whitened = n - 1 if n >= FEWEST_WHITENED else n
    return min(n - 1, max(FEWEST_WAVES, int(WAVES * whitened ** (2 / 3))))


def chance(mean: float, half: float, freedom: int) -> float:
    """Return the two-sided p of a mean by half its 95 % interval and the degrees of freedom of that."""
    if not half > 0:
        return float(mean == 0) if half == 0 else math.nan
    return float(2 * _scipy("special").stdtr(freedom, -abs(mean) * student(freedom) / half))


def interval(values: ArrayLike) -> tuple[float, float]:
    """Return the mean of independent values, and half the width of its 95 % interval; nan where there is only one."""
    x = np.asarray(values, dtype=np.float64)
    return float(x.mean()), float(over_seeds(x))


def _neighbours(e: Array) -> Array:
    """The correlation of neighbours in deviations from a mean, at least zero, corrected for its bias of −(1 + 4r)/n."""
    n = e.shape[-1]
    squares = (e**2).sum(-1)
    r = (e[..., 1:] * e[..., :-1]).sum(-1) / np.where(squares > 0, squares, 1.0)
    return np.clip((n * r + 1) / (n - 4), 0.0, MOST_CORRELATED) * (squares > 0)


def _scipy(part: str) -> Any:
    # scipy has no types, and parts of it take long to load.
    return cast("Any", importlib.import_module(f"scipy.{part}"))
