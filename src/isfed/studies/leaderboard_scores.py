"""The statistics of a leaderboard: costs to a target, profiles, paired differences, effects."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isfed.federation.ledger import FORWARD

FINAL_SHARE = 0.1  # of the rounds, the last ones, whose mean distance is the level of a run
SMOOTHED = 100  # parts of a run: a target is reached when the mean over one of them is below it
AXES = ("rounds", "bytes_up", "work", "seconds")
FARTHEST = 4.0  # times the best: where a performance profile ends
RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, eq=False)
class Scored:
    """The runs of a method on a problem that count.

    Attributes:
        levels: (R,) mean of |w_i - w^o|^2 over the last rounds; inf where the run diverged.
        msd: (R, rounds) |w_i - w^o|^2; inf from where a run diverged.
        looks: (points,) rounds at which the ledger was read.
        costs: by axis but for rounds, (R, points).
        params: (R, M) the last models.
        prints: (R,) a checksum of each run, equal if and only if it is the same bit for bit.
        reason: why runs diverged or failed; empty if none did.
    """

    levels: np.ndarray
    msd: np.ndarray
    looks: np.ndarray
    costs: Mapping[str, np.ndarray]
    params: np.ndarray
    prints: tuple[str, ...]
    reason: str = ""

    @property
    def diverged(self) -> int:
        """How many runs did not end with a finite level."""
        return int(np.count_nonzero(~np.isfinite(self.levels)))

    def costs_to(self, target: float) -> dict[str, np.ndarray]:
        """(R,) by axis: what every run cost when it first reached a distance; inf if never."""
        rounds = np.array([first_below(row, target) for row in self.msd])
        rounds[~np.isfinite(self.levels)] = np.inf
        reached = {"rounds": rounds}
        for axis, values in self.costs.items():
            rows = zip(rounds, values, strict=True)
            reached[axis] = np.array(
                [np.interp(r, self.looks, v) if math.isfinite(r) else math.inf for r, v in rows]
            )
        return reached


def spent_of(measured: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The cost axes from what was read off the ledgers."""
    return {
        "bytes_up": measured["bytes_up"],
        "work": measured["gradients"] + FORWARD * measured["forwards"],
        "seconds": measured["seconds"],
    }


