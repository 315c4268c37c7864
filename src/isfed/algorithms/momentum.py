"""Distributed momentum SGD: Yu, Jin and Yang, "On the Linear Speedup Analysis of Communication
Efficient Momentum SGD" (ICML 2019), arXiv 1905.03817.

Every agent takes I steps u <- beta u + g, x <- x - gamma u (Polyak) or x <- x - gamma (g + beta u)
(Nesterov); then both x and u are averaged. With I = 1 it is momentum SGD on the mean gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from isfed.algorithms.parts import Everybody, check_choice
from isfed.base.arithmetic import weighted_sum
from isfed.base.checks import is_number
from isfed.federation.agents import Agents

Buffer = Literal["average", "reset", "keep"]


class MomentumState(NamedTuple):
    """The average model, and the momentum with which every agent starts, (K, M)."""

    params: np.ndarray
    velocity: np.ndarray


@dataclass(frozen=True, kw_only=True)
class MomentumSGD(Everybody):
    """SGD with momentum at all agents, with periodic averages of the models.

    momentum: beta, the share of the last step that is added to the next.
    nesterov: Nesterov's form instead of Polyak's.
    buffer: what happens to the momentum at an average: "average" it too (the paper), "reset" it to
        zero, or "keep" it at every agent.
    """

    momentum: float = 0.9
    nesterov: bool = False
    buffer: Buffer = "average"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.momentum) and 0.0 <= self.momentum < 1.0):
            raise ValueError(f"momentum={self.momentum!r} must be at least 0 and below 1")
        check_choice(self.buffer, Buffer, name="buffer")

    def start(self, agents: Agents, params: np.ndarray) -> MomentumState:
        """No momentum yet."""
        super().start(agents, params)
        return MomentumState(params.copy(), np.zeros((agents.num_agents, params.size)))

    def round(self, state: Any, agents: Agents, round_index: int) -> MomentumState:
        """Steps with momentum, then the average of models and momenta."""
        uploads = self.work(
            agents, state.params, round_index, momentum=float(self.momentum),
            nesterov=self.nesterov, velocity=state.velocity,
        )  # fmt: skip
        weights = self.weights(agents, round_index)
        params = state.params + weighted_sum(weights, uploads.changes)
        velocity = uploads.velocity if self.momentum > 0.0 else state.velocity
        if self.buffer == "average":
            here = int(np.count_nonzero(weights))
            if here:
                velocity = np.repeat(
                    weighted_sum(weights, velocity)[None], agents.num_agents, axis=0
                )
            agents.cross(models_down=here, models_up=here)
        elif self.buffer == "reset":
            velocity = np.zeros_like(velocity)
        return MomentumState(params, velocity)
