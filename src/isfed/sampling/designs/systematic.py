"""Fixed-size designs with exact inclusion probabilities: systematic, Hartley-Rao, Deville."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import fsum
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.interpret_first import InterpretFirst
from isfed.base.jit import compiled
from isfed.base.portable_arithmetic import weighted_sum
from isfed.base.random_streams import as_stream
from isfed.sampling import score_table as table
from isfed.sampling import table_draws
from isfed.sampling.designs.design_protocol import (
    FixedSize,
    RandomSource,
    joint_of_sets,
    with_certain,
)
from isfed.sampling.designs.inclusion import check_inclusion
from isfed.sampling.designs.rejective import rejective_joint

MOST_ENUMERATED = 8  # 8! = 40320 orders


@compiled
def _draw_once(weights, num, design, state):
    """Make a table of `weights`, draw from it once, forget it."""
    nodes = table.table_of(weights)
    return table_draws.draw_from_table(nodes, weights.size, 0.0, num, design, False, state)[0]


_draw_light = InterpretFirst(_draw_once, lambda weights, num, *_: 5 * weights.size + 50 * num)


class _FromTable(FixedSize):
    """A design that compiled code draws from a score table."""

    code: ClassVar[int]

    def draw(self, inclusion: ArrayLike, rng: RandomSource) -> np.ndarray:
        """The units drawn, in order but for `HartleyRao`."""
        values, num = check_inclusion(inclusion)
        units = _draw_light(values, num, self.code, as_stream(rng).state)
        return units if self.code == table_draws.HARTLEY_RAO else np.sort(units)


@dataclass(frozen=True)
class Systematic(_FromTable):
    """Systematic sampling in the given order: equally spaced points after one random start.

    Examples:
        >>> Systematic().draw([0.5, 0.5, 0.5, 0.5], rng=1).tolist()
        [0, 2]
    """

    code: ClassVar[int] = table_draws.SYSTEMATIC
    all_pairs: ClassVar[bool] = False
    guarantee: ClassVar[str] = (
        "exact inclusion probabilities, n distinct units; many pairs never occur together, so a "
        "periodic order of the units can cost variance"
    )

    def joint(self, inclusion: ArrayLike) -> np.ndarray:
        """Exact joint inclusion probabilities, by integration over the start."""
        values, num = check_inclusion(inclusion)
        return joint_of_sets(systematic_cells(values, num), values.size)


@dataclass(frozen=True)
class HartleyRao(_FromTable):
    """Systematic sampling in a new random order for every draw, the scheme that the paper uses."""

    code: ClassVar[int] = table_draws.HARTLEY_RAO
    exact_joint: ClassVar[bool] = False
    guarantee: ClassVar[str] = (
        "exact inclusion probabilities, n distinct units, all pairs possible; O(N) for every draw"
    )

    def joint(self, inclusion: ArrayLike) -> np.ndarray:
        """Joint inclusion probabilities: exact for up to 8 units, by enumeration of the orders.

        For more units they are those of `ConditionalPoisson`, which are close: both designs have
        high entropy. `total_variance` does without them.
        """
        values, num = check_inclusion(inclusion)
        if values.size > MOST_ENUMERATED:
            return with_certain(values, num, rejective_joint)
        return joint_of_sets(order_outcomes(values, num), values.size)


@dataclass(frozen=True)
class Deville(_FromTable):
    """Deville's systematic sampling (ordered pivotal): one random number for every unit length."""

    code: ClassVar[int] = table_draws.DEVILLE
    all_pairs: ClassVar[bool] = False
    guarantee: ClassVar[str] = (
        "exact inclusion probabilities, n distinct units, safe for any order of the units, and "
        "spread along that order; O(n log N) from a sum tree"
    )

    def _open_joint(self, inclusion: np.ndarray, num: int) -> np.ndarray:
        pairs = deville_pairs(inclusion, num, np.eye(inclusion.size), np.outer)
        return pairs + pairs.T


