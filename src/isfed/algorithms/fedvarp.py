"""FedVARP: Jhunjhunwala, Sharma, Nagarkar and Joshi, "FedVARP: Tackling the Variance Due to
Partial Client Participation in Federated Learning" (UAI 2022), arXiv 2207.14130.

The cloud keeps y_k, the last change of every agent, zero at first:

    w <- w + mean over all k of y_k + mean over S of (d_k - y_k),  then y_k <- d_k for k in S

If nobody of S answers, the model still moves by the mean of the y_k.

`ISFedAvg(correction="difference")` has it as its uniform case; this file is the method as
published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isfed.algorithms.parts import Sampled, agent_weights, with_mean_buffers
from isfed.base.arithmetic import weighted_sum
from isfed.federation.agents import Agents, num_trained


class FedVARPState(NamedTuple):
    """The model, and what every agent changed last."""

    params: np.ndarray  # (M,) w
    changes: np.ndarray  # (K, M) y_k


@dataclass(frozen=True, kw_only=True)
class FedVARP(Sampled):
    """FedVARP: for agents that were not selected, the cloud uses their last change.

    divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    divide_by_steps: bool = False

    def start(self, agents: Agents, params: np.ndarray) -> FedVARPState:
        """No agent has worked yet."""
        super().start(agents, params)
        return FedVARPState(params.copy(), np.zeros((agents.num_agents, params.size)))

    def round(self, state: Any, agents: Agents, round_index: int) -> FedVARPState:
        """Draw, work, and add what is new to the mean of the last changes."""
        weights = agent_weights(agents, self.client_weights)
        params = state.params + weighted_sum(weights, state.changes)
        active = self.select(agents, round_index)
        if not active.size:
            return FedVARPState(params, state.changes)
        step = np.full(active.size, float(self.step_size))
        if self.divide_by_steps:
            step = step / self.steps_of(agents, active)
        found = self.work(agents, active, state.params, round_index, step=step).changes
        # Each of S stands for K / |S| agents: the mean over S where all weigh the same.
        share = weights[active] * (agents.num_agents / active.size)
        params = params + weighted_sum(share, found - state.changes[active])
        params = with_mean_buffers(params, agents, state.params, found, weights[active])
        found[:, num_trained(agents) :] = 0.0  # nothing of the buffers is remembered
        changes = state.changes.copy()
        changes[active] = found
        return FedVARPState(params, changes)
