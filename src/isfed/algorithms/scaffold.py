"""SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh (ICML 2020), arXiv 1910.06378.

Every agent keeps a control variate c_k and the cloud their mean c, all zero at first:

    agent:  x <- x - mu (g(x) + c - c_k), E_k times;  c_k+ = c_k - c + (w - x) / (mu E_k)
    cloud:  w <- w + mean over S of (x - w),  c <- c + 1/K sum over S of (c_k+ - c_k)

Option II of the paper with a global step of 1. `ISFedAvg(correction="drift")` has it as a special
case and sends one vector up instead of two; this file is the method as published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isfed.algorithms.parts import Sampled
from isfed.federation.agents import Agents


class ScaffoldState(NamedTuple):
    """The model and the control variates."""

    params: np.ndarray  # (M,) w
    control: np.ndarray  # (M,) c
    controls: np.ndarray  # (K, M) c_k


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
        agents.cross(models_down=active.size, models_up=active.size)  # c, and c_k+ - c_k
        moves = -state.control - uploads.changes / (step * steps)[:, None]
        controls = state.controls.copy()
        controls[active] += moves
        return ScaffoldState(
            state.params + self.mean(agents, active, uploads.changes),
            state.control + moves.sum(axis=0) / agents.num_agents,
            controls,
        )
