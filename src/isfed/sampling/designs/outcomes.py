"""Every outcome of a draw with its probability, for populations small enough to list them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from math import comb, prod
from typing import Any

import numpy as np

from isfed.sampling.designs.independent import Poisson, WithReplacement
from isfed.sampling.designs.local_pivotal import LocalPivotal
from isfed.sampling.designs.rejective import Sampford
from isfed.sampling.designs.spread import Along, Spread
from isfed.sampling.designs.systematic import (
    MOST_ENUMERATED,
    Deville,
    HartleyRao,
    Systematic,
    order_outcomes,
    strata_of,
    systematic_cells,
)

Outcome = tuple[tuple[int, ...], float]  # the units, and the probability of just these
MOST_OUTCOMES = 20_000
ROUNDING = 1e-12  # what is nearer to 0 or to 1 is decided


class TooManyError(ValueError):
    """The outcomes of a draw cannot be listed: too many, or the design is not known."""


def outcomes(design: Any, inclusion: np.ndarray) -> list[Outcome]:
    """All sets (with replacement: sequences) that a draw can give, probabilities summing to 1.

    >>> outcomes(Systematic(), np.array([0.5, 0.5, 1.0]))
    [((2, 0), 0.5), ((2, 1), 0.5)]
    """
    kind = type(design)  # not isinstance: what a subclass draws is not known
    if kind is Spread:
        return outcomes(design.along, inclusion)
    if kind is Along:
        along = outcomes(design.design, inclusion[design.order])
        return [(tuple(design.order[list(drawn)].tolist()), chance) for drawn, chance in along]
    num = round(float(inclusion.sum()))
    if kind is WithReplacement:
        units = np.flatnonzero(inclusion > 0.0).tolist()
        _check(len(units) ** num)
        chance = inclusion / num
        return [(drawn, prod(chance[list(drawn)])) for drawn in product(units, repeat=num)]
    certain = tuple(np.flatnonzero(inclusion == 1.0).tolist())
    rest = np.flatnonzero((inclusion > 0.0) & (inclusion < 1.0))
    size = num - len(certain)
    if rest.size == 0:
        return [(certain, 1.0)]
    if kind is LocalPivotal:
        sets = _pivotal(inclusion[rest], design.points[rest])
    else:
        sets = _open_outcomes(kind, inclusion[rest], size)
    total: dict[tuple[int, ...], float] = {}  # the same sets together
    for drawn, chance in sets:
        units = (*certain, *rest[sorted(drawn)].tolist())
        total[units] = total.get(units, 0.0) + chance
        _check(len(total))
    return [(units, chance) for units, chance in total.items() if chance > 0.0]


def _check(count: float) -> None:
    if count > MOST_OUTCOMES:
        raise TooManyError(f"{count:.3g} outcomes are too many to list")


def _open_outcomes(kind: type, inclusion: np.ndarray, num: int) -> Iterator[Outcome]:
    """The outcomes among units that are neither certain nor impossible."""
    count = inclusion.size
    if kind is Poisson:
        _check(2.0**count)
        for drawn in product((False, True), repeat=count):
            taken = np.array(drawn)
            chance = np.where(taken, inclusion, 1.0 - inclusion).prod()
            yield tuple(np.flatnonzero(taken).tolist()), float(chance)
    elif kind is Systematic:
        yield from ((tuple(units.tolist()), p) for units, p in systematic_cells(inclusion, num))
    elif kind is Deville:
        yield from _deville(inclusion, num)
    elif kind is HartleyRao:
        if num == 1:
            yield from (((unit,), float(p)) for unit, p in enumerate(inclusion))
            return
        if count > MOST_ENUMERATED:
            raise TooManyError(f"{count} units have too many orders to list")
        yield from ((tuple(units.tolist()), p) for units, p in order_outcomes(inclusion, num))
    elif kind is Sampford:
        odds = inclusion / (1.0 - inclusion)
        _check(comb(count, num))
        sets = list(combinations(range(count), num))
        weights = np.array(
            [odds[list(drawn)].prod() * (num - inclusion[list(drawn)].sum()) for drawn in sets]
        )
        yield from zip(sets, (weights / weights.sum()).tolist(), strict=True)
    else:
        raise TooManyError(f"what {kind.__name__} draws is not known")


def _deville(inclusion: np.ndarray, num: int) -> Iterator[Outcome]:
    """Stratum after stratum, every choice that it leaves."""
    first = [((), 1.0, -1, 0.0)]  # drawn, probability, unit on the border, its part before
    for units, lengths in strata_of(inclusion, num):
        later = []
        last = int(units[-1])
        for drawn, chance, border, part in first:
            chances = lengths.copy()
            if border >= 0 and units[0] == border:
                after = lengths[0]
                again = 0.0 if border in drawn else after / (1.0 - part)
                chances *= (1.0 - again) / (1.0 - after) if after < 1.0 else 0.0
                chances[0] = again
            crosses = lengths[-1] < inclusion[last] * (1.0 - 1e-12) and last != border
            edge = (last, float(lengths[-1])) if crosses else (-1, 0.0)
            later += [
                ((*drawn, int(unit)), chance * float(share), *edge)
                for unit, share in zip(units, chances, strict=True)
                if share > 0.0
            ]
        _check(len(later))
        first = later
    yield from ((drawn, chance) for drawn, chance, _, _ in first)


def _pivotal(inclusion: np.ndarray, points: np.ndarray) -> Iterator[Outcome]:
    """Fight after fight, every pair that can meet and both ends of it."""
    squared_distance = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    np.fill_diagonal(squared_distance, np.inf)
    waiting = {tuple(inclusion.tolist()): 1.0}
    while waiting:
        later: dict[tuple[float, ...], float] = {}
        for chances, chance in waiting.items():
            left = [unit for unit, p in enumerate(chances) if ROUNDING < p < 1.0 - ROUNDING]
            if len(left) < 2:
                yield tuple(unit for unit, p in enumerate(chances) if p > 0.5), chance
                continue
            for one in left:
                two = min(left, key=lambda unit, one=one: squared_distance[one, unit])
                for ends, share in _ends(chances[one], chances[two]):
                    after = list(chances)
                    after[one], after[two] = ends
                    key = tuple(after)
                    later[key] = later.get(key, 0.0) + chance * share / len(left)
        _check(len(later))
        waiting = later


def _ends(one: float, two: float) -> list[tuple[tuple[float, float], float]]:
    """What a fight leaves of two inclusion probabilities, with the chance of it."""
    both = one + two
    if both < 1.0:  # one of them is out
        return [((both, 0.0), one / both), ((0.0, both), two / both)]
    rest = both - 1.0  # one of them is in
    return [((1.0, rest), (1.0 - two) / (1.0 - rest)), ((rest, 1.0), (1.0 - one) / (1.0 - rest))]
