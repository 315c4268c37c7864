"""Local SGD and its kin: all agents take H steps x_k <- x_k - eta g_k, then average their models.

Stich, "Local SGD Converges Fast and Communicates Little" (2019), arXiv 1805.09767; K-AVG: Zhou and
Cong (2018), the same with a constant step; local GD, the same with full batches: Khaled,
Mishchenko and Richtarik, "First Analysis of Local GD on Heterogeneous Data" (2019), arXiv
1909.04715. In Stich's paper all agents draw from one pool of data; here every agent draws from its
own, so on data that differ from agent to agent the fixed point is not w^o for H > 1.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from isfed.base.portable_arithmetic import weighted_sum
from isfed.federation.agents import Agents
from isfed.federation.messages import EVERY, Cohort, Facts, Updates, Work
from isfed.methods.estimators import MeanOfAll
from isfed.methods.federated import Combined, Federated, Opened
from isfed.methods.local_steps import LocalSteps
from isfed.methods.method_protocol import (
    BelowOne,
    ClientWeights,
    Composed,
    Count,
    Method,
    Positive,
    check_number,
)
from isfed.methods.shared_fields import Everybody, check_one_number
from isfed.methods.uniform_samplers import AllAgents

Buffer = Literal["average", "reset", "keep"]
When = Literal["post", "pre"]


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Composed, Everybody):
    """Local SGD: all agents take `steps` (H) steps of constant size, then average.

    Examples:
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

    Examples:
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

    The step is eta_t = 4 / (strong (a + t)), and all models of all steps t count by (a + t)^2.

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
        return Everybody(
            step_size=1.0, client_weights=self.client_weights, full_batch=self.full_batch
        )

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


class SeparateState(NamedTuple):
    """The models of all agents, and how much each counts in their mean."""

    models: np.ndarray  # (K, M)
    counts: np.ndarray  # (K,) c_k in any unit


@dataclass(frozen=True, kw_only=True)
class MeanBeforeLastStep(Everybody):
    """The round of restarted SGD in which the last step of a period is added to the mean."""

    def start(self, agents: Agents, params: np.ndarray) -> SeparateState:
        counts = agents.facts(self.client_weights).counted(np.ones(agents.num_agents, np.int64))
        return SeparateState(np.repeat(params[None], agents.num_agents, axis=0), counts)

    def round(self, state: Any, agents: Agents, round_index: int) -> SeparateState:
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
        return (state.counts[:, None] * state.models).sum(axis=0) / state.counts.sum()


@dataclass(frozen=True, kw_only=True)
class RestartedSGD(LocalSGD):
    """Parallel restarted SGD: local SGD in which agents may take different numbers of steps.

    Yu, Yang and Zhu (AAAI 2019), arXiv 1807.06629: every I steps all agents restart from the mean
    of their models. The paper's listing takes it before the gradients of that step, which were
    computed at the separate models ("pre"); after the step ("post") it is local SGD. With unequal
    I_k, which the paper calls asynchronous, the limit leans towards agents that step more often.

    Args:
        steps: I for all agents, or one I_k for each.
        average: "post" takes the mean after the last step of a period, "pre" before it.
    """

    average: When = "post"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average == "pre":
            check_one_number(self.steps, "average='pre' is the mean before everybody's last step")

    @cached_property
    def federated(self) -> Federated | None:  # type: ignore[override]
        """Local SGD; None for "pre", which has a round of its own."""
        return self.parts() if self.average == "post" else None

    @cached_property
    def _runs(self) -> Any:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(Everybody)}
        return self.federated or MeanBeforeLastStep(**fields)


BOTH_WAYS = {"models_down": 1, "models_up": 1}  # the momentum travels with the model


class Velocities(NamedTuple):
    """The momentum with which every agent starts."""

    velocity: np.ndarray  # (K, M)


@dataclass(frozen=True)
class MomentumMean(MeanOfAll):
    """The mean of the models, and what becomes of the momenta; fields as in `MomentumSGD`."""

    momentum: float
    nesterov: bool
    buffer: Buffer

    def init(self, facts: Facts, params: np.ndarray) -> Velocities:
        return Velocities(np.zeros((facts.num_agents, facts.num_params)))

    def ask(self, state: Velocities, cohort: Cohort, facts: Facts, work: Work) -> Work:
        local = work.local
        if self.momentum > 0.0:
            how = {"momentum": float(self.momentum), "nesterov": self.nesterov}
            local = local.but(velocity=state.velocity[cohort.agents], **how)
        return work._replace(local=local, extra=BOTH_WAYS if self.buffer == "average" else {})

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        velocity = updates.velocity
        if self.momentum > 0.0 and len(velocity) and self.buffer != "reset":
            who = opened.cohort.agents[updates.place]
            if self.buffer == "average":
                who = EVERY  # also those that are absent
                velocity = self.mean(velocity, opened, updates, facts)
            state.velocity[who] = velocity
        return super().combine(state, opened, updates, facts)


@dataclass(frozen=True, kw_only=True)
class MomentumSGD(LocalSGD):
    """SGD with momentum at all agents, with periodic averages of the models.

    Yu, Jin and Yang (ICML 2019), arXiv 1905.03817: u <- beta u + g, then x <- x - gamma u (Polyak)
    or x <- x - gamma (g + beta u) (Nesterov). One step is momentum SGD on the mean gradient.

    Args:
        momentum: beta, the share of the last step that is added to the next.
        nesterov: Nesterov's form instead of Polyak's.
        buffer: what happens to the momentum at an average: "average" it too (the paper), "reset" it
            to zero, or "keep" it at every agent.
    """

    momentum: BelowOne = 0.9
    nesterov: bool = False
    buffer: Buffer = "average"

    def parts(self) -> Federated:
        estimator = MomentumMean(self.momentum, self.nesterov, self.buffer)
        return replace(super().parts(), estimator=estimator)
