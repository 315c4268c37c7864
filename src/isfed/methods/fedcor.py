"""FedCor: Tang, Ning, Wang, Sun, Wang, Li and Chen, "FedCor: Correlation-Based Active Client
Selection Strategy for Heterogeneous Federated Learning" (CVPR 2022), arXiv 2103.13822.

How the losses of all agents change in a round is modelled as normal, with covariance
S = X'X + 0.01^2 I and X of 15 rows. In a warm-up agents are drawn uniformly, all tell their loss,
and X is fitted. Then L times: the agent k with the largest a_k sum_i c_i S_ik / sqrt(S_kk) is
taken, and S is conditioned on it. The factor a_k shrinks whenever k is heard. Now and then all a_k
are 1 again, and a round with a uniform cohort is made and thrown away to fit X anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from isfed.base.jit import compiled
from isfed.base.portable_arithmetic import power, product, weighted_sum
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts
from isfed.methods.estimators import PlainMean
from isfed.methods.federated import Drawn, Federated
from isfed.methods.local_steps import LocalSteps
from isfed.methods.method_protocol import BelowOne, Composed, Count, Positive
from isfed.methods.shared_fields import Sampled
from isfed.methods.uniform_samplers import Unscored, draw_uniformly
from isfed.sampling.designs.spread import projection

ROWS, NOISE = 15, 0.01  # of X, and the standard deviation of what it does not explain
RATE, FIRST, AGAIN = 0.01, 1000, 100  # of Adam: its rate, and steps of the first and of later fits
FORGET = 100  # rounds after which a change of losses is forgotten


class LossModel(NamedTuple):
    """The model of how losses change, and what it was fitted to."""

    factor: np.ndarray  # (15, K) X
    discount: np.ndarray  # (K,) a_k
    before: np.ndarray  # (K,) the losses told last
    changes: np.ndarray  # (H, K) by how much losses changed in a round
    rounds: np.ndarray  # (H,) in which; -1 for an empty row


@compiled
def _solve(matrix, rows):
    """The solution of matrix @ x = rows, into `rows`; the matrix is positive definite."""
    for i in range(matrix.shape[0]):
        pivot = 1.0 / matrix[i, i]
        for j in range(matrix.shape[0]):
            factor = matrix[j, i] * pivot
            if j == i:
                continue
            for k in range(i, matrix.shape[0]):
                matrix[j, k] -= factor * matrix[i, k]
            for k in range(rows.shape[1]):
                rows[j, k] -= factor * rows[i, k]
    for i in range(matrix.shape[0]):
        for k in range(rows.shape[1]):
            rows[i, k] /= matrix[i, i]


def slope(factor: np.ndarray, rows: np.ndarray, total: float) -> np.ndarray:
    """(15, K) the gradient in X of the log-likelihood of `rows`, (n, K), of weights in all `total`.

    The rows are centred and multiplied by the roots of their weights.
    """
    # X S^-1 = (0.01^2 I + X X')^-1 X, so that no matrix of K rows is ever inverted.
    inner = product(factor, np.ascontiguousarray(factor.T))
    inner[np.diag_indices(len(inner))] += NOISE**2
    solved = factor.copy()
    _solve(inner, solved)
    back = np.ascontiguousarray(rows.T)
    explained = product(product(rows, np.ascontiguousarray(factor.T)), solved)
    return product(product(solved, back), (rows - explained) / NOISE**2) - total * solved


def fitted(factor: np.ndarray, rows: np.ndarray, total: float, steps: int) -> np.ndarray:
    """X after so many steps of Adam uphill."""
    factor, mean, square = factor.copy(), np.zeros_like(factor), np.zeros_like(factor)
    for step in range(1, steps + 1):
        gradient = slope(factor, rows, total)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient * gradient
        first, second = 1.0 - float(power(0.9, step)), 1.0 - float(power(0.999, step))
        factor += RATE * (mean / first) / (np.sqrt(square / second) + 1e-8)
    return factor


def most_informative(
    covariance: np.ndarray, share: np.ndarray, discount: np.ndarray, num: int
) -> np.ndarray:
    """The agents taken one after the other, each given those before it."""
    covariance, chosen = covariance.copy(), []
    for _ in range(num):
        own = np.maximum(np.diag(covariance), 1e-12)
        gain = discount * weighted_sum(share, covariance) / np.sqrt(own)
        gain[chosen] = -np.inf
        k = int(np.argmax(gain))
        chosen.append(k)
        covariance -= covariance[:, k : k + 1] * covariance[k] / own[k]
    return np.array(chosen, np.int64)


@dataclass(frozen=True)
class ByCorrelation(Unscored):
    """Agents whose losses tell most about those of all.

    The fields are those of `FedCor`; `local` says how agents step in rounds that are thrown away.
    """

    num_active: Count
    local: LocalSteps
    warm_up: Count = 15
    forgetting: Positive = 0.95
    shrink: BelowOne = 0.95
    every: Count = 10
    reads_problem: ClassVar[str] = (
        "it makes rounds that are thrown away; agents on Flower take one turn in a round"
    )

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> LossModel:
        super().init(facts, agents, params)
        count, rows = facts.num_agents, self.warm_up + FORGET // self.every + 1
        start = np.ascontiguousarray(projection(count, ROWS).T)
        start = start / np.sqrt((start * start).mean() * ROWS)
        nothing = np.zeros(count)
        return LossModel(start, np.ones(count), nothing, np.zeros((rows, count)), np.full(rows, -1))

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        everybody, later = np.arange(facts.num_agents), round_index - self.warm_up
        ask = later <= 0
        if ask:  # what losses are after a round they are before the next
            losses = agents.losses(everybody, params)
            if round_index:
                self._record(state, losses - state.before, round_index - 1)
            state.before[:] = losses
        elif later % self.every == 0:
            state.discount[:] = 1.0
            self._try_round(state, facts, agents, params, round_index)
        if later == 0 or (later > 0 and later % self.every == 0):
            self._fit(state, round_index, FIRST if later == 0 else AGAIN)
        if later < 0:
            drawn = draw_uniformly(agents, self.num_active, round_index)
        else:
            covariance = product(np.ascontiguousarray(state.factor.T), state.factor)
            covariance[np.diag_indices(len(covariance))] += NOISE**2
            drawn = most_informative(covariance, facts.share(), state.discount, self.num_active)
        return Cohort(np.sort(drawn), self.num_active, np.ones(drawn.size), has_model=ask), state

    def _try_round(self, state, facts, agents, params, round_index) -> None:
        """A round with a uniform cohort that moves nothing, for its losses before and after."""
        everybody = np.arange(facts.num_agents)
        before = agents.losses(everybody, params)
        drawn = draw_uniformly(agents, self.num_active, round_index)
        cohort = Cohort(drawn, self.num_active, np.ones(drawn.size), has_model=True)
        work = self.local.work(cohort, facts, round_index)
        change = agents.train(cohort, params, work, round_index).change
        if len(change):
            after = agents.losses(everybody, params + change.mean(axis=0))
            self._record(state, after - before, round_index)

    def _record(self, state: LossModel, change: np.ndarray, number: int) -> None:
        """Keep a change of losses in the place of the oldest; writes into the state."""
        if np.isfinite(change).all():
            place = int(np.argmin(state.rounds))
            state.changes[place], state.rounds[place] = change, number

    def _fit(self, state: LossModel, number: int, steps: int) -> None:
        """Fit X to the changes that are not forgotten; writes into the state."""
        age = number - state.rounds
        kept = (state.rounds >= 0) & (age <= FORGET)
        if not kept.any():
            return
        weight = power(self.forgetting, age[kept])
        total = float(weight.sum())
        centred = state.changes[kept] - weighted_sum(weight / total, state.changes[kept])
        rows = np.ascontiguousarray(np.sqrt(weight)[:, None] * centred)
        factor = fitted(state.factor, rows, total, steps)
        if np.isfinite(factor).all():
            state.factor[:] = factor

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> Any:
        if round_index >= self.warm_up:
            state.discount[cohort.agents[updates.place]] *= self.shrink
        return state


@dataclass(frozen=True, kw_only=True)
class FedCor(Composed, Sampled):
    """FedCor: hears the agents whose losses tell most about the losses of all.

    Args:
        warm_up: rounds in which agents are drawn uniformly and all tell their loss.
        forgetting: the factor of a change of losses for every round of its age.
        shrink: the factor by which an agent is less wanted each time it was heard.
        every: rounds between two fits, for each of which a round is made and thrown away.
    """

    warm_up: Count = 15
    forgetting: Positive = 0.95
    shrink: BelowOne = 0.95
    every: Count = 10

    def parts(self) -> Federated:
        local = self.local()
        sampler = ByCorrelation(
            self.num_active, local, self.warm_up, self.forgetting, self.shrink, self.every
        )
        return self.made_of(PlainMean(), sampler=sampler, local=local)
