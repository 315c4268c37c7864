"""FedAvg with partial participation on data that differ: Li, Huang, Yang, Wang and Zhang, "On the
Convergence of FedAvg on Non-IID Data" (ICLR 2020), arXiv 1907.02189.

p_k are the weights of the agents in the objective. Four ways to average L of K models x_k:

    I               L draws with replacement with probabilities p_k; the plain mean
    II              uniform without replacement; K/L sum p_k x_k, whose weights need not sum to 1
    transformed-II  as II, but agent k steps with p_k K times the step size; the plain mean
    original        uniform without replacement; sum p_k x_k + (1 - sum p_k) w
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from isfed.algorithms.algorithm import ModelState
from isfed.algorithms.parts import (
    Sampled,
    agent_weights,
    answering,
    check_choice,
    check_number,
    draw_with_replacement,
    with_mean_buffers,
)
from isfed.base.arithmetic import weighted_sum
from isfed.federation.agents import Agents

Scheme = Literal["I", "II", "transformed-II", "original"]


@dataclass(frozen=True, kw_only=True)
class FedAvgScheme(Sampled):
    """FedAvg by one of four schemes of selection and averaging.

    client_weights: the p_k of the paper, "uniform" or by "size".
    scheme: "I", "II", "transformed-II" or "original".
    decay: the step size of round i is step_size / (1 + decay i); 1 in the public code.
    """

    scheme: Scheme = "I"
    decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.scheme, Scheme, name="scheme")
        check_number(self.decay, name="decay")

    @property
    def name(self) -> str:
        """With its scheme."""
        return f"FedAvg, scheme {self.scheme}"

    def round(self, state: Any, agents: Agents, round_index: int) -> ModelState:
        """Draw, step, and average by the scheme."""
        weights, params = agent_weights(agents, self.client_weights), state.params
        if self.scheme == "I":
            active, times = draw_with_replacement(agents, weights, self.num_active, round_index)
            here = answering(agents, active, round_index)
            active, times = active[here], times[here]
        else:
            active = self.select(agents, round_index)
            times = np.ones(active.size)
        if not active.size:
            return ModelState(params)  # nobody answered
        step = np.full(active.size, self.step_size / (1.0 + self.decay * round_index))
        if self.scheme == "transformed-II":
            step *= weights[active] * agents.num_agents
        changes = self.work(agents, active, params, round_index, step=step).changes
        if self.scheme == "original":
            found = params + weighted_sum(weights[active], changes)
            return ModelState(with_mean_buffers(found, agents, params, changes, weights[active]))
        if self.scheme == "II":
            share = weights[active] * (agents.num_agents / active.size)
            found = share.sum() * params + weighted_sum(share, changes)
            return ModelState(with_mean_buffers(found, agents, params, changes, share))
        return ModelState(params + weighted_sum(times, changes) / times.sum())
