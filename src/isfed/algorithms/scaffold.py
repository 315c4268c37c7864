"""SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh (ICML 2020), arXiv 1910.06378.

Every agent keeps a control variate v_k and the cloud their mean v, all zero at first:

    agent:  x <- x - mu (g(x) + v - v_k), E_k times;  v_k+ = v_k - v + (w - x) / (mu E_k)
    cloud:  w <- w + mean over S of (x - w),  v <- v + 1/K sum over S of (v_k+ - v_k)

(The paper writes c; here c_k is the weight of an agent.) By size both means are weighted, and v is
sum_k c_k v_k, so that nothing moves at the minimiser of sum_k c_k P_k.

Option II of the paper with a global step of 1. `ISFedAvg(correction="drift")` has it as a special
case and sends one vector up instead of two; this file is the method as published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isfed.algorithms.parts import Sampled, agent_weights
from isfed.federation.agents import Agents


class ScaffoldState(NamedTuple):
    """The model and the control variates."""

    params: np.ndarray  # (M,) w
    control: np.ndarray  # (M,) v = sum_k c_k v_k
    controls: np.ndarray  # (K, M) v_k


@dataclass(frozen=True, kw_only=True)
class SCAFFOLD(Sampled):
    """SCAFFOLD: local steps are corrected by control variates; two vectors travel each way.

    divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    divide_by_steps: bool = False

    def start(self, agents: Agents, params: np.ndarray) -> ScaffoldState:
        """All control variates are zero."""
        super().start(agents, params)
        size = params.size
        return ScaffoldState(params.copy(), np.zeros(size), np.zeros((agents.num_agents, size)))

    def round(self, state: Any, agents: Agents, round_index: int) -> ScaffoldState:
        """Draw, step with the correction, average models and control variates."""
        active = self.select(agents, round_index)
        if not active.size:
            return state
        steps = self.steps_of(agents, active)
        step = self.step_size / (steps if self.divide_by_steps else np.ones(active.size))
        correction = state.control - state.controls[active]
        uploads = self.work(
            agents, active, state.params, round_index, step=step, correction=correction
        )
        agents.cross(models_down=active.size, models_up=active.size)  # v, and v_k+ - v_k
        moves = -state.control - uploads.changes / (step * steps)[:, None]
        controls = state.controls.copy()
        controls[active] += moves
        # Those not heard keep their v_k, so v moves by c_k for every agent heard.
        weights = agent_weights(agents, self.client_weights)[active, None]
        return ScaffoldState(
            state.params + self.mean(agents, active, uploads.changes),
            state.control + (weights * moves).sum(axis=0),
            controls,
        )
