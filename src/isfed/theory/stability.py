"""Step sizes at which a run is stable, from the curvature of the losses and the probabilities.

Near the optimum a round is w_i - w^o = (I - mu H_i)(w_{i-1} - w^o) + noise with a random H_i, the
weighted mean of the curvatures drawn. Three limits on mu, each below the one before:

    mean         2 / (largest eigenvalue of E[H]): gradient descent with all data
    mean_square  2 / (largest eigenvalue of E[H]^-1 E[H^2]): E|w - w^o|^2 shrinks in every direction
    every_draw   2 / (largest curvature that one local step can meet): no draw at all overshoots

All take a turn of E_k local steps as one step of their mean, which is right for small steps and
careful for large ones: smaller steps in between overshoot less.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import LinearOperator, eigsh

from isfed.algorithms import ISFedAvg
from isfed.problems import NoOptimumError, Problem
from isfed.problems.losses import LinearLoss
from isfed.theory.choices import Choices, check_model, choices_at

AUTO = "auto"
SHARE_OF_LIMIT = 0.25  # of the mean-square limit: the noise is then a third above its first order
SHARE_OF_CURVATURE = 0.1  # of 1 / curvature, where no curvature of single examples is known
SMALL = 64  # features up to which matrices are built column by column
POWER_STEPS = 60


@dataclass(frozen=True)
class Limits:
    """Three step-size limits, each below the one before."""

    mean: float
    mean_square: float
    every_draw: float


class _Curvature:
    """E[H] and E[H^2] of a round as operators on the features' space.

    The curvature of an example is taken at its largest, bend x x^T + 2 ridge I: exact for least
    squares, for the other losses a rule that `SHARE_OF_LIMIT` leaves room for. Draws count as
    independent (with replacement); designs without replacement differ a little from that, mostly
    for the better, and Poisson's random size for the worse.
    """

    def __init__(self, problem: Problem, algorithm: ISFedAvg, choices: Choices) -> None:
        loss, data = problem.loss, problem.data
        self.x, self.bend, self.ridge = data.features, loss.bend, loss.ridge
        self.sizes, self.starts = data.num_examples, data.offsets[:-1]
        self.num_active = algorithm.num_active
        self.steps = steps = problem.local_steps.astype(float)
        self.scale = np.ones(len(steps)) if algorithm.divide_by_steps else steps
        agent_prob = choices.agent_prob(algorithm.num_active)
        self.inverse = _inverse(problem.num_agents * agent_prob)  # 1 / (K p_k)
        batch = np.repeat(problem.batch_size, self.sizes)
        counts = np.repeat(self.sizes, self.sizes)
        self.example_inverse = _inverse(counts * choices.examples / batch)  # 1 / (N_k p_n)
        self.work = steps * problem.batch_size
        self.squares = np.einsum("nm,nm->n", self.x, self.x)

    def _sum(self, weight: np.ndarray) -> np.ndarray:
        """Of every agent the sum over n of weight_n x_n, (K, M)."""
        return np.add.reduceat(weight[:, None] * self.x, self.starts, axis=0)

    def of_agents(self, vectors: np.ndarray) -> np.ndarray:
        """H_k v_k of every agent, (K, M)."""
        spread = np.repeat(vectors, self.sizes, axis=0)
        margins = np.einsum("nm,nm->n", self.x, spread)
        mean = self._sum(margins) / self.sizes[:, None]
        return self.scale[:, None] * (self.bend * mean + 2.0 * self.ridge * vectors)

    def mean(self, vector: np.ndarray) -> np.ndarray:
        """E[H] v."""
        return self.of_agents(np.tile(vector, (len(self.sizes), 1))).mean(axis=0)

    def square(self, vector: np.ndarray) -> np.ndarray:
        """E[H^2] v."""
        num_agents = len(self.sizes)
        twice = self.of_agents(self.of_agents(np.tile(vector, (num_agents, 1))))
        factor = self.bend**2 * self.squares + 4.0 * self.ridge * self.bend
        weight = self.example_inverse * factor * (self.x @ vector)
        flat = np.add.reduceat(self.example_inverse, self.starts) / self.sizes
        single = self._sum(weight) / self.sizes[:, None] + np.outer(
            4.0 * self.ridge**2 * flat, vector
        )
        single *= (self.scale**2)[:, None]
        share = (1.0 / self.work)[:, None]
        of_one = self.inverse @ ((1.0 - share) * twice + share * single) / num_agents
        mean = self.mean(self.mean(vector))
        return mean + (of_one - mean) / self.num_active

    def largest_of_a_step(self) -> float:
        """The largest curvature, weights included, that one local step can meet."""
        example = (self.bend * self.squares + 2.0 * self.ridge) * self.example_inverse
        worst = np.maximum.reduceat(example, self.starts)
        # The mean of a batch is at most its largest member.
        return float(np.max(worst * self.inverse * self.scale / self.steps))


def _inverse(values: np.ndarray) -> np.ndarray:
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0.0)


def _matrix(apply: Any, size: int) -> np.ndarray:
    matrix = np.stack([apply(column) for column in np.eye(size)], axis=1)
    return (matrix + matrix.T) / 2.0


def step_limits(problem: Problem, algorithm: ISFedAvg, choices: Choices | None = None) -> Limits:
    """The limits on the step size for these probabilities (at w^o unless given).

    >>> from isfed import PAPER, FedAvg
    >>> limits = step_limits(PAPER.make(), FedAvg(step_size="auto", num_active=6))
    >>> limits.mean > limits.mean_square > limits.every_draw
    True
    """
    if not isinstance(problem.loss, LinearLoss):
        raise ValueError(
            f"{type(problem.loss).__name__} states no curvature of single examples, so there are "
            "no step-size limits to compute"
        )
    chosen = choices_at(problem, algorithm) if choices is None else choices
    curvature = _Curvature(problem, algorithm, chosen)
    size = problem.data.num_features
    weight = curvature.scale[np.repeat(np.arange(len(curvature.sizes)), curvature.sizes)]
    weight = weight * problem.data.row_weights()
    mean = curvature.bend * (problem.data.features * weight[:, None]).T @ problem.data.features
    mean += 2.0 * curvature.ridge * float(curvature.scale.mean()) * np.eye(size)
    spectrum, vectors = linalg.eigh(mean)
    if not spectrum[-1] > 0.0:
        raise ValueError("the risk has no curvature at all; give a step_size yourself")
    seen = spectrum > 1e-12 * spectrum[-1]  # the rest does not move at all
    whiten = vectors[:, seen] / np.sqrt(spectrum[seen])
    if size <= SMALL:
        largest = linalg.eigvalsh(whiten.T @ _matrix(curvature.square, size) @ whiten)[-1]
    else:
        operator: Any = LinearOperator  # its own types do not know that `matvec` is an argument
        turned = operator(
            (whiten.shape[1],) * 2,
            matvec=lambda v: whiten.T @ curvature.square(whiten @ np.ravel(v)),
            dtype=np.float64,
        )
        options: Any = {"tol": 1e-3, "v0": np.ones(whiten.shape[1])}
        largest = eigsh(turned, k=1, which="LA", return_eigenvectors=False, **options)[0]
    return Limits(
        mean=float(2.0 / spectrum[-1]),
        mean_square=float(2.0 / largest),
        every_draw=2.0 / curvature.largest_of_a_step(),
    )


def stable_step_size(
    problem: Problem, algorithm: ISFedAvg, *, initial: np.ndarray | None = None
) -> float:
    """A step size at which the algorithm is stable, whatever its own is.

    A quarter of the mean-square limit for the probabilities that its policies aim at, the smaller
    of those at the start and at w^o (where it can be had). For a loss that states no curvature, a
    tenth of 1 / (largest curvature of the risk at the start), by power iteration.

    >>> from isfed import PAPER, FedAvg
    >>> 0.001 < stable_step_size(PAPER.make(), FedAvg(step_size="auto", num_active=6)) < 0.1
    True
    """
    start = np.zeros(problem.num_params) if initial is None else initial
    if not isinstance(problem.loss, LinearLoss):
        return SHARE_OF_CURVATURE / risk_curvature(problem, start)
    models = [start]
    if not (algorithm.agents.equal and algorithm.examples.equal):
        with contextlib.suppress(NoOptimumError):
            models.append(problem.optimum)
    limits = [
        step_limits(problem, algorithm, choices_at(problem, algorithm, model)).mean_square
        for model in models
    ]
    return SHARE_OF_LIMIT * min(limits)


def with_step_size(problem: Problem, algorithm: Any, *, initial: np.ndarray | None = None) -> Any:
    """The algorithm with a number for a step size: `stable_step_size` where it says "auto"."""
    if getattr(algorithm, "step_size", None) != AUTO:
        return algorithm
    if not isinstance(algorithm, ISFedAvg):
        raise ValueError(
            f"step_size='auto' is not known for {type(algorithm).__name__}; give a number"
        )
    return replace(algorithm, step_size=stable_step_size(problem, algorithm, initial=initial))


def risk_curvature(problem: Problem, params: np.ndarray) -> float:
    """The largest curvature of the risk at a model, by power iteration on differences of gradients.

    Needs nothing of the loss but its gradient.
    """
    model = check_model(problem, params)
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(model.size)
    here = _risk_gradient(problem, model)
    length = 1e-4 * (1.0 + float(np.linalg.norm(model)))
    curvature = 0.0
    for _ in range(POWER_STEPS):
        direction /= np.linalg.norm(direction)
        moved = (_risk_gradient(problem, model + length * direction) - here) / length
        before, curvature = curvature, float(np.linalg.norm(moved))
        if not curvature > 0.0 or abs(curvature - before) < 1e-3 * curvature:
            break
        direction = moved
    if not (math.isfinite(curvature) and curvature > 0.0):
        raise ValueError("the risk has no curvature at the start; give a step_size yourself")
    return curvature


def _risk_gradient(problem: Problem, params: np.ndarray) -> np.ndarray:
    total = np.zeros(params.size)
    for agent in range(problem.num_agents):
        x, y = problem.data.agent(agent)
        total += problem.loss.gradient(params, x, y, np.ones(len(y)))[0]
    return total / problem.num_agents


def explain_divergence(problem: Problem, algorithm: Any) -> str:
    """Which step-size limit a run that diverged had exceeded, and what to do."""
    if not isinstance(algorithm, ISFedAvg):
        return "use a smaller step size"
    step = float(algorithm.step_size)
    if not (isinstance(problem.loss, LinearLoss) and problem.has_optimum):
        return "use a smaller step_size, or step_size='auto'"
    try:
        limits = step_limits(problem, algorithm)
    except ValueError as error:
        return f"{error} (step_size={step:g})"
    if step >= limits.mean:
        found = f"exceeds {limits.mean:.3g}, the limit of gradient descent with all data"
        return f"step_size={step:g} {found}; use step_size='auto'"
    if step >= limits.mean_square:
        found = f"exceeds {limits.mean_square:.3g}, the mean-square limit of this sampling"
        return f"step_size={step:g} {found}; use step_size='auto' or draw more"
    if step < limits.every_draw:
        return f"step_size={step:g} is below every limit that is known; use a smaller one"
    return (
        f"step_size={step:g} is below {limits.mean_square:.3g}, the mean-square limit at w^o, but "
        f"above {limits.every_draw:.3g}, below which no single draw overshoots: probabilities far "
        "from those at w^o make such draws; use a larger floor or a smaller step_size"
    )


class GrowthWarning(RuntimeWarning):
    """A run that did not overflow, but whose error grows."""


def warn_if_growing(
    problem: Problem, algorithm: Any, msd: np.ndarray, *, name: str = "the model"
) -> None:
    """Warn if the msd ends far above where it began and the step size is beyond its limit."""
    part = msd.shape[1] // 10
    known = isinstance(algorithm, ISFedAvg) and problem.has_optimum
    if part == 0 or not known or algorithm.drift > 0.0:
        return
    early, late = float(msd[:, :part].mean()), float(msd[:, -part:].mean())
    if late > 10.0 * early and isinstance(problem.loss, LinearLoss):
        limits = step_limits(problem, algorithm)
        if float(algorithm.step_size) >= limits.mean_square:
            warnings.warn(
                f"{name} is diverging, its msd has grown from {early:.2g} to {late:.2g}: "
                f"{explain_divergence(problem, algorithm)}",
                GrowthWarning,
                stacklevel=3,
            )
