"""What the msd will be, to first order in the step size: no training run, no bound.

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
from isfed.theory.msd_bound import TheoryError
from isfed.theory.probabilities import Choices
from isfed.theory.round_curvature import hessian
from isfed.theory.round_variance import Variance, gradient_variance
from isfed.theory.stable_step_size import with_step_size


@dataclass(frozen=True, eq=False)
class Prediction:
    """The error recursion near the point that a run converges to, in the eigenbasis of H.

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
        found = (self._error(count, initial) for count in rounds)
        return np.array([mean @ mean + variance.sum() for mean, variance in found])

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
        bottom = np.where(flat, 1.0, 1.0 - shrink**2)
        sums = np.where(flat, float(count), (1.0 - left**2) / bottom)
        return left * start + self.offset, self.step_size**2 * self.noise * sums


def predict(problem: Problem, algorithm: ISFedAvg, *, choices: Choices | None = None) -> Prediction:
    """The error recursion of an algorithm on a problem, to first order in the step size.

    Without the 1/E_k of eq. (8) a run converges to the minimiser of the risk weighted by E_k, not
    to w^o: then that is the target, and its distance to w^o stays in the msd.

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
    found: Variance = gradient_variance(
        problem, algorithm, params=target, choices=choices, rotate=basis
    )
    return Prediction(
        step_size=float(algorithm.step_size),
        curvature=curvature,
        basis=basis,
        noise=found.agents + found.examples,
        target=target,
        offset=(target - problem.optimum) @ basis,
        risk=risk,
    )