def first_below(msd: np.ndarray, target: float) -> float:
    """The first round after which the mean over the last hundredth of a run is below a target.

    >>> first_below(np.array([4.0, 3.0, 2.0, 1.0]), 2.0), first_below(np.array([4.0, 3.0]), 2.0)
    (3.0, inf)
    """
    window = max(1, msd.size // SMOOTHED)
    sums = np.cumsum(np.concatenate([np.zeros(1), np.where(np.isfinite(msd), msd, 1e300)]))
    means = (sums[window:] - sums[:-window]) / window
    below = np.flatnonzero(means <= target)
    return float(below[0] + window) if below.size else math.inf


def excess_decibels(levels: np.ndarray, worst: float) -> np.ndarray:
    """Levels in dB; a run that diverged counts as the worst level of all."""
    return 10.0 * np.log10(np.where(np.isfinite(levels), np.maximum(levels, 1e-300), worst))


class Ranked(NamedTuple):
    """A method's place on an axis: the area under its performance profile from 1 to 4."""

    method: str
    score: float
    profile: np.ndarray  # share of the pairs of problem and seed within each of `PLACES`
    reached: float  # share of the pairs of problem and seed that reached the target


PLACES = np.linspace(1.0, FARTHEST, 61)  # where a profile is evaluated: multiples of the best


def rank(by_problem: Sequence[Mapping[str, np.ndarray]], ties: Mapping[str, float]) -> list[Ranked]:
    """The methods by the area of their profiles, best first.

    The best of a problem is the smallest median of all methods there.

    Args:
        by_problem: for every problem, the costs of its methods, (R,) each; inf for a miss. A
            method that did not run on a problem has missed its target there.
        ties: by method, what decides between equal areas; larger is better.
    """
    names = dict.fromkeys(name for costs in by_problem for name in costs)
    ratios: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for costs in by_problem:
        best = min(float(np.median(values)) for values in costs.values())
        missed = np.full(next(iter(costs.values())).size, np.inf)
        for name in names:
            known = name in costs and math.isfinite(best)
            ratios[name].append(costs[name] / best if known else missed)
    ranked = []
    for name, parts in ratios.items():
        together = np.concatenate(parts)
        curve = (together[:, None] <= PLACES).mean(axis=0)
        area = float(np.mean((curve[1:] + curve[:-1]) / 2.0))
        ranked.append(Ranked(name, area, curve, float(np.isfinite(together).mean())))
    return sorted(ranked, key=lambda one: (-one.score, -ties.get(one.method, -math.inf)))


class Difference(NamedTuple):
    """The mean of paired differences, with its 95% interval."""

    mean: float
    low: float
    high: float
    wins: int  # pairs in which the method was better
    pairs: int
    p: float  # of Wilcoxon's signed ranks; after `holm`, corrected

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0.0 or self.high < 0.0

    def words(self) -> str:
        """In dB, with the interval."""
        return f"{self.mean:.1f} dB ({self.low:.1f} to {self.high:.1f})"


def paired(gains: np.ndarray) -> Difference:
    """The mean of (n,) paired gains, with a bias-corrected and accelerated bootstrap interval."""
    from scipy import stats  # half a second to import, and needed here alone

    gains = np.asarray(gains, np.float64)
    mean, wins = float(gains.mean()), int(np.count_nonzero(gains > 0.0))
    if gains.size < 2 or np.ptp(gains) <= 1e-12 * np.abs(gains).max():
        return Difference(mean, mean, mean, wins, gains.size, 1.0)
    found = stats.bootstrap(
        (gains,), np.mean, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, method="BCa",
        rng=np.random.default_rng(0), vectorized=True,
    )  # fmt: skip
    low, high = map(float, found.confidence_interval)
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = float(gains.min()), float(gains.max())
    ranked: Any = stats.wilcoxon(gains)
    return Difference(mean, low, high, wins, gains.size, float(ranked.pvalue))


def holm(differences: Mapping[Any, Difference]) -> dict[Any, Difference]:
    """The same with p corrected by Holm for how many there are.

    >>> three = {i: Difference(1.0, 0.5, 1.5, 9, 10, p) for i, p in enumerate((0.01, 0.04, 0.02))}
    >>> [round(one.p, 3) for one in holm(three).values()]
    [0.03, 0.04, 0.04]
    """
    order = sorted(differences, key=lambda key: differences[key].p)
    corrected, largest = {}, 0.0
    for place, key in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * differences[key].p))
        corrected[key] = differences[key]._replace(p=largest)
    return {key: corrected[key] for key in differences}


Cells = Mapping[tuple[str, ...], np.ndarray]  # (n,) dB over problems and seeds, by levels


def effects(
    cells: Cells, factors: Mapping[str, Sequence[str]], order: int
) -> dict[tuple[str, ...], Difference]:
    """What levels gain over the first of their factors, whatever the other factors are.

    Order 1: one level. Order 2: how much more a level gains together with a level of another factor
    than without it. A gain is the mean over the combinations of the others for which all cells that
    are compared exist, for each problem and seed. The keys are (factor, level), once or twice.
    """
    places, found = {name: place for place, name in enumerate(factors)}, {}

    def gain(key: tuple[str, ...], names: Sequence[str]) -> np.ndarray:
        if not names:
            return cells[key]
        place = places[names[-1]]
        base = (*key[:place], factors[names[-1]][0], *key[place + 1 :])
        with_level, without = gain(key, names[:-1]), gain(base, names[:-1])
        return without - with_level if len(names) == 1 else with_level - without

    for names in itertools.combinations(factors, order):
        for levels in itertools.product(*(factors[name][1:] for name in names)):
            gains = []
            for key in cells:
                if all(key[places[n]] == level for n, level in zip(names, levels, strict=True)):
                    with contextlib.suppress(KeyError):
                        gains.append(gain(key, names))
            if gains:
                pairs = zip(names, levels, strict=True)
                found[tuple(itertools.chain(*pairs))] = paired(np.mean(gains, axis=0))
    return holm(found)
