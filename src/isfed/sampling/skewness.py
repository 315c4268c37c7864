"""The skewness of an estimated total, and what it does to an interval."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np


def third_moment(added: np.ndarray, chance: np.ndarray, *, centred: bool) -> float:
    """The third central moment of a total, estimated; NaN from too few units.

    A unit drawn independently adds p (1 - p) (1 - 2 p) a^3. A fixed size takes the centre away, as
    in Hájek's variance; with equal and small probabilities this is the unbiased estimate.
    """
    num, weights = added.size, 1.0 - chance
    if not centred:
        return float((weights * (1.0 - 2.0 * chance) * added**3).sum())
    if num < 3:
        return math.nan
    centre = (weights * added).sum() / weights.sum()
    cubes = (weights * (1.0 - 2.0 * chance) * (added - centre) ** 3).sum()
    return float(cubes * num * num / ((num - 1.0) * (num - 2.0)))


def hall_quantiles(*quantiles: float, skewness: float) -> Iterator[float]:
    """Quantiles of (estimate - truth) / stderr where the estimate is skewed.

    Hall (1992) maps this ratio T to T + s T^2 / 3 + s^2 T^3 / 27 + s / 6, a cube up to a constant,
    which Student's t describes better; this is its inverse.
    """
    for quantile in quantiles:
        if abs(skewness) < 1e-6:  # the map is the identity, but for rounding
            yield quantile
        else:
            cube = 1.0 + skewness * (quantile - skewness / 6.0)
            yield 3.0 / skewness * (math.copysign(abs(cube) ** (1.0 / 3.0), cube) - 1.0)
