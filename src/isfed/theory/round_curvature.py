"""The mean of a round's curvature and of its square, as operators: what decides stability.

Draws count as independent (with replacement); designs without replacement differ a little from
that, mostly for the better, and Poisson's random size for the worse.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from isfed.base.gram_matrix import TALL, grams_of, weighted_gram
from isfed.base.jit import compiled
from isfed.base.progress import say
from isfed.methods import ISFedAvg
from isfed.problems import Problem
from isfed.problems.losses import LinearLoss
from isfed.theory.probabilities import Choices, TheoryError, risk_gradients

SOLVER_STEPS, SOLVER_TOLERANCE = 40, 1e-3
KEPT = 2**23  # numbers that are kept because another way to sample needs them too
MOST_PARAMS = 2000  # beyond, the Hessian is not built: its eigenvectors would take minutes


def hessian(problem: Problem, params: np.ndarray, *, weight: np.ndarray | None = None):
    """The Hessian of the risk at a model (of other weights of the rows, if given), (M, M)."""
    loss = problem.loss
    if not isinstance(loss, LinearLoss):
        raise TheoryError(f"{type(loss).__name__} has no known Hessian")
    if problem.num_params > MOST_PARAMS:
        raise TheoryError(f"a Hessian of {problem.num_params} parameters is too large to build")
    x, y = problem.data.features, problem.data.targets
    rows = problem.data.row_weights() if weight is None else weight
    width, count = loss.compiled.num_rows, problem.data.num_features
    margins = x @ params.reshape(width, -1).T
    matrix = np.empty((width, count, width, count))
    for row in range(width):
        say("computing the Hessian")
        change = np.zeros((len(y), width))
        change[:, row] = 1.0
        bends = loss.bends(margins, y, change)  # (N, width)
        for other in range(width):
            matrix[other, :, row] = weighted_gram(x, rows * bends[:, other])
    flat = matrix.reshape(problem.num_params, problem.num_params)
    return (flat + flat.T) / 2.0 + 2.0 * loss.ridge * rows.sum() * np.eye(problem.num_params)


class LargestCurvature:
    """E[H] and E[H^2] of a round, every example at its largest curvature bend x x^T + 2 ridge I.

    Exact for least squares, careful for the other losses. Operates on the features' space: the
    rows of the parameters, one for every class of softmax, are all bounded alike. `drawn` says how
    a round draws.
    """

    width = 1  # rows of the parameters as a matrix

    def __init__(self, problem: Problem) -> None:
        self.problem, data = problem, problem.data
        self.x, self.ridge = data.features, problem.loss.ridge
        self.sizes, self.offsets = data.num_examples, data.offsets
        self.steps = problem.local_steps.astype(float)
        self.work = self.steps * problem.batch_size
        self.squares = np.einsum("nm,nm->n", self.x, self.x)
        self.scale = data.agent_weights
        self._kept: dict[Any, Any] = {}

    def drawn(self, algorithm: ISFedAvg, choices: Choices) -> Self:
        """The same for an algorithm and the probabilities of its draws."""
        other = copy.copy(self)
        if not algorithm.divide_by_steps:
            other.scale, other._kept = self.scale * self.steps, {}
        other.num_active = algorithm.num_active
        agent_prob = choices.agent_prob(algorithm.num_active)
        other.inverse = _inverse(len(self.sizes) * agent_prob)  # 1 / (K p_k)
        batch = np.repeat(self.problem.batch_size, self.sizes)
        counts = np.repeat(self.sizes, self.sizes)
        other.example_inverse = _inverse(counts * choices.examples / batch)  # 1 / (N_k p_n)
        other.examples = choices.examples.tobytes()
        return other

    num_active: int
    inverse: np.ndarray
    example_inverse: np.ndarray
    examples: bytes  # the probabilities of examples, to be told from others

    def _keep(self, key: Any, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """What several ways to sample need, computed once if there is room for it."""
        if key in self._kept:
            return self._kept[key]
        value = compute()
        if value.size * (len(self._kept) + 1) <= KEPT:
            self._kept[key] = value
        return value

    @property
    def num_params(self) -> int:
        """The dimension of the space."""
        return self.width * self.x.shape[1]

    def bent(self, change: np.ndarray) -> np.ndarray:
        """The second derivatives of all examples' losses times a change of their margins."""
        return self.problem.loss.bend * change

    def squared(self, change: np.ndarray) -> np.ndarray:
        """H_n^2 = (...) x_n^T + 4 ridge^2 I: 1 / (N_k p_n) times the brackets times a change."""
        bend = self.problem.loss.bend
        factor = bend**2 * self.squares + 4.0 * self.ridge * bend
        return (self.example_inverse * factor)[:, None] * change

    def row_weights(self) -> np.ndarray:
        """Of every example in E[H]: 1 / (K N_k), times E_k without the 1/E_k of eq. (8)."""
        return np.repeat(self.scale / (len(self.sizes) * self.sizes), self.sizes)

    def mean_matrix(self) -> np.ndarray:
        """E[H]."""
        return self._keep("mean", self._mean_matrix)

    def _mean_matrix(self) -> np.ndarray:
        size, weight = self.x.shape[1], self.row_weights()
        mean = self.problem.loss.bend * weighted_gram(self.x, weight)
        return mean + 2.0 * self.ridge * float(self.scale.mean()) * np.eye(size)

    def _margins(self, vectors: np.ndarray) -> np.ndarray:
        """x_n . v_k of every example n of every agent k, (N, width)."""
        if self.x.size > TALL:
            return _margins_of(self.x, vectors, self.offsets)[:, None]
        spread = np.repeat(vectors, self.sizes, axis=0)
        return np.einsum("nm,nm->n", self.x, spread)[:, None]

    def _means(self, change: np.ndarray) -> np.ndarray:
        """Of every agent the mean over n of change_n x_n^T, (K, parameters)."""
        if self.x.size > TALL:
            sums = _weighted_sums(change[:, 0], self.x, self.offsets)
        else:
            sums = np.add.reduceat(change * self.x, self.offsets[:-1], axis=0)
        return sums / self.sizes[:, None]

    def of_agents(self, vectors: np.ndarray) -> np.ndarray:
        """H_k v_k of every agent, (K, parameters)."""
        mean = self._means(self.bent(self._margins(vectors)))
        return self.scale[:, None] * (mean + 2.0 * self.ridge * vectors)

    def mean(self, vector: np.ndarray) -> np.ndarray:
        """E[H] v."""
        return self.of_agents(np.tile(vector, (len(self.sizes), 1))).mean(axis=0)

    def _of_no_draw(self, vector: np.ndarray) -> np.ndarray:
        """H_k^2 v of every agent, and in the last row E[H]^2 v: they do not depend on the draws."""
        say("finding the largest stable step size")
        once = self.of_agents(np.tile(vector, (len(self.sizes), 1)))
        return np.vstack([self.of_agents(once), self.mean(once.mean(axis=0))])

    def _of_examples(self, vector: np.ndarray) -> np.ndarray:
        """Of every agent E[H_n^2] v for one example drawn, with its weight."""
        margins = np.stack([self.x @ row for row in vector.reshape(self.width, -1)], axis=1)
        flat = np.add.reduceat(self.example_inverse, self.offsets[:-1]) / self.sizes
        single = self._means(self.squared(margins))
        return single + np.outer(4.0 * self.ridge**2 * flat, vector)

    def square(self, vector: np.ndarray) -> np.ndarray:
        """E[H^2] v."""
        key = vector.tobytes()
        *twice, mean = self._keep(key, lambda: self._of_no_draw(vector))
        single = self._keep((key, self.examples), lambda: self._of_examples(vector))
        single = single * (self.scale**2)[:, None]
        share = (1.0 / self.work)[:, None]
        both = (1.0 - share) * np.asarray(twice) + share * single
        of_one = self.inverse @ both / len(self.sizes)
        return mean + (of_one - mean) / self.num_active

    def bend_of_examples(self) -> np.ndarray | None:
        """The second derivative of every example's loss by its one margin; None if it has more."""
        return np.full(len(self.x), float(self.problem.loss.bend))

    def square_matrix(self) -> np.ndarray:
        """E[H^2], from products with all vectors or, of very many rows, from the agents' own H_k.

        The second way needs one pass for all vectors, and room for a matrix of every agent.
        """
        size, bend = self.num_params, self.bend_of_examples()
        if bend is None or self.x.size <= TALL or len(self.sizes) * size**2 > KEPT:
            square = np.stack([self.square(column) for column in np.eye(size)], axis=1)
            return (square + square.T) / 2.0
        say("finding the largest stable step size")
        of_agents = self._keep("agents", lambda: self._matrices_of_agents(bend))
        mean = of_agents.mean(axis=0)
        share, chance = 1.0 / self.work, self.inverse / len(self.sizes)
        half = of_agents.reshape(-1, size)  # H_k^2 = H_k^T H_k, all of them in one product
        twice = (half * np.repeat(chance * (1.0 - share), size)[:, None]).T @ half
        single = chance * share * self.scale**2 / self.sizes  # of every row of an agent
        rows = np.repeat(single, self.sizes) * self.example_inverse
        factor = bend**2 * self.squares + 4.0 * self.ridge * bend
        flat = 4.0 * self.ridge**2 * float(rows.sum())
        of_one = twice + weighted_gram(self.x, rows * factor) + flat * np.eye(size)
        return mean @ mean + (of_one - mean @ mean) / self.num_active

    def _matrices_of_agents(self, bend: np.ndarray) -> np.ndarray:
        """H_k of every agent, (K, M, M)."""
        grams = grams_of(self.x, bend / np.repeat(self.sizes, self.sizes), self.offsets)
        return self.scale[:, None, None] * (grams + 2.0 * self.ridge * np.eye(self.num_params))

    def largest_of_a_step(self) -> float:
        """The largest curvature anywhere, weights included, that one local step can meet."""
        example = (self.problem.loss.bend * self.squares + 2.0 * self.ridge) * self.example_inverse
        worst = np.maximum.reduceat(example, self.offsets[:-1])
        # The mean of a batch is at most its largest member.
        return float(np.max(worst * self.inverse * self.scale / self.steps))


