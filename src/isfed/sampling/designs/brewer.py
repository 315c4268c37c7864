"""Brewer's design: one unit after the other, each with probabilities that keep inclusion exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.random_streams import Stream, as_stream
from isfed.sampling.designs.conditional_poisson import rejective_joint
from isfed.sampling.designs.inclusion import check_inclusion
from isfed.sampling.designs.joints import with_certain

MOST_LISTED = 12  # units whose 2^N sets are gone through


@dataclass(frozen=True)
class Brewer:
    """Brewer's design of 1975: n draws, one after the other, without replacement.

    >>> Brewer().draw([0.5, 0.5, 1.0], rng=0).size
    2
    """

    fixed_size: ClassVar[bool] = True
    exact_joint: ClassVar[bool] = False
    guarantee: ClassVar[str] = (
        "exact inclusion probabilities, n distinct units, all pairs possible, no preparation; "
        "joint inclusion probabilities approximate beyond 12 units; O(N n) for every draw"
    )

    def draw(self, inclusion: ArrayLike, rng: Stream | np.random.Generator | int) -> np.ndarray:
        """The units drawn, in order."""
        values, num = check_inclusion(inclusion)
        taken = values == 1.0
        left = num - int(np.count_nonzero(taken))
        chances = np.where(taken, 0.0, values)
        for uniform in as_stream(rng).uniforms(left):
            weights = draw_weights(chances, left)
            ends = np.cumsum(weights)
            unit = int(np.searchsorted(ends, uniform * ends[-1], side="right"))
            unit = min(unit, int(np.flatnonzero(weights)[-1]))  # rounding can lead beyond
            taken[unit], chances[unit] = True, 0.0
            left -= 1
        return np.flatnonzero(taken)

    def joint(self, inclusion: ArrayLike) -> np.ndarray:
        """Joint inclusion probabilities: exact for up to 12 units that are not certain.

        For more units they are those of `ConditionalPoisson`, which are close: both designs have
        high entropy (Brewer and Donadio 2003).
        """
        values, num = check_inclusion(inclusion)
        few = np.count_nonzero((values > 0.0) & (values < 1.0)) <= MOST_LISTED
        return with_certain(values, num, _listed_joint if few else rejective_joint)


def draw_weights(chances: np.ndarray, left: int) -> np.ndarray:
    """What the next unit is drawn in proportion to; `chances` is 0 for units already drawn."""
    total = chances.sum()
    return chances * (total - chances) / (total - left * chances)


def _listed_joint(inclusion: np.ndarray, num: int) -> np.ndarray:
    """By the probability of every set that can have been drawn after so many steps."""
    sets = {0: 1.0}  # a set is a number whose bits are its units
    units = np.arange(inclusion.size)
    for left in range(num, 0, -1):
        later: dict[int, float] = {}
        for drawn, chance in sets.items():
            weights = draw_weights(np.where(drawn >> units & 1, 0.0, inclusion), left)
            for unit, share in enumerate(chance * weights / weights.sum()):
                if share > 0.0:
                    later[drawn | 1 << unit] = later.get(drawn | 1 << unit, 0.0) + float(share)
        sets = later
    joint = np.zeros((inclusion.size, inclusion.size))
    for drawn, chance in sets.items():
        members = np.flatnonzero(drawn >> units & 1)
        joint[np.ix_(members, members)] += chance
    return joint
