"""The local pivotal method: neighbours fight for a place, so that a draw is spread in space."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.interpret_first import InterpretFirst
from isfed.base.jit import compiled, jit_inline
from isfed.base.random_streams import Stream, as_stream, below, uniform
from isfed.sampling.designs.design_protocol import RandomSource
from isfed.sampling.designs.inclusion import check_inclusion, check_unit_rows

COUNTED = 10_000  # draws, for joint probabilities
NEIGHBOURS = 16  # looked up in advance; beyond, whoever is left is searched


@jit_inline
def _open(chance):
    return 0.0 < chance < 1.0


@jit_inline
def _nearest(unit, chances, points, near, left, count):
    """The nearest unit that is still undecided: of the neighbours known, or of all `left`."""
    for i in range(near.shape[1]):
        other = near[unit, i]
        if other != unit and other < chances.size and _open(chances[other]):
            return other
    best, place = np.inf, -1
    for i in range(count):
        other = left[i]
        if other == unit:
            continue
        square = 0.0
        for j in range(points.shape[1]):
            square += (points[unit, j] - points[other, j]) * (points[unit, j] - points[other, j])
        if square < best or place < 0:
            best, place = square, other
    return place


@compiled
def _fight(inclusion, points, near, state):
    """Which units are drawn; every fight keeps both inclusion probabilities in the mean."""
    chances = inclusion.copy()
    left, at = np.empty(chances.size, np.int64), np.empty(chances.size, np.int64)
    count = 0
    for unit in range(chances.size):
        if _open(chances[unit]):
            left[count], at[unit] = unit, count
            count += 1
    while count > 1:
        one = left[below(state, count)]
        two = _nearest(one, chances, points, near, left, count)
        both = chances[one] + chances[two]
        coin = uniform(state)
        if both < 1.0:  # one of them is out
            if coin * both < chances[two]:
                chances[one], chances[two] = 0.0, both
            else:
                chances[one], chances[two] = both, 0.0
        elif coin * (2.0 - both) < 1.0 - chances[two]:  # one of them is in
            chances[one], chances[two] = 1.0, both - 1.0
        else:
            chances[one], chances[two] = both - 1.0, 1.0
        for unit in (one, two):
            if not _open(chances[unit]):
                count -= 1
                last = left[count]
                left[at[unit]], at[last] = last, at[unit]
    return np.flatnonzero(chances > 0.5)  # rounding is all that can be left of the last one


@compiled
def _count_pairs(inclusion, points, near, draws, state):
    """How often each pair came together in many draws."""
    counts = np.zeros((inclusion.size, inclusion.size))
    for _ in range(draws):
        units = _fight(inclusion, points, near, state)
        for i in units:
            for j in units:
                counts[i, j] += 1.0
    return counts


_fight_light = InterpretFirst(_fight, lambda inclusion, *_: 30 * inclusion.size)


@dataclass(frozen=True, eq=False)
class LocalPivotal:
    """The local pivotal method: units that are close in space are seldom drawn together.

    A random undecided unit competes with its nearest undecided neighbour until all are decided
    (the second method of Grafström, Lundström and Schelin, Biometrics 2012).

    Args:
        points: (N, d) where the units are, one row for each. Only `Spread`, which has points of its
            own, can use it without them.

    Examples:
        >>> design = LocalPivotal(np.array([[0.0], [0.1], [5.0], [5.1]]))
        >>> sorted(int(unit) // 2 for unit in design.draw([0.5, 0.5, 0.5, 0.5], rng=0))
        [0, 1]
    """

    points: Any = None
    near: np.ndarray = field(init=False, repr=False)
    fixed_size: ClassVar[bool] = True
    exact_joint: ClassVar[bool] = False
    all_pairs: ClassVar[bool] = False
    guarantee: ClassVar[str] = (
        "exact inclusion probabilities, n distinct units, spread over the points given; O(N) for "
        "every draw"
    )

    def __post_init__(self) -> None:
        near = np.empty((0, 0), np.int64)
        if self.points is not None:
            from scipy.spatial import KDTree  # takes a while to import

            points = check_unit_rows(self.points, name="points")
            count = min(NEIGHBOURS, len(points))
            near = KDTree(points).query(points, k=count)[1].reshape(len(points), count)
            object.__setattr__(self, "points", points)
        object.__setattr__(self, "near", np.ascontiguousarray(near, np.int64))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and np.array_equal(self.points, other.points)

    def __hash__(self) -> int:
        return hash(None if self.points is None else self.points.tobytes())

    def check(self, count: int) -> None:
        """Raise a ValueError unless the places of so many units are known."""
        if len(self.near) != count:
            raise ValueError(
                f"LocalPivotal knows the places of {len(self.near)} units, but is to draw from "
                f"{count}; give points, one row for each unit, or let sketches be the places: "
                "Spread(LocalPivotal())"
            )

    def _checked(self, inclusion: ArrayLike) -> np.ndarray:
        values, _ = check_inclusion(inclusion)
        self.check(values.size)
        return values

    def draw(self, inclusion: ArrayLike, rng: RandomSource) -> np.ndarray:
        return _fight_light(self._checked(inclusion), self.points, self.near, as_stream(rng).state)

    def joint(self, inclusion: ArrayLike) -> np.ndarray:
        """Approximate joint inclusion probabilities: how often pairs came in 10 000 draws.

        Their standard error is at most 0.005. Many pairs of neighbours never come together.
        """
        values = self._checked(inclusion)
        joint = _count_pairs(values, self.points, self.near, COUNTED, Stream(0).state) / COUNTED
        np.fill_diagonal(joint, values)
        return joint
