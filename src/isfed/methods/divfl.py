"""DivFL: Balakrishnan, Li, Zhou, Himayat, Smith and Bilmes, "Diverse Client Selection for Federated
Learning via Submodular Maximization" (ICLR 2022).

The cloud knows a gradient G_k of every agent: all at the first model, then anew for those heard. It
chooses the L agents whose gradients stand best for all, the greedy minimiser of

    sum over i of min over j in S of |G_i - G_j|

Nothing is random; ties go to the lower number. The paper's estimator, sum_j gamma_j change_j with
gamma_j the share of agents nearest to j, is unconfirmed: the public program takes the mean by size
(`weights="size"`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts
from isfed.methods.change_norms import lengths_of
from isfed.methods.estimators import Mean, PlainMean
from isfed.methods.federated import Drawn, Federated
from isfed.methods.local_steps import LocalSteps
from isfed.methods.method_protocol import Composed, Count
from isfed.methods.shared_fields import Sampled, answering
from isfed.methods.uniform_samplers import Unscored

Weights = Literal["facility", "size"]


class GradientState(NamedTuple):
    """What is known of every agent."""

    gradients: np.ndarray  # (K, M') G_k
    distances: np.ndarray  # (K, K) |G_i - G_j|
    asked: np.ndarray  # (1,) whether all were asked yet


def stand_for_all(distances: np.ndarray, num: int) -> np.ndarray:
    """The agents chosen, in the order in which the greedy algorithm takes them.

    >>> stand_for_all(np.abs(np.subtract.outer([0.0, 1, 9, 10], [0.0, 1, 9, 10])), 2).tolist()
    [1, 2]
    """
    nearest, chosen = np.full(len(distances), np.inf), []
    for _ in range(num):
        cost = np.minimum(nearest[:, None], distances).sum(axis=0)
        cost[chosen] = np.inf
        chosen.append(int(np.argmin(cost)))
        nearest = np.minimum(nearest, distances[:, chosen[-1]])
    return np.array(chosen, np.int64)


@dataclass(frozen=True)
class Diverse(Unscored):
    """The agents whose gradients stand best for those of all, as in `DivFL`.

    Args:
        num_active: L.
        local: how agents step, by which a change becomes a gradient.
        facility: whether an agent counts by how many it stands for.
        ask_all: whether all agents send their gradient in every round.
    """

    num_active: Count
    local: LocalSteps
    facility: bool = True
    ask_all: bool = False

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> GradientState:
        super().init(facts, agents, params)
        count = facts.num_agents
        rows = np.zeros((count, facts.num_trained))
        return GradientState(rows, np.zeros((count, count)), np.zeros(1, bool))

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        ask = self.ask_all or not state.asked[0]
        if ask:
            who = np.arange(facts.num_agents)
            who = who[answering(agents, who, round_index)]
            self._renew(state, who, agents.gradients(who, params)[:, : facts.num_trained])
            state.asked[0] = True
        drawn = np.sort(stand_for_all(state.distances, self.num_active))
        times = np.ones(drawn.size)
        if self.facility:
            near = np.argmin(state.distances[:, drawn], axis=1)
            shares = np.bincount(near, weights=facts.share(), minlength=drawn.size)
            times = shares * facts.num_agents
        return Cohort(drawn, self.num_active, times, has_model=ask), state

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> Any:
        who = cohort.agents[updates.place]
        if not self.ask_all and who.size:
            reach = self.local.at(round_index) * np.ones(who.size)
            if not self.local.divide_by_steps:
                reach = reach * self.local.steps(who, facts)
            self._renew(state, who, -evidence.change / reach[:, None])
        return state

    def _renew(self, state: GradientState, who: np.ndarray, rows: np.ndarray) -> None:
        """Know these gradients, and their distances from all; writes into the state."""
        known = np.isfinite(rows).all(axis=1)  # over a network an answer may be lost
        for agent, row in zip(who[known].tolist(), rows[known], strict=True):
            state.gradients[agent] = row
            far = lengths_of(state.gradients - row)
            state.distances[agent] = state.distances[:, agent] = far


@dataclass(frozen=True, kw_only=True)
class DivFL(Composed, Sampled):
    """DivFL: hears the agents whose gradients stand best for those of all.

    The paper's weights, "facility", are unconfirmed.

    Args:
        weights: "facility", as in the paper: by how many agents one stands for; or "size": the
            mean over those heard by size, as in the public program.
        ask_all: whether all agents send their gradient in every round, the paper's ideal version;
            else only in the first.
        divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    weights: Weights = "facility"
    ask_all: bool = False
    divide_by_steps: bool = False

    def parts(self) -> Federated:
        facility, local = self.weights == "facility", self.local()
        sampler = Diverse(self.num_active, local, facility, self.ask_all)
        if facility:
            return self.made_of(PlainMean(), sampler=sampler, local=local)
        return Federated(sampler, local, Mean(), client_weights="size")
