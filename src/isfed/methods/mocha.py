"""MOCHA: Smith, Chiang, Sanjabi and Talwalkar, "Federated Multi-Task Learning" (NeurIPS 2017).

Every agent has a model w_k of its own; the objective is

    sum_k mean loss_k(w_k) + lambda/2 tr(W Omega W'),   Sigma = Omega^-1,   tr Sigma = 1.

Agents ascend the dual coordinate by coordinate from W = B Sigma / lambda, where B holds
X_k' alpha_k / N_k, and send the change of their column of B. Now and then
Sigma <- (W'W)^(1/2) / tr; W is then computed anew, which the public code omits. The ridge of the
problem's loss is left out: lambda takes its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from isfed.base.jit import compiled
from isfed.base.portable_arithmetic import dot, left_singular, product, weighted_sum
from isfed.base.random_streams import Purpose, below, start
from isfed.federation.agents import PLAIN_LOCAL
from isfed.methods.method_protocol import BelowOne, ClientWeights, Count, Method, Positive
from isfed.methods.shared_fields import answering
from isfed.problems import LeastSquares, Logistic, Problem

HINGE, SQUARED, LOGISTIC = 0, 1, 2
KINDS = {"hinge": HINGE, "squared": SQUARED, "logistic": LOGISTIC}
LossName = Literal["auto", "hinge", "squared", "logistic"]
SMALLEST = 1e-7  # the floor of the eigenvalues of (W'W)^(1/2)
HALVINGS = 60


@compiled
def _dual_step(kind, margin, target, dual, curvature):
    """How far one dual coordinate moves to maximise the dual along it."""
    if kind == SQUARED:
        return (target - margin - dual / 2.0) / (0.5 + curvature)
    share = dual * target
    if kind == HINGE:
        best = (1.0 - target * margin) / curvature + share
        return target * (min(max(best, 0.0), 1.0) - share)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):  # log((1 - b) / b) - y f - q (b - b_0) falls in b
        middle = 0.5 * (low + high)
        slope = math.log((1.0 - middle) / middle) - target * margin
        if slope - curvature * (middle - share) > 0.0:
            low = middle
        else:
            high = middle
    return target * (0.5 * (low + high) - share)


@compiled
def dual_round(kind, data, dual, shared, models, diagonal, numbers, steps, address):
    """One inner round: every agent's coordinate steps from its column of W, in any order."""
    features, targets, offsets = data
    penalty, safety = numbers
    key, round_index = address
    size = features.shape[1]
    state = np.empty(4, np.uint64)
    moved = np.empty(size)
    for agent in range(offsets.size - 1):
        first = offsets[agent]
        count = offsets[agent + 1] - first
        start(state, key, round_index, agent)
        order = np.arange(count)
        model = models[agent].copy()  # w_k + rho dw
        scale = diagonal[agent] / (penalty * count)
        moved[:] = 0.0
        for step in range(steps[agent]):
            place = step % count
            if place == 0:  # a new pass in a new order
                for i in range(count - 1, 0, -1):
                    j = below(state, i + 1)
                    order[i], order[j] = order[j], order[i]
            row = np.uint64(first + order[place])
            margin = dot(features, row, model, size)
            square = 0.0
            for j in range(size):
                square += features[row, j] * features[row, j]
            change = _dual_step(kind, margin, targets[row], dual[row], safety * scale * square)
            dual[row] += change
            for j in range(size):
                move = change * features[row, j]
                model[j] += safety * scale * move
                moved[j] += move / count
        for j in range(size):
            shared[agent, j] += moved[j]


class MochaState(NamedTuple):
    """The dual variables, what the agents have sent, and how the tasks are related."""

    dual: np.ndarray  # (rows,) alpha
    shared: np.ndarray  # (K, M) the columns of B
    relations: np.ndarray  # (K, K) Sigma
    safety: np.ndarray  # (1,) rho: agents step at the same time, so each steps with care
    weights: np.ndarray  # (K,) of the agents' models in their mean


