"""A problem: federated data, a loss, and how much work every agent can do in a round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from isfed.problems import optimum
from isfed.problems.data import FederatedData


def _per_agent(value: Any, num_agents: int, *, name: str) -> np.ndarray:
    """One whole number >= 1 per agent, from one for all or from a vector."""
    given = np.asarray(value)
    if not np.issubdtype(given.dtype, np.integer):
        raise ValueError(f"{name}={value} must be a whole number (or one per agent)")
    if given.ndim > 1 or (given.ndim == 1 and given.size != num_agents):
        raise ValueError(f"{name} has shape {given.shape}, expected one per agent ({num_agents})")
    values = np.broadcast_to(given, num_agents).astype(np.int64)
    if values.min() < 1:
        agent = int(values.argmin())
        raise ValueError(f"{name}={values[agent]} of agent {agent} must be at least 1")
    values.flags.writeable = False
    return values


@dataclass(frozen=True, eq=False)
class Problem:
    """min over params of 1/K sum_k 1/N_k sum_n loss(params; example n of agent k), eq. (1)-(2).

    `local_steps` (E_k) and `batch_size` (B_k) say what an agent does when it is chosen; one number
    for all or one per agent.
    """

    data: FederatedData
    loss: Any
    local_steps: Any = 1
    batch_size: Any = 1
    name: str = "problem"

    def __post_init__(self) -> None:
        # Optional: a loss may refuse rows it cannot take, or ask for them in another type.
        prepare = getattr(self.loss, "prepare", None)
        if prepare is not None:
            object.__setattr__(self, "data", prepare(self.data))
        self.loss.check_targets(self.data.targets)
        num_agents = self.data.num_agents
        local_steps = _per_agent(self.local_steps, num_agents, name="local_steps")
        batch_size = _per_agent(self.batch_size, num_agents, name="batch_size")
        too_large = np.flatnonzero(batch_size > self.data.num_examples)
        if too_large.size:
            agent = too_large[0]
            raise ValueError(
                f"batch_size={batch_size[agent]} of agent {agent} exceeds its "
                f"num_examples={self.data.num_examples[agent]}"
            )
        object.__setattr__(self, "local_steps", local_steps)
        object.__setattr__(self, "batch_size", batch_size)

    @property
    def num_agents(self) -> int:
        """K."""
        return self.data.num_agents

    @cached_property
    def num_params(self) -> int:
        """M."""
        return self.loss.num_params(self.data.num_features)

    @cached_property
    def optimum(self) -> np.ndarray:
        """w^o of eq. (1)."""
        return optimum.minimise(
            self.loss, self.data.features, self.data.targets, self.data.row_weights()
        )

    def local_optimum(self, agent: int) -> np.ndarray:
        """w_k^o, the minimiser of one agent's own risk."""
        x, y = self.data.agent(agent)
        return optimum.minimise(self.loss, x, y, np.full(len(y), 1.0 / len(y)))

    @cached_property
    def largest_curvature(self) -> float:
        """delta of Assumption 1: the largest Lipschitz constant of an example's gradient."""
        return float(np.max(self.loss.curvature(self.data.features)))

    @cached_property
    def drift_response(self) -> np.ndarray:
        """How w^o moves when the true model moves: (R + ridge I)^-1 R, least squares only."""
        return optimum.drift_response(self.loss, self.data.features, self.data.row_weights())

    def risk(self, params: np.ndarray) -> float:
        """The objective of eq. (1)."""
        values = self.loss.values(params, self.data.features, self.data.targets)
        return float(self.data.row_weights() @ values)