def systematic_cells(inclusion: np.ndarray, num: int) -> Iterator[tuple[np.ndarray, float]]:
    """The units drawn as the start moves over [0, 1), with the length on which they stay."""
    ends = np.cumsum(inclusion) * (num / inclusion.sum())
    breaks = np.unique(np.concatenate([[0.0, 1.0], ends % 1.0]))
    for low, high in pairwise(breaks):
        points = (low + high) / 2 + np.arange(num)
        drawn = np.searchsorted(ends, points, side="right").clip(max=inclusion.size - 1)
        yield drawn, float(high - low)


def order_outcomes(inclusion: np.ndarray, num: int) -> Iterator[tuple[np.ndarray, float]]:
    """The sets that `HartleyRao` draws, with their chances over all orders, summed exactly."""
    count = inclusion.size
    orders = np.array(list(permutations(range(count))))
    ends = np.cumsum(inclusion[orders], axis=1) * (num / inclusion.sum())
    breaks = np.sort(np.pad(ends % 1.0, ((0, 0), (1, 1)), constant_values=(0.0, 1.0)), axis=1)
    middles, lengths = (breaks[:, 1:] + breaks[:, :-1]) / 2, np.diff(breaks, axis=1)
    sets = np.zeros(middles.shape, np.int64)  # one bit for each unit
    for point in range(num):
        before = (ends[:, None] <= (middles + point)[:, :, None]).sum(axis=2)
        sets |= 1 << np.take_along_axis(orders, before.clip(max=count - 1), axis=1)
    for drawn in np.unique(sets).tolist():
        units = np.flatnonzero(drawn >> np.arange(count) & 1)
        yield units, fsum(lengths[sets == drawn]) / len(orders)


def strata_of(inclusion: np.ndarray, num: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The units in every stratum of unit length, in order, with their lengths there."""
    ends = np.cumsum(inclusion) * (num / inclusion.sum())
    ends[-1] = num
    begins = np.concatenate([[0.0], ends[:-1]])
    for stratum in range(num):
        first = int(np.searchsorted(ends, stratum, side="right"))
        last = int(np.searchsorted(begins, stratum + 1, side="left"))
        units = np.arange(first, last)
        inside = np.minimum(ends[units], stratum + 1) - np.maximum(begins[units], stratum)
        yield units, inside


def deville_pairs(
    inclusion: np.ndarray, num: int, values: np.ndarray, combine: Callable
) -> np.ndarray:
    """The sum over pairs of P(i and j drawn) combine(values_i, values_j), i in no later stratum.

    Stratum after stratum, all that matters of the past is whether the unit on the border was
    taken: `free` and `taken` hold the sums of the values of the units drawn so far in either case.
    All inclusion probabilities must be below 1, so that a unit lies in two strata at most.
    """
    free, taken = np.zeros(values.shape[1]), np.zeros(values.shape[1])
    total = combine(free, free)
    border, part = -1, 0.0  # the unit on the border, and its part in the stratum before
    for units, lengths in strata_of(inclusion, num):
        chances = [lengths.copy(), lengths.copy()]  # given that the border unit is free, or taken
        if border >= 0 and units[0] == border:
            after = lengths[0]
            again = after / (1.0 - part)
            rest = 1.0 / (1.0 - after) if after < 1.0 else 0.0
            chances[0] *= (1.0 - again) * rest
            chances[1] *= rest
            chances[0][0], chances[1][0] = again, 0.0
        here = values[units]
        total = total + combine(free, weighted_sum(chances[0], here))
        total = total + combine(taken, weighted_sum(chances[1], here))
        last = units[-1]
        crosses = lengths[-1] < inclusion[last] * (1.0 - 1e-12) and last != border
        border, part = (int(last), lengths[-1]) if crosses else (-1, 0.0)
        own = lengths[:, None] * here
        if crosses:
            onward = free * chances[0][-1] + taken * chances[1][-1]
            free, taken = free + taken - onward + own[:-1].sum(axis=0), onward + own[-1]
        else:
            free, taken = free + taken + own.sum(axis=0), np.zeros_like(taken)
    return total