@dataclass(frozen=True, kw_only=True)
class Mocha(Method):
    """MOCHA: every agent learns a model of its own, and related agents help each other.

    A round here is one of its inner rounds, and the model is the mean of the agents' models.

    Args:
        penalty: lambda, the weight of the penalty on the models.
        inner_rounds: how many inner rounds there are between two updates of Sigma.
        learn_relations: whether Sigma is learned; else it stays I/K and every agent learns alone.
        effort: coordinate steps of a turn over N_k, drawn uniformly from this range.
        drop: probability that an agent does nothing in a round.
        loss: "hinge", "squared" or "logistic"; "auto" takes that of the problem.
        client_weights: how the agents' models are averaged into one, "uniform" or by their "size".
    """

    penalty: Positive = 0.01
    inner_rounds: Count = 100
    learn_relations: bool = True
    effort: tuple[float, float] = (0.5, 0.5)
    drop: BelowOne = 0.0
    loss: LossName = "auto"
    client_weights: ClientWeights = "uniform"
    step_size = math.nan  # there is none
    reads_problem: ClassVar[str] = (
        "its agents solve a dual problem that the cloud sets up from their data"
    )

    def __post_init__(self) -> None:
        low, high = self.effort
        if not 0.0 < low <= high < math.inf:
            raise ValueError(f"effort={self.effort} must be a range of positive numbers")

    def kind(self, problem: Problem) -> int:
        """Which of the three conjugate steps belongs to the problem."""
        loss, targets = problem.loss, problem.data.targets
        fitting = {LeastSquares: "squared", Logistic: "logistic"}.get(type(loss))  # type: ignore[arg-type]
        name = fitting if self.loss == "auto" else self.loss
        if name is None:
            raise ValueError(
                f"MOCHA has no conjugate step for {type(loss).__name__}; it knows hinge, squared "
                "and logistic: use LeastSquares or Logistic, or loss='hinge' for targets of -1, +1"
            )
        wrong = np.flatnonzero(np.abs(targets) != 1.0)
        if name != "squared" and wrong.size:
            raise ValueError(
                f"loss={name!r} needs targets of -1 or +1; that of example {wrong[0]} is "
                f"{targets[wrong[0]]:g}"
            )
        return KINDS[name]

    def start(self, agents: Any, params: np.ndarray) -> MochaState:
        """alpha = 0 (y/2 for logistic), Sigma = I/K; an initial model has no place here."""
        problem, count = _problem(agents), agents.num_agents
        data = problem.data
        dual = np.zeros(len(data.targets))
        if self.kind(problem) == LOGISTIC:
            dual = data.targets / 2.0
        shared = np.empty((count, data.num_features))
        for k, rows in enumerate(np.split(np.arange(len(dual)), data.offsets[1:-1])):
            shared[k] = weighted_sum(dual[rows], data.features[rows]) / rows.size
        weights = agents.facts(self.client_weights).share()
        return MochaState(dual, shared, np.eye(count) / count, np.ones(1), weights)

    def models(self, state: MochaState) -> np.ndarray:
        """(K, M) the agents' models: W = B Sigma / lambda."""
        # Rows of Sigma are long, which is faster than to multiply by the short ones of B'.
        columns = product(state.shared.T, state.relations)
        return np.divide(columns.T, self.penalty, order="C")

    def model(self, state: Any) -> np.ndarray:
        mean = weighted_sum(state.weights, state.relations)
        return weighted_sum(mean, state.shared) / self.penalty

    def round(self, state: MochaState, agents: Any, round_index: int) -> MochaState:
        problem = _problem(agents)
        data = problem.data
        steps = self._steps(agents, round_index)
        dual, shared = state.dual.copy(), state.shared.copy()
        dual_round(
            self.kind(problem), (data.features, data.targets, data.offsets), dual, shared,
            self.models(state), np.diag(state.relations).copy(),
            (float(self.penalty), float(state.safety[0])), steps,
            (agents.key(Purpose.EXAMPLES), round_index),
        )  # fmt: skip
        busy = np.flatnonzero(steps)
        agents.charge_turns(busy.size, int(steps.sum()), scored=False)
        agents.advance_clock(busy, steps[busy], round_index, PLAIN_LOCAL)
        state = state._replace(dual=dual, shared=shared)
        if self.learn_relations and (round_index + 1) % self.inner_rounds == 0:
            state = related(state, self.models(state))
        return state

    def _steps(self, agents: Any, round_index: int) -> np.ndarray:
        """(K,) how many coordinate steps every agent takes."""
        low, high = self.effort
        everybody = np.arange(agents.num_agents)
        if low == high and self.drop == 0.0:
            steps = np.maximum(1, np.rint(low * agents.sizes)).astype(np.int64)
        else:
            points = agents.stream(Purpose.STRAGGLERS, round_index).uniforms(2 * everybody.size)
            points = points.reshape(2, -1)
            steps = np.maximum(1, np.rint((low + (high - low) * points[0]) * agents.sizes))
            steps = np.where(points[1] < self.drop, 0, steps).astype(np.int64)
        here = answering(agents, everybody, round_index)
        return steps if isinstance(here, slice) else np.where(here, steps, 0)


def related(state: MochaState, models: np.ndarray) -> MochaState:
    """Sigma <- (W'W)^(1/2) / tr with eigenvalues of at least 1e-7, and its rho."""
    vectors, values = left_singular(models)
    above = np.maximum(values - SMALLEST, 0.0)[:, None] * vectors
    root = product(vectors.T, above) + SMALLEST * np.eye(len(models))
    relations = root / np.trace(root)
    safety = (np.abs(relations).sum(axis=1) / np.diag(relations)).max()
    return state._replace(relations=relations, safety=np.array([safety]))


def _problem(agents: Any) -> Problem:
    problem = getattr(agents, "problem", None)
    if not hasattr(getattr(problem, "loss", None), "compiled"):
        raise ValueError("MOCHA runs on agents in this process with a linear loss")
    return problem  # type: ignore[return-value]
