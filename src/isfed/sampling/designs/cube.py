"""The cube method: draws whose estimated totals of known variables are nearly exact."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.interpret_first import InterpretFirst
from isfed.base.jit import compiled
from isfed.base.random_streams import Stream, as_stream
from isfed.sampling.designs.design_protocol import FixedSize, RandomSource, with_certain
from isfed.sampling.designs.inclusion import check_inclusion, check_unit_rows

ROUNDING = 1e-11  # what is nearer to 0 or to 1 is decided
MOST_ROUNDS = 1000
COUNTED = 400  # draws, for the imbalance of the last units: its variance to 7%


@compiled
def null_vector(rows, vector):
    """Fill `vector` with one that is not zero and orthogonal to fewer rows than it has numbers.

    By elimination with complete pivoting; `rows` is overwritten.
    """
    count, size = rows.shape
    pivots = np.full(size, -1)  # the row that eliminates each column
    for place in range(count):
        best, row, column = ROUNDING, -1, -1
        for i in range(place, count):
            for j in range(size):
                if pivots[j] < 0 and abs(rows[i, j]) > best:
                    best, row, column = abs(rows[i, j]), i, j
        if row < 0:
            break
        pivots[column] = place
        pivot = rows[row, column]
        for j in range(size):
            value = rows[row, j]
            rows[row, j] = rows[place, j]
            rows[place, j] = value / pivot
        for i in range(count):
            factor = rows[i, column]
            if i != place and factor != 0.0:
                for j in range(size):
                    rows[i, j] -= factor * rows[place, j]
    free = 0
    while pivots[free] >= 0:
        free += 1
    for j in range(size):
        vector[j] = -rows[pivots[j], free] if pivots[j] >= 0 else 0.0
    vector[free] = 1.0


@compiled
def move(chances, group, direction, coin):
    """To one of the two ends of the line through the chances of `group`; the mean stays."""
    forth, back = np.inf, np.inf
    ahead, behind = 0, 0  # which unit ends the way
    for i in range(group.size):
        slope, chance = direction[i], chances[group[i]]
        if slope == 0.0:
            continue
        rise, fall = (1.0 - chance) / abs(slope), chance / abs(slope)
        on, off = (rise, fall) if slope > 0.0 else (fall, rise)
        if on < forth:
            forth, ahead = on, i
        if off < back:
            back, behind = off, i
    onward = coin * (forth + back) < back
    length, first = (forth, ahead) if onward else (-back, behind)
    for i in range(group.size):
        chance = chances[group[i]] + length * direction[i]
        if i == first:
            chance = 1.0 if (direction[i] > 0.0) == onward else 0.0
        if chance < ROUNDING:
            chance = 0.0
        chances[group[i]] = 1.0 if chance > 1.0 - ROUNDING else chance


@compiled
def _fly(rows, chances, coins):
    """Decide one unit after the other; `chances` become 0 or 1, but for rounding.

    Args:
        rows: (p, N) the variables over inclusion. A step moves at most p + 1 units; with fewer left
            only the first variables are kept.
    """
    most = rows.shape[0] + 1
    group = np.empty(most, np.int64)
    size, fresh = 0, 0
    for coin in coins:
        while size < most and fresh < chances.size:
            group[size] = fresh
            size += 1
            fresh += 1
        if size < 2:
            break
        kept = np.empty((size - 1, size))
        for i in range(size - 1):
            for j in range(size):
                kept[i, j] = rows[i, group[j]]
        direction = np.empty(size)
        null_vector(kept, direction)
        move(chances, group[:size], direction, coin)
        left = 0
        for i in range(size):
            if 0.0 < chances[group[i]] < 1.0:
                group[left] = group[i]
                left += 1
        size = left


_fly_light = InterpretFirst(_fly, lambda rows, chances, coins: 8 * rows.size * len(rows))


@dataclass(frozen=True, eq=False)
class Cube(FixedSize):
    """The cube method of Deville and Tillé (2004): balanced on variables known for every unit.

    The inclusion probabilities move along directions that change no estimated total of the
    variables until one of them is 0 or 1, and so on. When the last units leave no such direction,
    the last variable is given up. The number of units is always kept.

    Args:
        balanced: (N, p) the variables, the most important first; one row for each unit.

    Examples:
        >>> design = Cube(np.arange(8.0))
        >>> int(design.draw([0.5] * 8, rng=0).sum()) in range(12, 17)  # the mean total is 14
        True
    """

    balanced: Any
    exact_joint: ClassVar[bool] = False
    guarantee: ClassVar[str] = (
        "exact inclusion probabilities, n distinct units, totals of the given variables nearly "
        "exact; joint inclusion probabilities approximate; O(N p^3) for every draw"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "balanced", check_unit_rows(self.balanced, name="balanced"))

    def variables(self, inclusion: np.ndarray) -> np.ndarray:
        """(N, p + 1) the number of units, then the variables."""
        if len(self.balanced) != inclusion.size:
            raise ValueError(
                f"Cube knows {len(self.balanced)} units, but is to draw from {inclusion.size}"
            )
        return np.column_stack([inclusion, self.balanced])

    def draw(self, inclusion: ArrayLike, rng: RandomSource) -> np.ndarray:
        """The units drawn, in order."""
        values, _ = check_inclusion(inclusion)
        variables = self.variables(values)
        stream = as_stream(rng)
        waiting = np.argsort(stream.uniforms(values.size), kind="stable")
        waiting = waiting[(values[waiting] > 0.0) & (values[waiting] < 1.0)]
        rows = variables[waiting] / values[waiting, None]
        scale = np.abs(rows).max(axis=0, initial=0.0)
        rows = np.ascontiguousarray((rows / np.where(scale > 0.0, scale, 1.0)).T)
        chances = values[waiting]
        _fly_light(rows, chances, stream.uniforms(waiting.size))
        values[waiting] = chances
        return np.flatnonzero(values > 0.5)  # rounding is all that can be left of the last one

    def imbalance(self, inclusion: ArrayLike) -> np.ndarray:
        """(p + 1, p + 1) the covariance of the estimated totals of `variables`, in 400 draws.

        It is what the last units leave, for which variables are given up.
        """
        return _imbalance(self, check_inclusion(inclusion)[0].tobytes())

    def joint(self, inclusion: ArrayLike) -> np.ndarray:
        """Approximate joint inclusion probabilities: those of a draw as random as its balance.

        They ignore the last units, for which variables are given up.
        """
        values, num = check_inclusion(inclusion)
        variables = self.variables(values)[(values > 0.0) & (values < 1.0)]
        return with_certain(values, num, lambda chances, _: _balanced_joint(chances, variables))


@lru_cache(maxsize=4)
def _imbalance(design: Cube, inclusion: bytes) -> np.ndarray:
    values, stream = np.frombuffer(inclusion), Stream(0)
    rows = design.variables(values) / np.where(values > 0.0, values, 1.0)[:, None]
    totals = np.array([rows[design.draw(values, stream)].sum(axis=0) for _ in range(COUNTED)])
    errors = totals - design.variables(values)[values > 0.0].sum(axis=0)
    return np.einsum("ni,nj->ij", errors, errors) / COUNTED


def _balanced_joint(inclusion: np.ndarray, balanced: np.ndarray) -> np.ndarray:
    """An approximation for designs of high entropy that are balanced on (N, p) variables.

    Deville and Tillé (2005): the covariances of independent units, given normally distributed
    totals of the variables. Their variances `loose` solve a fixed-point equation that makes the
    diagonal exact, where that has a solution; otherwise they are scaled.
    """
    exact = inclusion * (1.0 - inclusion)
    rows = balanced / inclusion[:, None]
    loose = exact.copy()
    for _ in range(MOST_ROUNDS):
        weighed = loose[:, None] * rows
        inverse = np.linalg.pinv(rows.T @ weighed, hermitian=True)
        covariance = np.diag(loose) - weighed @ inverse @ weighed.T  # less what the balance fixes
        diagonal = np.diag(covariance)
        if np.all(np.abs(diagonal - exact) <= 1e-13):
            break
        loose = loose * np.sqrt(exact / np.maximum(diagonal, 1e-3 * exact))
    joint = np.outer(inclusion, inclusion) + covariance
    np.fill_diagonal(joint, inclusion)
    return np.clip(joint, 0.0, np.minimum.outer(inclusion, inclusion))
