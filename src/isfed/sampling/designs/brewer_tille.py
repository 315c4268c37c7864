"""Designs that decide one unit at a time: Brewer draws them, Tillé leaves them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from isfed.base.random_streams import Stream
from isfed.sampling.designs.design_protocol import FixedSize, joint_of_sets
from isfed.sampling.designs.rejective import rejective_joint

MOST_LISTED = 12  # units whose 2^N sets are gone through


@dataclass(frozen=True)
class Brewer(FixedSize):
    """Brewer's design of 1975: n draws, one after the other, without replacement.

    For more than 12 open units `joint` is that of `ConditionalPoisson`, which is close: both
    designs have high entropy (Brewer and Donadio 2003).

    Examples:
        >>> Brewer().draw([0.5, 0.5, 1.0], rng=0).size
        2
    """

    exact_joint: ClassVar[bool] = False
    guarantee: ClassVar[str] = (
        "exact inclusion probabilities, n distinct units, all pairs possible, no preparation; "
        "joint inclusion probabilities approximate beyond 12 units; O(N n) for every draw"
    )

    def _draw_open(self, inclusion: np.ndarray, num: int, stream: Stream) -> list[int]:
        chances, drawn = inclusion.copy(), []
        for step, uniform in enumerate(stream.uniforms(num)):
            weights = _draw_weights(chances, num - step)
            ends = np.cumsum(weights)
            unit = int(np.searchsorted(ends, uniform * ends[-1], side="right"))
            unit = min(unit, int(np.flatnonzero(weights)[-1]))  # rounding can lead beyond
            drawn.append(unit)
            chances[unit] = 0.0
        return drawn

    def _open_joint(self, inclusion: np.ndarray, num: int) -> np.ndarray:
        """By the probability of every set that can have been drawn after so many steps."""
        if inclusion.size > MOST_LISTED:
            return rejective_joint(inclusion, num)
        sets = {0: 1.0}  # a set is a number whose bits are its units
        units = np.arange(inclusion.size)
        for left in range(num, 0, -1):
            later: dict[int, float] = {}
            for drawn, chance in sets.items():
                weights = _draw_weights(np.where(drawn >> units & 1, 0.0, inclusion), left)
                for unit, share in enumerate(chance * weights / weights.sum()):
                    if share > 0.0:
                        later[drawn | 1 << unit] = later.get(drawn | 1 << unit, 0.0) + float(share)
            sets = later
        members = ((np.flatnonzero(drawn >> units & 1), chance) for drawn, chance in sets.items())
        return joint_of_sets(members, inclusion.size)


def _draw_weights(chances: np.ndarray, left: int) -> np.ndarray:
    """What the next unit is drawn in proportion to; `chances` is 0 for units already drawn."""
    total = chances.sum()
    return chances * (total - chances) / (total - left * chances)


@dataclass(frozen=True)
class Tille(FixedSize):
    """Tillé's elimination procedure of 1996, whose joint probabilities are a short product.

    Examples:
        >>> Tille().draw([0.5, 0.5, 1.0], rng=0).size
        2
    """

    all_pairs: ClassVar[bool] = False
    guarantee: ClassVar[str] = (
        "exact inclusion and joint inclusion probabilities, n distinct units; the two smallest "
        "units may never come together; O(N log N) for every draw"
    )

    def _draw_open(self, inclusion: np.ndarray, num: int, stream: Stream) -> list[int]:
        steps = _steps(inclusion, num)
        kept: list[int] = []  # units that are not capped any more and not left out
        for step, uniform in enumerate(stream.uniforms(steps.common.size).tolist()):
            fresh = steps.order[steps.capped[step + 1] : steps.capped[step]].tolist()
            shares = [1.0 - steps.factor[step + 1] * inclusion[unit] for unit in fresh]
            common = float(steps.common[step])
            place = uniform * (sum(shares) + common * len(kept))  # the sum is 1 but for rounding
            gone = 0
            while gone < len(fresh) and place >= shares[gone]:
                place -= shares[gone]
                gone += 1
            if gone < len(fresh) or not kept:
                fresh.pop(min(gone, len(fresh) - 1))
            else:
                kept.pop(min(int(place / common), len(kept) - 1) if common > 0.0 else -1)
            kept += fresh
        return kept

    def _open_joint(self, inclusion: np.ndarray, num: int) -> np.ndarray:
        """The product over the steps of 1 - r_i - r_j, of which most factors are common.

        Let i be the larger unit of a pair, and t the step at which it is first at risk. Until then
        the product is the inclusion probability of j; after it all factors are 1 - 2 `common`.
        """
        order, capped, factor, common = _steps(inclusion, num)
        larger = inclusion[order]
        # The step at which each unit is first at risk: the first after which it is not capped.
        at = np.searchsorted(-capped[1:], -np.arange(larger.size), side="left")
        later = np.append(np.cumprod((1.0 - 2.0 * common)[::-1])[::-1], 1.0)[at + 1]
        before = np.minimum(1.0, factor[at][:, None] * larger)  # (i, j): of j, before i is at risk
        before = np.where(np.arange(larger.size) < capped[at][:, None], 1.0, before)
        own = 1.0 - factor[at + 1] * larger
        other = 1.0 - factor[at + 1][:, None] * larger / before
        ordered = before * (1.0 - own[:, None] - other) * later[:, None]
        ordered = np.triu(ordered, 1)
        joint = np.empty_like(ordered)
        joint[np.ix_(order, order)] = ordered + ordered.T
        return joint


class _Steps(NamedTuple):
    """What is left after each elimination: sizes N-1, ..., n; units by falling inclusion.

    The inclusion probabilities for k units are capped at 1: `capped` units come first, and those
    of the others are `factor` times what is asked for. A unit is left out with the probability 1 -
    (its inclusion for k) / (its inclusion for k + 1), whatever was left out before.
    """

    order: np.ndarray  # (N,)
    capped: np.ndarray  # (N - n + 1,) for sizes N, ..., n
    factor: np.ndarray  # (N - n + 1,)
    common: np.ndarray  # (N - n,) the probability to leave out a unit that is not capped before


def _steps(inclusion: np.ndarray, num: int) -> _Steps:
    """The schedule of eliminations from all units to `num`."""
    order = np.argsort(-inclusion, kind="stable")
    sizes = np.arange(inclusion.size, num - 1, -1)
    largest = inclusion[order]
    tails = np.cumsum(largest[::-1])[::-1]  # what the units from here on sum to
    tails *= num / tails[0]
    capped = np.zeros(sizes.size, np.int64)
    factor = np.ones(sizes.size)  # for `num` units: what is asked for
    first = 0
    for place in range(sizes.size - 2, 0, -1):  # more units are capped as the size grows
        while (sizes[place] - first) * largest[first] >= tails[first] and sizes[place] > first + 1:
            first += 1
        capped[place] = first
        factor[place] = (sizes[place] - first) / tails[first]
    capped[0], factor[0] = inclusion.size, 0.0
    before = np.where(factor[:-1] > 0.0, factor[:-1], np.inf)
    return _Steps(order, capped, factor, 1.0 - factor[1:] / before)
