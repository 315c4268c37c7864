"""Sampford's design: fixed size, exact inclusion probabilities, known joint ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from isfed.compiled import compiled
from isfed.designs.inclusion import check_inclusion
from isfed.streams import Stream, as_stream, uniform


@compiled
def _draw_sampford(first, others, num, most_tries, state):
    """One unit by `first`, the others with replacement by `others`, until all are distinct."""
    units = np.empty(num, np.int64)
    taken = np.full(first.size, -1)
    for attempt in range(most_tries):
        draw = 0
        while draw < num:
            ends = first if draw == 0 else others
            unit = np.searchsorted(ends, uniform(state) * ends[-1], side="right")
            if taken[unit] == attempt:
                break
            taken[unit] = attempt
            units[draw] = unit
            draw += 1
        if draw == num:
            return units
    return units[:0]


@dataclass(frozen=True)
class Sampford:
    """Sampford's rejective design, for when joint inclusion probabilities are needed.

    It draws with replacement until all units differ, and gives up after `most_tries`: with many
    large inclusion probabilities almost every try fails.
    """

    most_tries: int = 1_000_000
    fixed_size: ClassVar[bool] = True
    guarantee: ClassVar[str] = (
        "exact inclusion and joint inclusion probabilities, n distinct units; rejects until all "
        "differ, which can take too long when many inclusion probabilities are large"
    )

    def draw(self, inclusion: ArrayLike, rng: Stream | np.random.Generator | int) -> np.ndarray:
        """The units drawn, in order."""
        values, num = check_inclusion(inclusion)
        certain = np.flatnonzero(values == 1.0)
        rest = np.flatnonzero((values > 0.0) & (values < 1.0))
        if num == certain.size:
            return certain
        chance = values[rest]
        drawn = _draw_sampford(
            np.cumsum(chance),
            np.cumsum(chance / (1.0 - chance)),
            num - certain.size,
            self.most_tries,
            as_stream(rng).state,
        )
        if drawn.size == 0:
            raise RuntimeError(
                f"Sampford's design rejected {self.most_tries} draws of {num} of {values.size} "
                "units; use Deville() or HartleyRao(), which never reject"
            )
        return np.sort(np.concatenate([certain, rest[drawn]]))

    def joint(self, inclusion: ArrayLike) -> np.ndarray:
        """Exact joint inclusion probabilities (Sampford 1967)."""
        values, num = check_inclusion(inclusion)
        joint = np.outer(values, values)  # right for certain units: P(i and j) = P(j)
        rest = np.flatnonzero((values > 0.0) & (values < 1.0))
        size = num - int(np.count_nonzero(values == 1.0))
        if rest.size:
            joint[np.ix_(rest, rest)] = _sampford_joint(values[rest], size)
        np.fill_diagonal(joint, values)
        return joint


def _sampford_joint(inclusion: np.ndarray, num: int) -> np.ndarray:
    """P(s) is proportional to the product of the odds in s times (n - sum of inclusion in s)."""
    odds = inclusion / (1.0 - inclusion)
    products, moments = _sums_over_sets(odds, inclusion, num)
    total = num * products[num] - moments[num]
    joint = np.zeros((odds.size, odds.size))
    if num < 2:
        return joint
    for i in range(odds.size):
        for j in range(i):
            others = np.delete(np.arange(odds.size), [i, j])
            products, moments = _sums_over_sets(odds[others], inclusion[others], num - 2)
            rest = (num - inclusion[i] - inclusion[j]) * products[-1] - moments[-1]
            joint[i, j] = joint[j, i] = odds[i] * odds[j] * rest / total
    return joint


def _sums_over_sets(odds: np.ndarray, inclusion: np.ndarray, largest: int) -> tuple:
    """For sets of size 0..largest: the sum of the product of odds, and of that times inclusion."""
    products = np.zeros(largest + 1)
    moments = np.zeros(largest + 1)
    products[0] = 1.0
    for odd, chance in zip(odds, inclusion, strict=True):
        moments[1:] += odd * (moments[:-1] + chance * products[:-1])
        products[1:] += odd * products[:-1]
    return products, moments
