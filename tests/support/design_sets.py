"""The probability of every set that a design can draw, by the definition of the design."""

import math
from fractions import Fraction
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest

from isfed.sampling.designs import (
    Brewer,
    ConditionalPoisson,
    HartleyRao,
    Tille,
    inclusion_probabilities,
)
from isfed.sampling.designs.outcomes import outcomes


def sets_of(design: Any, inclusion: np.ndarray) -> dict[tuple[int, ...], Any]:
    """For inclusion probabilities between 0 and 1, of which there are few."""
    literal: dict[type, Any] = {
        ConditionalPoisson: _rejective,
        Brewer: _brewer,
        HartleyRao: _orders,
        Tille: _tille,
    }
    if type(design) in literal:
        return literal[type(design)](inclusion)
    return dict(outcomes(design, inclusion))


def _rejective(inclusion):
    """Every set by the product of the odds; which odds these are is found by bisection here.

    A set of n units has the probability of its odds' product. The odds of one unit at a time are
    bisected until its inclusion is right, over and over.
    """
    count, num = inclusion.size, round(inclusion.sum())
    members = np.array([np.isin(np.arange(count), s) for s in combinations(range(count), num)])
    logits = np.log(inclusion / (1 - inclusion))
    for _ in range(400):
        for unit in range(count):
            weights = np.exp((members * logits).sum(axis=1))
            inside = weights[members[:, unit]].sum()
            outside = weights[~members[:, unit]].sum()
            # With this unit's odds times x, its inclusion is x inside / (x inside + outside).
            logits[unit] += np.log(inclusion[unit] * outside / ((1 - inclusion[unit]) * inside))
    weights = np.exp((members * logits).sum(axis=1))
    return {
        tuple(np.flatnonzero(row)): w / weights.sum()
        for row, w in zip(members, weights, strict=True)
    }


def _brewer(inclusion):
    """Every order of drawing, in fractions: pi (n - a - pi) / (n - a - r pi) of the remaining."""
    chance = [Fraction(p).limit_denominator(10**9) for p in inclusion]
    num, found = round(float(sum(chance))), {}

    def step(drawn, probability, left):
        if left == 0:
            key = tuple(sorted(drawn))
            found[key] = found.get(key, 0) + probability
            return
        total = num - sum(chance[u] for u in drawn)
        weights = {
            u: p * (total - p) / (total - left * p) for u, p in enumerate(chance) if u not in drawn
        }
        for unit, weight in weights.items():
            step((*drawn, unit), probability * weight / sum(weights.values()), left - 1)

    step((), Fraction(1), num)
    return found


def _orders(inclusion):
    """Every order and every place where a systematic draw can begin, in whole numbers."""
    shares = [Fraction(p).limit_denominator(1000) for p in inclusion]
    cells = math.lcm(*(share.denominator for share in shares))
    lengths = np.array([int(share * cells) for share in shares])
    orders = np.array(list(permutations(range(lengths.size))))
    ends, found = np.cumsum(lengths[orders], axis=1), np.zeros(2**lengths.size, int)
    for start in range(cells):
        sets = np.zeros(len(orders), int)
        for point in range(start, lengths.sum(), cells):
            sets += 1 << orders[np.arange(len(orders)), (ends <= point).sum(axis=1)]
        found += np.bincount(sets, minlength=found.size)
    return {
        tuple(unit for unit in range(lengths.size) if number >> unit & 1): Fraction(
            int(found[number]), cells * len(orders)
        )
        for number in np.flatnonzero(found).tolist()
    }


def _tille(inclusion):
    """Every order of elimination: 1 - pi(k) / pi(k + 1), pi(k) the inclusion for k units."""
    count, num = inclusion.size, round(inclusion.sum())
    sets = {tuple(range(count)): 1.0}
    for size in range(count - 1, num - 1, -1):
        before = inclusion_probabilities(inclusion, size + 1)
        out = 1.0 - inclusion_probabilities(inclusion, size) / before
        later = {}
        for kept, chance in sets.items():
            assert sum(out[list(kept)]) == pytest.approx(1.0, abs=1e-12)
            for unit in (u for u in kept if out[u] > 1e-14):  # capped before and after: it stays
                key = tuple(u for u in kept if u != unit)
                later[key] = later.get(key, 0.0) + chance * out[unit]
        sets = later
    return sets
