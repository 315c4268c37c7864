"""Joint inclusion probabilities of rejective designs, by a discrete Fourier transform.

Take every unit independently with its chance p, and let f(z) = prod_k (1 - p_k + p_k z). The
coefficient of z^n belongs to the sets of n units. To demand that unit i is in the set, replace its
factor by p_i z, which is a multiplication by g_i = p_i z / (1 - p_i + p_i z). On the unit circle
the coefficient is a mean, so all pairs together are one product of matrices.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

NEGLIGIBLE = 1e-40  # a frequency of this weight changes no digit
MOST_ROUNDS = 1000


def with_certain(
    inclusion: np.ndarray, num: int, joint_of_open: Callable[[np.ndarray, int], np.ndarray]
) -> np.ndarray:
    """Joint probabilities of all units, from a function of those that may or may not be drawn."""
    joint = np.outer(inclusion, inclusion)  # right for certain units: P(i and j) = P(j)
    rest = np.flatnonzero((inclusion > 0.0) & (inclusion < 1.0))
    size = num - int(np.count_nonzero(inclusion == 1.0))
    if rest.size:
        pairs = joint_of_open(inclusion[rest], size) if size > 1 else np.zeros((rest.size,) * 2)
        joint[np.ix_(rest, rest)] = np.maximum((pairs + pairs.T) / 2.0, 0.0)
    np.fill_diagonal(joint, inclusion)
    return joint


def _spectrum(chance: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    """(N, F) the factors g, and (F,) the weights of the frequencies in the mean."""
    count = 2 * (chance.size // 2) + 1  # odd: z = -1 could make a factor zero
    angles = 2.0 * np.pi * np.arange(count // 2 + 1) / count
    turn = np.exp(1j * angles)
    factors = 1.0 - chance[:, None] + chance[:, None] * turn
    weights = factors.prod(axis=0) * np.exp(-1j * angles * num)
    weights[1:] *= 2.0  # the frequencies of opposite sign
    kept = np.abs(weights) > NEGLIGIBLE
    return (chance[:, None] * turn / factors)[:, kept], weights[kept] / count


def conditional_joint(chance: np.ndarray, num: int) -> np.ndarray:
    """P(i and j drawn) for independent units, given that `num` are drawn (off the diagonal)."""
    factors, weights = _spectrum(chance, num)
    return np.real((factors * weights) @ factors.T) / np.real(weights.sum())


def sampford_joint(inclusion: np.ndarray, num: int) -> np.ndarray:
    """The same for Sampford's design: sets count in proportion to n - (sum of their inclusion)."""
    factors, weights = _spectrum(inclusion, num)
    open_share = (1.0 - inclusion)[:, None]
    # The sum of 1 - inclusion over a set that has i and j: these two, and the others' mean.
    own = open_share * (1.0 - factors)
    others = (open_share * factors).sum(axis=0)
    half = ((factors * own) * weights) @ factors.T
    both = ((factors * (weights * others)) @ factors.T + half + half.T).real
    return both / (weights * others).sum().real


def balanced_joint(inclusion: np.ndarray, balanced: np.ndarray) -> np.ndarray:
    """An approximation for designs of high entropy that are balanced on (N, p) variables.

    Deville and Tillé (2005): the covariances of independent units, given normally distributed
    totals of the variables. Their variances `loose` solve a fixed-point equation that makes the
    diagonal exact, where that has a solution; otherwise they are scaled.
    """
    exact = inclusion * (1.0 - inclusion)
    rows = balanced / inclusion[:, None]
    loose = exact.copy()
    for _ in range(MOST_ROUNDS):
        covariance = _projected(loose, rows)
        diagonal = np.diag(covariance)
        if np.all(np.abs(diagonal - exact) <= 1e-13):
            break
        loose = loose * np.sqrt(exact / np.maximum(diagonal, 1e-3 * exact))
    joint = np.outer(inclusion, inclusion) + covariance
    np.fill_diagonal(joint, inclusion)
    return np.clip(joint, 0.0, np.minimum.outer(inclusion, inclusion))


def _projected(loose: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """diag(loose) minus its part along the balanced variables."""
    weighed = loose[:, None] * rows
    inverse = np.linalg.pinv(rows.T @ weighed, hermitian=True)
    return np.diag(loose) - weighed @ inverse @ weighed.T
