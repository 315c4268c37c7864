"""When a run has settled, and what it waits for: the directions that matter to the risk.

In the eigenbasis of the Hessian every component of the error is a recursion of its own (see
`prediction`): from the start c_i^2 to its steady msd_i, by the factor (1 - mu lambda_i)^2 a round,
and it adds lambda_i / 2 of that to the risk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CLOSE = 0.1  # of the excess risk in the end: settled is what stays within it
WITHOUT_NOISE = 1e-3  # of the excess risk at the start, where nothing is left in the end


@dataclass(frozen=True, eq=False)
class Settling:
    """How many rounds it takes, and in which direction it takes so long."""

    rounds: float
    direction: np.ndarray  # (M,), a unit vector

    def features(self, num_features: int, *, least: float = 0.1) -> list[tuple[int, float]]:
        """The features that make up the direction, (feature, share), the largest first."""
        share = (self.direction.reshape(-1, num_features) ** 2).sum(axis=0)
        order = np.argsort(-share, kind="stable")
        return [(int(j), float(share[j])) for j in order if share[j] >= least]


def settling(
    curvature: np.ndarray,
    basis: np.ndarray,
    noise: np.ndarray,
    start: np.ndarray,
    step_size: float,
) -> Settling:
    """Rounds until the expected excess risk is, and stays, within a tenth of where it ends.

    curvature: (M,), the eigenvalues of the Hessian.
    basis: (M, M), its eigenvectors as columns.
    noise: (M,), the variance of the gradient estimate along them.
    start: (M,), w_0 - w^o along them.
    step_size: below 2 / (largest curvature).

    >>> import numpy as np
    >>> one = np.ones(1)
    >>> found = settling(one, np.eye(1), one, 10 * one, 0.1)
    >>> shrink = 0.9 ** (2 * found.rounds)
    >>> msd = 0.01 / (1 - 0.9**2)
    >>> bool(np.isclose(abs(100 - msd) * shrink, 0.1 * msd))
    True
    """
    shrink = (1.0 - step_size * curvature) ** 2
    moves = shrink < 1.0  # a direction without curvature has no noise either
    steady = np.zeros(len(curvature))
    steady[moves] = step_size**2 * noise[moves] / (1.0 - shrink[moves])
    away = 0.5 * curvature * np.abs(start**2 - steady) * moves
    end = 0.5 * float(curvature @ steady)
    close = CLOSE * end if end > 1e-300 else WITHOUT_NOISE * float(away.sum())

    with np.errstate(divide="ignore"):
        rate = np.where(moves, -np.log(np.maximum(shrink, 1e-300)), 0.0)

    def left(rounds: float) -> np.ndarray:
        return away * np.exp(-rate * rounds)

    low, high = 0.0, 1.0
    while left(high).sum() > close:
        low, high = high, 2.0 * high
    if left(0.0).sum() <= close:
        high = 0.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if left(middle).sum() > close else (low, middle)
    return Settling(high, basis[:, int(np.argmax(left(high)))])
