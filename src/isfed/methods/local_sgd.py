"""Local SGD: Stich, "Local SGD Converges Fast and Communicates Little" (2019), arXiv 1805.09767;
K-AVG: Zhou and Cong (2018), the same with a constant step; and local GD, the same with full
batches: Khaled, Mishchenko and Richtarik, "First Analysis of Local GD on Heterogeneous Data"
(2019), arXiv 1909.04715.

Every agent takes H steps x_k <- x_k - eta_t g_k, then the models are averaged. Stich's theory has
eta_t = 4 / (strong (a + t)) and puts out the average of all models of all steps t with weights
(a + t)^2. In the paper all agents draw from one pool of data; here every agent draws from its own,
so on data that differ from agent to agent the fixed point is not w^o for H > 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from isfed.base.portable_arithmetic import weighted_sum
from isfed.federation.agents import Agents
from isfed.methods.estimators import MeanOfAll
from isfed.methods.federated import Federated
from isfed.methods.local_steps import LocalSteps
from isfed.methods.method_protocol import (
    ClientWeights,
    Composed,
    Count,
    Method,
    Positive,
    check_number,
)
from isfed.methods.shared_fields import Everybody
from isfed.methods.uniform_samplers import AllAgents


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Composed, Everybody):
    """Local SGD: all agents take `steps` (H) steps of constant size, then average.

    >>> LocalSGD(step_size=0.01, steps=5).name
    'LocalSGD'
    """

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        self.check_steps(agents)
        return super().start(agents, params)

    def parts(self) -> Federated:
        local = LocalSteps(self.step_size, self.steps, full_batch=self.full_batch)
        return Federated(AllAgents(), local, MeanOfAll(), client_weights=self.client_weights)


@dataclass(frozen=True, kw_only=True)
class LocalGD(LocalSGD):
    """Local gradient descent: all agents take `steps` (H) full-batch steps, then average.

    >>> LocalGD(step_size=0.01, steps=5).full_batch
    True
    """

    full_batch: bool = True


@dataclass(frozen=True, kw_only=True)
class KAVG(LocalSGD):
    """K-AVG: `steps` local steps of a constant size, then the average; that is local SGD."""

    steps: int = field()  # to be given


class StichState(NamedTuple):
    """The average, and the weighted mean of all models so far with the sum of its weights."""

    params: np.ndarray
    mean: np.ndarray
    mass: np.ndarray


@dataclass(frozen=True, kw_only=True)
class StichSGD(Method):
    """Local SGD as Stich analyses it: a falling step and a weighted average of all models.

    Args:
        strong: the strong convexity constant of P (mu in the paper).
        shift: a > max(16 condition number, H).
        steps: H, local steps between two averages.
        client_weights: how the average weights the agents, "uniform" or by their "size".
        full_batch: whether every local step uses all examples of the agent.
    """

    strong: Positive
    shift: float
    steps: Count = 1
    client_weights: ClientWeights = "uniform"
    full_batch: bool = False

    def __post_init__(self) -> None:
        check_number(self.shift, name="shift", least=float(self.steps), above=True)

    def step_at(self, time: int) -> float:
        """eta_t, the size of a step."""
        return 4.0 / (self.strong * (self.shift + time))

    @property
    def step_size(self) -> float:
        """The size of the first step."""
        return self.step_at(0)

    @cached_property
    def inner(self) -> Everybody:
        """One step of everybody."""
        how = {"client_weights": self.client_weights, "full_batch": self.full_batch}
        return Everybody(step_size=self.step_size, **how)  # type: ignore[arg-type]

    def start(self, agents: Agents, params: np.ndarray) -> StichState:
        return StichState(params.copy(), params.copy(), np.zeros(1))

    def round(self, state: StichState, agents: Agents, round_index: int) -> StichState:
        weights = agents.facts(self.client_weights).share()
        models = np.repeat(state.params[None], agents.num_agents, axis=0)
        mean, mass = state.mean, state.mass
        for local in range(self.steps):
            time = round_index * self.steps + local
            weight = (self.shift + time) ** 2
            mass = mass + weight
            # x-hat, up to this step
            mean = mean + (weight / mass) * (weighted_sum(weights, models) - mean)
            # Each step has an address of its own: its draws are those of a round.
            models = models + self.inner.changes_of_all(
                agents, models, round_index, time=time, step_size=self.step_at(time),
                silent=local > 0,
            )  # fmt: skip
        moved = weighted_sum(self.inner.weights(agents, round_index), models - state.params)
        return StichState(state.params + moved, mean, mass)

    def model(self, state: Any) -> np.ndarray:
        return state.mean
