"""Parallel restarted SGD: Yu, Yang and Zhu, "Parallel Restarted SGD with Faster Convergence and
Less Communication" (AAAI 2019), arXiv 1807.06629.

Every I steps all agents restart from the mean of their models. The paper's listing takes the mean
of the models before the gradients of that step, which were computed at the separate models
("pre"); taking it after the step ("post") is local SGD. With unequal I_k (the paper's asynchronous
version; there is no staleness in it) the limit leans towards the agents that step more often.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from isfed.base.portable_arithmetic import weighted_sum
from isfed.federation.agent import AgentConfig
from isfed.federation.agents import Agents
from isfed.methods.federated import Federated
from isfed.methods.local_sgd import LocalSGD
from isfed.methods.shared_fields import Everybody

When = Literal["post", "pre"]


class SeparateState(NamedTuple):
    """The models of all agents, and how much each counts in their mean."""

    models: np.ndarray  # (K, M)
    counts: np.ndarray  # (K,) c_k in any unit


@dataclass(frozen=True, kw_only=True)
class RestartedSGD(LocalSGD):
    """Parallel restarted SGD: local SGD in which agents may take different numbers of steps.

    Args:
        steps: I for all agents, or one I_k for each.
        average: "post" takes the mean after the last step of a period, "pre" before it.
    """

    average: When = "post"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average == "pre" and np.ndim(self.steps):
            raise ValueError("average='pre' needs one number of steps for all agents")

    @cached_property
    def federated(self) -> Federated | None:  # type: ignore[override]
        """Local SGD; None for "pre", which has a round of its own."""
        return self.parts() if self.average == "post" else None

    def rules(self, num_agents: int) -> AgentConfig:
        return Everybody.rules(self, num_agents)  # also without parts

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        if self.federated is not None:
            return super().start(agents, params)
        uniform = self.client_weights == "uniform"
        return SeparateState(
            np.repeat(params[None], agents.num_agents, axis=0),
            np.ones(agents.num_agents, np.int64) if uniform else agents.sizes,
        )

    def round(self, state: Any, agents: Agents, round_index: int) -> Any:
        if self.federated is not None:
            return super().round(state, agents, round_index)
        models, weights = state.models, self.weights(agents, round_index)
        if not weights.any():
            return state  # nobody answered
        alone, time = int(np.max(self.steps)) - 1, 2 * round_index
        if alone:
            models = models + self.changes_of_all(
                agents, models, round_index, time=time, steps=alone
            )
        # With steps alone, the models crossed when the period began.
        last = self.changes_of_all(
            agents, models, round_index, time=time + 1, steps=1, silent=alone > 0
        )
        return state._replace(models=weighted_sum(weights, models) + last)

    def model(self, state: Any) -> np.ndarray:
        if self.federated is not None:
            return super().model(state)
        return (state.counts[:, None] * state.models).sum(axis=0) / state.counts.sum()