class CurvatureAt(LargestCurvature):
    """The same with the curvature that the examples have at a model."""

    def __init__(self, problem: Problem, model: np.ndarray) -> None:
        super().__init__(problem)
        self.model = model
        self.width = problem.loss.compiled.num_rows
        self.at = problem.data.features @ model.reshape(self.width, -1).T

    def bent(self, change: np.ndarray) -> np.ndarray:
        return self.problem.loss.bends(self.at, self.problem.data.targets, change)

    def squared(self, change: np.ndarray) -> np.ndarray:
        once = self.bent(change)
        brackets = self.squares[:, None] * self.bent(once) + 4.0 * self.ridge * once
        return self.example_inverse[:, None] * brackets

    def bend_of_examples(self) -> np.ndarray | None:
        return None if self.width > 1 else self.bent(np.ones((len(self.x), 1)))[:, 0]

    def _mean_matrix(self) -> np.ndarray:
        return hessian(self.problem, self.model, weight=self.row_weights())

    def mean(self, vector: np.ndarray) -> np.ndarray:
        return self.mean_matrix() @ vector

    def _margins(self, vectors: np.ndarray) -> np.ndarray:
        out = np.empty((len(self.x), self.width))
        parts = vectors.reshape(len(vectors), self.width, -1)
        for part, begin, end in zip(parts, self.offsets[:-1], self.offsets[1:], strict=True):
            out[begin:end] = self.x[begin:end] @ part.T
        return out

    def _means(self, change: np.ndarray) -> np.ndarray:
        out = np.empty((len(self.sizes), self.width, self.x.shape[1]))
        for k, (begin, end) in enumerate(zip(self.offsets[:-1], self.offsets[1:], strict=True)):
            out[k] = change[begin:end].T @ self.x[begin:end]
        return out.reshape(len(out), -1) / self.sizes[:, None]


