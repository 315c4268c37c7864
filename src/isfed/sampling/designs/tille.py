"""Tillé's elimination: start with all units, and leave them out one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.random_streams import Stream, as_stream
from isfed.sampling.designs.inclusion import check_inclusion
from isfed.sampling.designs.joints import with_certain


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


@dataclass(frozen=True)
class Tille:
    """Tillé's elimination procedure of 1996, whose joint probabilities are a short product.

    >>> Tille().draw([0.5, 0.5, 1.0], rng=0).size
    2
    """

    fixed_size: ClassVar[bool] = True
    all_pairs: ClassVar[bool] = False
    guarantee: ClassVar[str] = (
        "exact inclusion and joint inclusion probabilities, n distinct units; the two smallest "
        "units may never come together; O(N log N) for every draw"
    )

    def draw(self, inclusion: ArrayLike, rng: Stream | np.random.Generator | int) -> np.ndarray:
        """The units drawn, in order."""
        values, num = check_inclusion(inclusion)
        rest = np.flatnonzero((values > 0.0) & (values < 1.0))
        certain = np.flatnonzero(values == 1.0)
        if rest.size == 0:
            return certain
        chances = values[rest]
        steps = _steps(chances, num - certain.size)
        uniforms = as_stream(rng).uniforms(steps.common.size)
        kept: list[int] = []  # units that are not capped any more and not left out
        for step, uniform in enumerate(uniforms.tolist()):
            fresh = steps.order[steps.capped[step + 1] : steps.capped[step]].tolist()
            shares = [1.0 - steps.factor[step + 1] * chances[unit] for unit in fresh]
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
        return np.sort(np.concatenate([certain, rest[kept]]))

    def joint(self, inclusion: ArrayLike) -> np.ndarray:
        """Exact joint inclusion probabilities: the product of 1 - r_i - r_j over the steps."""
        values, num = check_inclusion(inclusion)
        return with_certain(values, num, _elimination_joint)


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


def _elimination_joint(inclusion: np.ndarray, num: int) -> np.ndarray:
    """The product of 1 - r_i - r_j, of which most factors are common to all pairs.

    Let i be the larger unit of a pair, and t the step at which it is first at risk. Until then the
    product is the inclusion probability of j; after it all factors are 1 - 2 `common`.
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
