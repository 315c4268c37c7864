"""Adaptive federated learning under a resource budget: Wang, Tuor, Salonidis, Leung, Makaya, He
and Chan (JSAC 2019), arXiv 1804.05271.

All agents take tau steps, then their models are averaged. With its model an agent sends estimates
of how fast gradients and risks change (beta, rho) and of how much the agents differ (delta), all at
the model that it was sent. The cloud then chooses the next tau, which the theory prefers under a
budget where a local step costs c and an average b. So an average changes tau one round after the
next (Algorithm 2 of the paper), and the first two rounds have the first tau. The model is the best
that was seen. The paper estimates on the mini-batch of the last step; here the estimates use all
data of every agent. Whether a round is the last is decided with its own costs; the paper, which
must measure them, takes those of the round before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isfed.base.portable_arithmetic import inner, power, row_norms, weighted_sum
from isfed.base.random_streams import Purpose
from isfed.federation.agents import Agents
from isfed.methods.method_protocol import Count, Positive
from isfed.methods.shared_fields import Everybody, check_one_number

NEAR = 1e-10  # models closer than this say nothing about slopes
LEAST_SLOPE = 1e-5


class Slopes(NamedTuple):
    """beta (of the gradients), delta (between the agents), rho (of the risks)."""

    beta: float
    delta: float
    rho: float


def drift_bound(tau: Any, slopes: Slopes, step_size: float) -> Any:
    """h(tau): how far tau local steps lead away from gradient descent; 0 at 0 and at 1."""
    beta, delta, _ = slopes
    grown = power(step_size * beta + 1.0, tau) - 1.0
    return np.maximum(0.0, delta / beta * grown - step_size * delta * tau)


def control_value(
    tau: Any, slopes: Slopes, *, step_size: float, phi: float, costs: tuple[float, float, float]
) -> Any:
    """G(tau), the bound that the choice of tau minimises; `costs` are c, b and the budget R."""
    local, average, budget = costs
    tau = np.asarray(tau, float)
    steps = (budget - local - average) * tau / (local * tau + average)  # T(tau)
    drift = drift_bound(tau, slopes, step_size)
    inside = 1.0 + 4.0 * steps**2 * phi * slopes.rho * step_size * drift / tau
    return (1.0 + np.sqrt(inside)) / (2.0 * steps * step_size * phi) + slopes.rho * drift


class TauState(NamedTuple):
    """The model and the best one, the next tau, what is spent, and the last local models."""

    params: np.ndarray
    best: np.ndarray
    best_loss: np.ndarray  # ()
    tau: np.ndarray  # ()
    spent: np.ndarray  # () of the budget
    done: np.ndarray  # () whether the budget is used up
    models: np.ndarray  # (K, M) before the last average; empty before the first


@dataclass(frozen=True, kw_only=True)
class AdaptiveTau(Everybody):
    """Adaptive federated learning: tau, the number of local steps, is chosen anew every round.

    Args:
        steps: tau in the first round.
        budget: what a run may cost in all, in the unit of the two costs below.
        local_cost: mean and standard deviation of the cost of a local step of all agents at once.
        average_cost: mean and standard deviation of the cost of one average.
        phi: a constant of the theory, tuned; 0.025 for the paper's support vector machine.
        most_steps: the largest tau.
        adapt: whether tau is adapted; if not, it stays as it is.
    """

    budget: Positive = 15.0
    local_cost: tuple[float, float] = (0.0130, 0.0069)
    average_cost: tuple[float, float] = (0.1316, 0.0539)
    phi: Positive = 0.025
    most_steps: Count = 100
    adapt: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_number(self.steps, "all agents take tau steps")

    def start(self, agents: Agents, params: np.ndarray) -> TauState:
        super().start(agents, params)
        return TauState(
            params.copy(), params.copy(), np.array(np.inf), np.array(self.steps), np.array(0.0),
            np.array(False), np.empty((0, params.size)),
        )  # fmt: skip

    def round(self, state: Any, agents: Agents, round_index: int) -> TauState:
        if state.done:
            return state
        weights = self.weights(agents, round_index)
        here = np.flatnonzero(weights)
        if not here.size:
            return state  # nobody answered
        local, average = self._costs(agents, round_index)
        losses = np.zeros(agents.num_agents)
        losses[here] = agents.losses(here, state.params)
        state = _best_of(state, inner(weights, losses))
        tau = following = int(state.tau)
        if self.adapt and len(state.models):  # this arrives with the models of the round
            slopes = self.estimate(state, agents, weights, losses)
            following = self.choose(slopes, tau, (local, average, self.budget))
        spent = float(state.spent)
        last = spent + local * (tau + 1) + 2.0 * average >= self.budget
        if last:
            tau = max(1, int((self.budget - spent - 2.0 * average) / local) - 1)
        changes = self.changes_of_all(agents, state.params, round_index, steps=tau, sent=True)
        params = state.params + weighted_sum(weights, changes)
        if not np.isfinite(params).all():
            params, following = state.params, 1
        state = state._replace(
            params=params,
            tau=np.array(following),
            spent=np.array(spent + local * tau + average),
            done=np.array(last),
            models=state.params + changes,
        )
        if last:  # one evaluation at the end
            state = _best_of(state, inner(weights[here], agents.losses(here, params)))
        return state

    def estimate(
        self, state: TauState, agents: Agents, weights: np.ndarray, losses: np.ndarray
    ) -> Slopes:
        """The three slopes, from the last local models and their average.

        An agent sends its gradient at the average, its beta and its rho; the rest stays with it.
        """
        heard = np.flatnonzero(weights)
        models, losses, weights = state.models[heard], losses[heard], weights[heard]
        distance = row_norms(models - state.params)
        far = distance >= NEAR
        gap = np.where(far, distance, 1.0)
        here = agents.gradients(heard, state.params, sent=True)
        there = agents.gradients(heard, models, sent=True, kept=True)
        before = agents.losses(heard, models, sent=True, kept=True)
        agents.charge_messages(scalars_up=2 * heard.size)
        beta = np.where(far, row_norms(there - here) / gap, 0.0)
        rho = np.where(far, np.abs(before - losses) / gap, 0.0)
        delta = row_norms(here - weighted_sum(weights, here))
        return Slopes(
            max(inner(weights, beta), LEAST_SLOPE), inner(weights, delta), inner(weights, rho)
        )

    def choose(self, slopes: Slopes, tau: int, costs: tuple[float, float, float]) -> int:
        """The tau between 1 and 10 times the last that G prefers; the smallest of equal ones."""
        candidates = np.arange(1, min(10 * tau, self.most_steps) + 1)
        values = control_value(
            candidates, slopes, step_size=self.step_size, phi=self.phi, costs=costs
        )
        return int(candidates[np.argmin(values)])

    def _costs(self, agents: Agents, round_index: int) -> tuple[float, float]:
        """What a local step and an average cost in this round: normal, and positive."""
        points = agents.stream(Purpose.DELAYS, round_index).normals(2)
        costs = zip((self.local_cost, self.average_cost), points.tolist(), strict=True)
        local, average = (max(1e-10, mean + spread * point) for (mean, spread), point in costs)
        return local, average

    def model(self, state: Any) -> np.ndarray:
        return state.best if state.done else state.params


def _best_of(state: TauState, loss: float) -> TauState:
    if loss < state.best_loss:
        return state._replace(best=state.params, best_loss=np.array(loss))
    return state