@compiled
def _margins_of(rows, vectors, offsets):
    """The product of every row with its agent's vector, (N,)."""
    out = np.empty(len(rows))
    for agent in range(offsets.size - 1):
        for n in range(offsets[agent], offsets[agent + 1]):
            total = 0.0
            for j in range(rows.shape[1]):
                total += rows[n, j] * vectors[agent, j]
            out[n] = total
    return out


@compiled
def _weighted_sums(weight, rows, offsets):
    """Of every agent the sum of its rows, each times its weight, (K, M)."""
    out = np.zeros((offsets.size - 1, rows.shape[1]))
    for agent in range(offsets.size - 1):
        for n in range(offsets[agent], offsets[agent + 1]):
            for j in range(rows.shape[1]):
                out[agent, j] += weight[n] * rows[n, j]
    return out


def _inverse(values: np.ndarray) -> np.ndarray:
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0.0)


def _hessian_times(problem: Problem, model: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """H v from differences of gradients."""
    length = float(np.linalg.norm(vector))
    if length == 0.0:
        return np.zeros_like(vector)
    reach = 1e-4 * (1.0 + float(np.linalg.norm(model))) / length
    ahead, behind = (
        risk_gradients(problem, model + side * vector).mean(axis=0) for side in (reach, -reach)
    )
    return (ahead - behind) / (2.0 * reach)


def local_drift(
    problem: Problem, model: np.ndarray, means: np.ndarray, mu: float, weight: Any = 1.0
) -> float:
    """1/2 b' H^-1 b, the excess risk where the mean turn of E_k full steps stands still.

    `weight`, (K, 1), multiplies the agents' steps, of which the changes count as much less.
    """
    steps = problem.local_steps
    if steps.max() == 1:
        return 0.0
    local = np.tile(model, (problem.num_agents, 1))
    path = np.zeros_like(means)
    for step in range(int(steps.max())):
        gradients = means if step == 0 else risk_gradients(problem, local)
        working = (steps > step)[:, None] / steps[:, None]
        path += working * gradients
        local = local - mu * weight * working * gradients
    offset = (path - means).mean(axis=0)
    if not np.isfinite(offset).all():
        return math.inf
    return 0.5 * float(offset @ _solve(problem, model, offset))


def _solve(problem: Problem, model: np.ndarray, right: np.ndarray) -> np.ndarray:
    """H^-1 b by conjugate gradients; what the curvature does not reach stays zero."""
    solution, rest = np.zeros_like(right), right.copy()
    direction, square = right.copy(), float(right @ right)
    enough = SOLVER_TOLERANCE**2 * square
    for _ in range(SOLVER_STEPS):
        if not square > enough:
            break
        image = _hessian_times(problem, model, direction)
        curvature = float(direction @ image)
        if not curvature > 0.0:
            break
        length = square / curvature
        solution, rest = solution + length * direction, rest - length * image
        before, square = square, float(rest @ rest)
        direction = rest + square / before * direction
    return solution
