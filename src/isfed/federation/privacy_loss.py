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
MOST_PUSH = 1.2  # how far an agent drawn often may move the model, over one drawn as L / K
# Of privacy losses, rounded so that epsilon is too large rather than too small: in the known
# figures by less than 1e-4, for a tenth of the time.
INTERVAL = 1e-3
# Renyi's orders; those below 2 do not converge and would be left out with a warning each.
ORDERS = [2.0 + i / 10.0 for i in range(90)] + [*range(11, 64), 128, 256, 512]


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


def _renyi_epsilon(inclusion: float, noise: float, rounds: int, delta: float) -> float:
    dp = _accounting()
    sampled = dp.PoissonSampledDpEvent(min(inclusion, 1.0), dp.GaussianDpEvent(noise))
    return dp.rdp.RdpAccountant(ORDERS).compose(sampled, rounds).get_epsilon(delta)


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


def fair_noise(
    inclusion: float, *, uniform: float, noise: float, rounds: int, delta: float
) -> float:
    """The same, or more where an agent drawn that often could push the model too far.

    With the noise multiplier z_k an agent adds at most clip z / z_k to a sum, inclusion / (L / K)
    times as often as others. Those that `MOST_PUSH` limits lose less privacy than the others.

    Args:
        inclusion, uniform, noise, rounds, delta: as in `equal_noise`.
    """
    least = noise * inclusion / (MOST_PUSH * uniform)
    options = {"uniform": uniform, "noise": noise, "rounds": rounds, "delta": delta}
    return max(equal_noise(inclusion, **options), least)


@lru_cache(maxsize=256)
def _one_round(inclusion: float, noise: float) -> Any:
    _accounting()
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=min(inclusion, 1.0), value_discretization_interval=INTERVAL
    )


@lru_cache(maxsize=256)
def _rounds(inclusion: float, noise: float, count: int) -> Any:
    return _one_round(inclusion, noise).self_compose(count)


@lru_cache(maxsize=16)
def _released(noise: float, count: int) -> Any:
    _accounting()
    from dp_accounting.pld import privacy_loss_distribution

    one = privacy_loss_distribution.from_laplace_mechanism(
        noise, value_discretization_interval=INTERVAL
    )
    return one.self_compose(count)


@lru_cache(maxsize=4096)
def _epsilon(spent: tuple[tuple[float, float, int], ...], scores: Any, delta: float) -> float:
    parts = [_rounds(*each) for each in spent]
    parts += [] if scores is None else [_released(*scores)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part)
    return float(whole.get_epsilon_for_delta(delta))


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
