"""Differential privacy in numbers: what every agent has lost after so many rounds.

The unit is an agent: all that it ever sends. Whoever sees the models, and the scores that were
released with noise, learns about the data of agent k at most what (epsilon_k, delta) allows,
compared with agent k having sent nothing. Each round is a Gaussian mechanism, of which the agent
is part with its inclusion probability, independently of the others (Poisson sampling).

Inclusion probabilities are rounded up to levels, so that rounds of one level are composed at once.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

STEPS = 4  # levels per factor of two
BELOW, ABOVE = 40, 64  # levels around L / K: from L / K / 1024 to 65536 L / K, at most 1
NUM_LEVELS = BELOW + 1 + ABOVE


def levels(uniform: float) -> np.ndarray:
    """(NUM_LEVELS,) levels of inclusion probability, rising to 1; L / K itself is one of them.

    Args:
        uniform: L / K.
    """
    return np.minimum(uniform * 2.0 ** (np.arange(-BELOW, ABOVE + 1) / STEPS), 1.0)


def level_of(inclusion: np.ndarray, uniform: float) -> np.ndarray:
    """(K,) the number of the lowest level that is not below each inclusion probability."""
    return np.searchsorted(levels(uniform) * (1.0 + 1e-12), inclusion)


def _accounting() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise ImportError(
            "privacy with noise needs the package dp-accounting: pip install 'isfed[privacy]'"
        ) from error
    return dp_accounting


def _sampled(inclusion: float, noise: float) -> Any:
    dp = _accounting()
    return dp.PoissonSampledDpEvent(min(inclusion, 1.0), dp.GaussianDpEvent(noise))


def _renyi_epsilon(inclusion: float, noise: float, rounds: int, delta: float) -> float:
    accountant = _accounting().rdp.RdpAccountant()
    return accountant.compose(_sampled(inclusion, noise), rounds).get_epsilon(delta)


@lru_cache(maxsize=512)
def equal_noise(
    inclusion: float, *, uniform: float, noise: float, rounds: int, delta: float
) -> float:
    """The noise multiplier that costs an agent as much privacy as `noise` costs at L / K.

    By Renyi's accountant, which is fast; what was lost is computed by `epsilons`.

    Args:
        inclusion: its inclusion probability.
        uniform: L / K.
        noise: the noise multiplier at that inclusion probability.
        rounds: how many rounds are planned.
        delta: the chance that the statement fails.
    """
    if inclusion == uniform:
        return noise
    from scipy.optimize import brentq

    wanted = _renyi_epsilon(uniform, noise, rounds, delta)

    def excess(logarithm: float) -> float:
        return _renyi_epsilon(inclusion, math.exp(logarithm), rounds, delta) - wanted

    low = high = math.log(noise)
    while excess(low) < 0.0:
        low -= 0.5
    while excess(high) > 0.0:
        high += 0.5
    root: Any = brentq(excess, low, high, xtol=1e-4)
    return math.exp(root)


@lru_cache(maxsize=4096)
def _epsilon(spent: tuple[tuple[float, float, int], ...], scores: Any, delta: float) -> float:
    dp = _accounting()
    accountant = dp.pld.PLDAccountant()
    for inclusion, noise, count in spent:
        accountant.compose(_sampled(inclusion, noise), count)
    if scores is not None:
        accountant.compose(dp.LaplaceDpEvent(scores[0]), scores[1])
    return accountant.get_epsilon(delta)


def epsilons(
    spent: np.ndarray,
    multipliers: dict[int, float],
    *,
    uniform: float,
    delta: float,
    scores: tuple[float, int] | None = None,
) -> np.ndarray:
    """(K,) epsilon of every agent, by its privacy loss distribution.

    Args:
        spent: (K, B) in how many rounds each agent was at each level.
        multipliers: the noise multiplier of every level that was used.
        uniform: L / K.
        delta: the chance that the statement fails.
        scores: the noise multiplier of a released score, and how many each agent released.
    """
    grid = levels(uniform)
    if scores is not None and not scores[1]:
        scores = None
    rows, which = np.unique(spent, axis=0, return_inverse=True)
    values = []
    for row in rows:
        used = tuple(
            (float(grid[b]), multipliers[int(b)], int(row[b])) for b in np.flatnonzero(row)
        )
        values.append(_epsilon(used, scores, delta) if used or scores else 0.0)
    return np.array(values)[which.reshape(-1)]
