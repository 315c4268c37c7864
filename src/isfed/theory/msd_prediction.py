"""What the msd will be and when a run has settled, to first order: no training run.

With H the Hessian of the risk at w^o and R the covariance of the gradient estimate there, the error
obeys w_i - w^o = (I - mu H)(w_{i-1} - w^o) - mu s_i. In the eigenbasis of H every component is a
first-order recursion of its own, and the steady-state msd is mu/2 trace(H^-1 R) for small mu.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from isfed.methods import ISFedAvg
from isfed.problems import Problem, optimum
from isfed.theory.probabilities import Choices, TheoryError
from isfed.theory.round_curvature import hessian
from isfed.theory.round_variance import gradient_variance
from isfed.theory.stable_step_size import with_step_size

CLOSE = 0.1  # of the excess risk in the end: settled is what stays within it
WITHOUT_NOISE = 1e-3  # of the excess risk at the start, where nothing is left in the end


@dataclass(frozen=True, eq=False)
class Prediction:
    """The error recursion near the point that a run converges to, in the eigenbasis of H.

    Args:
        step_size: mu, the size of a local step.
        curvature: (M,) the eigenvalues of H: of the risk, weighted by E_k if the 1/E_k is left out.
        basis: (M, M) its eigenvectors, as columns.
        noise: (M,) the variance of the gradient estimate along each of them.
        target: (M,) the point itself: w^o, unless the 1/E_k is left out.
        offset: (M,) target - w^o in the basis.
        risk: (M, M) the Hessian of the risk itself at w^o, in the basis.
    """

    step_size: float
    curvature: np.ndarray
    basis: np.ndarray
    noise: np.ndarray
    target: np.ndarray
    offset: np.ndarray
    risk: np.ndarray

    @property
    def steady(self) -> float:
        """The steady-state msd."""
        shrink = (1.0 - self.step_size * self.curvature) ** 2
        if not np.all(shrink < 1.0):
            raise TheoryError(
                f"step_size={self.step_size:g} is beyond 2 / (largest curvature) = "
                f"{2.0 / self.curvature[-1]:.3g}, or a direction has no curvature: no steady state"
            )
        each = self.step_size**2 * self.noise / (1.0 - shrink)
        return float(each.sum() + self.offset @ self.offset)

    def curve(self, rounds: np.ndarray, initial: np.ndarray) -> np.ndarray:
        """The expected msd after each of `rounds`, from the model `initial`."""
        errors = (self._error(count, initial) for count in rounds)
        return np.array([mean @ mean + variance.sum() for mean, variance in errors])

    def excess(self, rounds: int, initial: np.ndarray) -> float:
        """The expected P(w_i) - P(w^o) after so many rounds, to second order around w^o."""
        mean, variance = self._error(rounds, initial)
        return 0.5 * float(mean @ self.risk @ mean + np.diag(self.risk) @ variance)

    def _error(self, count: int, initial: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the error along every eigenvector, after `count` rounds."""
        shrink = 1.0 - self.step_size * self.curvature
        start = (initial - self.target) @ self.basis
        left = shrink**count
        # The sum of shrink^(2 j) for j below `count`; `count` where shrink is 1.
        flat = np.abs(1.0 - shrink**2) < 1e-12
        sums = np.divide(
            1.0 - left**2, 1.0 - shrink**2, out=np.full(left.size, float(count)), where=~flat
        )
        return left * start + self.offset, self.step_size**2 * self.noise * sums


def predict(problem: Problem, algorithm: ISFedAvg, *, choices: Choices | None = None) -> Prediction:
    """The error recursion of an algorithm on a problem, to first order in the step size.

    Without the 1/E_k of eq. (8) a run converges to the minimiser of the risk weighted by E_k, not
    to w^o: then that is the target, and its distance to w^o stays in the msd.

    Args:
        problem: what is learned.
        algorithm: what runs, without drift.
        choices: the inclusion probabilities; those at w^o unless given.
    """
    if algorithm.drift > 0.0:
        raise TheoryError(
            "with a drift w^o moves, and no prediction is available for that; use drift=0"
        )
    algorithm = with_step_size(problem, algorithm)
    target, weight = problem.optimum, problem.data.row_weights()
    steps = np.ones(problem.num_agents)
    if not algorithm.divide_by_steps:
        steps = problem.local_steps.astype(float)
        weight = weight * np.repeat(steps, problem.data.num_examples)
    uneven = np.ptp(steps) > 0.0
    if uneven:
        target = optimum.minimise(
            problem.loss, problem.data.features, problem.data.targets, weight / weight.sum()
        )
    curvature, basis = linalg.eigh(hessian(problem, target, weight=weight))
    risk = np.diag(curvature / steps[0])
    if uneven:
        risk = basis.T @ hessian(problem, problem.optimum) @ basis
    variance = gradient_variance(problem, algorithm, params=target, choices=choices, rotate=basis)
    return Prediction(
        step_size=float(algorithm.step_size),
        curvature=curvature,
        basis=basis,
        noise=variance.agents + variance.examples,
        target=target,
        offset=(target - problem.optimum) @ basis,
        risk=risk,
    )


@dataclass(frozen=True, eq=False)
class SettlingTime:
    """How many rounds it takes, and in which direction it takes so long."""

    rounds: float
    direction: np.ndarray  # (M,), a unit vector

    def features(self, num_features: int, *, least: float = 0.1) -> list[tuple[int, float]]:
        """The features that make up the direction, (feature, share), the largest first."""
        share = (self.direction.reshape(-1, num_features) ** 2).sum(axis=0)
        order = np.argsort(-share, kind="stable")
        return [(int(j), float(share[j])) for j in order if share[j] >= least]


def settling_time(
    curvature: np.ndarray, basis: np.ndarray, noise: np.ndarray, start: np.ndarray, step_size: float
) -> SettlingTime:
    """Rounds until the expected excess risk is, and stays, within a tenth of where it ends.

    A component goes from c_i^2 to its steady msd_i, by the factor (1 - mu lambda_i)^2 a round, and
    adds lambda_i / 2 of that to the risk.

    Args:
        curvature: (M,), the eigenvalues of the Hessian.
        basis: (M, M), its eigenvectors as columns.
        noise: (M,), the variance of the gradient estimate along them.
        start: (M,), w_0 - w^o along them.
        step_size: below 2 / (largest curvature).

    >>> one = np.ones(1)
    >>> rounds = settling_time(one, np.eye(1), one, 10 * one, 0.1).rounds
    >>> shrink = 0.9 ** (2 * rounds)
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
    return SettlingTime(high, basis[:, int(np.argmax(left(high)))])


@dataclass(frozen=True)
class Bound:
    """The bound of Theorem 1: msd_i <= lambda'^i msd_0 + (1 - lambda'^i) limit.

    Args:
        gap: 1 - lambda'.
        data: what one round adds through data variability.
        model: what one round adds through model variability.
    """

    gap: float
    data: float
    model: float

    @property
    def limit_parts(self) -> tuple[float, float]:
        """The limit's parts: data variability, model variability, eq. (39)."""
        return self.data / self.gap, self.model / self.gap

    @property
    def limit(self) -> float:
        """The bound on the steady-state msd, eq. (39)."""
        return sum(self.limit_parts)

    def curve(self, rounds: int, initial: float) -> np.ndarray:
        """The bound on the msd after every round, from |w_0 - w^o|^2 = `initial`, eq. (38)."""
        log_left = np.arange(1, rounds + 1) * np.log1p(-self.gap)
        return np.exp(log_left) * initial - np.expm1(log_left) * self.limit
