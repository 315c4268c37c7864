"""Curves of thousands of rounds as a few hundred points, without hiding anything."""

from __future__ import annotations

import numpy as np

from isfed.report.page_data import Series

MOST_POINTS = 300


def thin(series: Series, most: int = MOST_POINTS) -> Series:
    """At most `most` points: neighbours become one, with their mean and a band around all of them.

    The first and the last point stay as they are. The band of a group reaches from the lowest of
    its bands to the highest, so that a spike in a single round is still seen.

    >>> x = np.arange(1000.0)
    >>> spike = np.where(x == 500, 9.0, 1.0)
    >>> few = thin(Series("a", x, spike, spike, spike), 100)
    >>> few.x.size, float(few.x[0]), float(few.high.max())
    (100, 0.0, 9.0)
    """
    points = series.x.size
    if points <= most:
        return series
    inner = np.linspace(1, points - 1, most - 1).astype(int)  # the last of them is the last point
    starts = np.concatenate([[0], inner])
    counts = np.diff(np.append(starts, points))

    def means(values: np.ndarray) -> np.ndarray:
        # Scaled first: the sum of values on their way to divergence may overflow.
        return np.add.reduceat(values / np.repeat(counts, counts), starts)

    return Series(
        series.name,
        means(series.x),
        means(series.mean),
        np.minimum.reduceat(series.low, starts),
        np.maximum.reduceat(series.high, starts),
        units=series.units,
        colour=series.colour,
    )
