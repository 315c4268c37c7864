"""The exact variance of a Horvitz-Thompson total under every design, component by component.

The total of `values` (N, M) is estimated by the sum of values / inclusion over the units drawn.
Its variance is that of Appendix A of the paper, which needs the joint inclusion probabilities; for
the sequential designs it is found without the N x N matrix of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.jit import compiled
from isfed.base.portable_arithmetic import product, weighted_sum
from isfed.sampling.designs.inclusion import check_inclusion, check_scores, check_total
from isfed.sampling.designs.independent import Poisson, WithReplacement
from isfed.sampling.designs.systematic import Deville, HartleyRao, Systematic, deville_pairs

# Frequencies of the Fourier series behind Hartley-Rao: what is left out is about 1 / (10 F N), so
# that few units, which cost little, need many.
FEWEST, MOST, WORK = 512, 65_536, 10_000_000

MOST_ORDERED = 3000  # units, for Hartley-Rao
MOST_JOINT = 1000  # units whose joint probabilities are made one by one


class NoJointError(ValueError):
    """The design has no known joint inclusion probabilities, hence no exact variance."""


def total_variance(design: Any, inclusion: ArrayLike, values: np.ndarray) -> np.ndarray:
    """The variance of every component of the estimated total, (M,).

    >>> total_variance(Poisson(), [0.5, 0.5], np.array([[1.0], [1.0]]))
    array([2.])
    """
    repeats = type(design) is WithReplacement
    if repeats:  # an expected count may exceed 1
        chances = check_scores(inclusion, name="inclusion")
        num = check_total(chances)
    else:
        chances, num = check_inclusion(inclusion)
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or len(values) != chances.size:
        raise ValueError(f"values has shape {values.shape}, expected ({chances.size}, M)")
    lost = np.flatnonzero((chances == 0.0) & values.any(axis=1))
    if lost.size:
        raise ValueError(
            f"unit {lost[0]} has inclusion probability 0 but a value that is not zero "
            f"({lost.size} such): its share of the total is never seen, the estimate is biased"
        )
    if repeats:
        seen = chances > 0.0
        squares = (values[seen] ** 2 / chances[seen, None]).sum(axis=0)
        return squares - values.sum(axis=0) ** 2 / num
    # Certain units add nothing to the variance, and the rest is drawn as if they were not there.
    open_units = np.flatnonzero((chances > 0.0) & (chances < 1.0))
    num -= int(np.count_nonzero(chances == 1.0))
    if open_units.size == 0 or num == 0:
        return np.zeros(values.shape[1])
    values = values[open_units]
    variance = _second_moment(design, chances, open_units, num, values) - values.sum(axis=0) ** 2
    return np.maximum(variance, 0.0)  # rounding alone can lead below


def _second_moment(
    design: Any, whole: np.ndarray, open_units: np.ndarray, num: int, values: np.ndarray
) -> np.ndarray:
    """E of the square of the sum of values / inclusion over the open units drawn."""
    chances = whole[open_units]
    weighted = values / chances[:, None]
    if getattr(design, "fixed_size", False) and num == 1:
        return weighted_sum(chances, weighted**2)
    kind = type(design)  # not isinstance: what a subclass draws is not known
    if kind is Systematic:
        return _systematic_moment(chances, num, weighted)
    if kind is Deville:
        pairs = deville_pairs(chances, num, weighted, np.multiply)
        return weighted_sum(chances, weighted**2) + 2.0 * pairs
    if kind is HartleyRao:
        return _hartley_rao_moment(chances, num, weighted)
    if kind is Poisson:
        return (
            weighted_sum(chances * (1.0 - chances), weighted**2)
            + weighted_sum(chances, weighted) ** 2
        )
    if hasattr(design, "joint") and getattr(design, "exact_joint", True):
        if chances.size > MOST_JOINT:
            raise NoJointError(
                f"the joint probabilities of {chances.size} units under {kind.__name__} take too "
                f"long (at most {MOST_JOINT})"
            )
        joint = design.joint(whole)[np.ix_(open_units, open_units)]
        return (weighted * product(joint, weighted)).sum(axis=0)
    raise NoJointError(f"{kind.__name__} has no exact joint inclusion probabilities")


def _systematic_moment(chances: np.ndarray, num: int, weighted: np.ndarray) -> np.ndarray:
    """As the start moves over [0, 1) one unit at a time is replaced by the next."""
    ends = np.cumsum(chances) * (num / chances.sum())
    first = np.searchsorted(ends, np.arange(num), side="right").clip(max=chances.size - 1)
    breaks = ends[:-1] % 1.0
    order = np.argsort(breaks, kind="stable")
    order = order[breaks[order] > 0.0]  # the units at the start 0 are `first` already
    changes = np.diff(weighted, axis=0)[order]
    sums = weighted[first].sum(axis=0) + np.cumsum(
        np.vstack([np.zeros_like(weighted[:1]), changes]), axis=0
    )
    lengths = np.diff(np.concatenate([[0.0], breaks[order], [1.0]]))
    return weighted_sum(lengths, sums**2)


def _hartley_rao_moment(chances: np.ndarray, num: int, weighted: np.ndarray) -> np.ndarray:
    """Systematic along a random order, by a Fourier series in the start.

    On the circle of circumference 1 let S be where unit j begins, seen from the end of unit i: the
    sum of the units between them, each of which is there with the chance t, t uniform in (0, 1).
    Then Cov_ij = 2 Re sum_h a_i a_j E[exp(2 pi i h S)] with a_i = (exp(2 pi i h pi_i) - 1) /
    (2 pi i h). The expectation is the integral over t of a product over the other units, a
    polynomial of degree N - 2, which Gauss-Legendre integrates exactly.
    """
    count = chances.size
    if np.all(chances == chances[0]):  # any set is equally likely
        mean, squares = weighted.sum(axis=0), (weighted**2).sum(axis=0)
        both = num * (num - 1) / (count * (count - 1.0))
        return num / count * squares + both * (mean**2 - squares)
    if count > MOST_ORDERED:
        raise NoJointError(
            f"Hartley-Rao's variance of {count} units takes too long (at most {MOST_ORDERED})"
        )
    # An even number of nodes: at t = 1/2 the factor of a unit of probability 1/2 would be 0.
    nodes, node_weights = np.polynomial.legendre.leggauss(2 * ((count + 3) // 4))
    frequencies = min(MOST, max(FEWEST, WORK // count**2))
    pairs = _fourier_pairs(chances, weighted, (nodes + 1.0) / 2.0, node_weights / 2.0, frequencies)
    independent = (
        weighted_sum(chances - chances**2, weighted**2) + weighted_sum(chances, weighted) ** 2
    )
    return independent + pairs


@compiled
def _fourier_pairs(chances, weighted, places, place_weights, frequencies):
    """The sum over pairs of Cov_ij weighted_i weighted_j, component by component."""
    count, size = weighted.shape
    out = np.zeros(size)
    turn = np.empty(count, np.complex128)
    sums, squares = np.empty(size, np.complex128), np.empty(size, np.complex128)
    for wave in range(1, frequencies + 1):
        for i in range(count):
            angle = 2.0 * np.pi * ((wave * chances[i]) % 1.0)
            turn[i] = complex(math.cos(angle) - 1.0, math.sin(angle))
        scale = -2.0 / (2.0 * np.pi * wave) ** 2  # of a_i a_j, twice
        for t in range(places.size):
            product = complex(place_weights[t], 0.0)
            sums[:] = 0.0
            squares[:] = 0.0
            for i in range(count):
                factor = 1.0 + places[t] * turn[i]
                product *= factor
                slope = turn[i] / factor
                for m in range(size):
                    share = slope * weighted[i, m]
                    sums[m] += share
                    squares[m] += share * share
            for m in range(size):
                out[m] += scale * (product * (sums[m] * sums[m] - squares[m])).real
    return out
