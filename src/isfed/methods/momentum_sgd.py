"""Distributed momentum SGD: Yu, Jin and Yang, "On the Linear Speedup Analysis of Communication
Efficient Momentum SGD" (ICML 2019), arXiv 1905.03817.

Every agent takes I steps u <- beta u + g, x <- x - gamma u (Polyak) or x <- x - gamma (g + beta u)
(Nesterov); then both x and u are averaged. With I = 1 it is momentum SGD on the mean gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from isfed.federation.messages import EVERY, Cohort, Facts, Updates, Work
from isfed.methods.estimators import MeanOfAll
from isfed.methods.federated import Combined, Federated, Opened
from isfed.methods.local_sgd import LocalSGD
from isfed.methods.method_protocol import BelowOne

Buffer = Literal["average", "reset", "keep"]


class Velocities(NamedTuple):
    """The momentum with which every agent starts."""

    velocity: np.ndarray  # (K, M)


@dataclass(frozen=True)
class MomentumMean(MeanOfAll):
    """The mean of the models, and what becomes of the momenta; fields as in `MomentumSGD`."""

    momentum: float
    nesterov: bool
    buffer: Buffer
    needs: ClassVar[dict[str, str]] = {
        "everybody in every round": "momenta go from one round to the next; use AllAgents()"
    }

    def init(self, facts: Facts, params: np.ndarray) -> Velocities:
        return Velocities(np.zeros((facts.num_agents, facts.num_params)))

    def ask(self, state: Velocities, cohort: Cohort, facts: Facts, work: Work) -> Work:
        if self.buffer == "average":
            work = work._replace(extra={"models_down": 1, "models_up": 1})
        if self.momentum == 0.0:
            return work
        how = {"momentum": float(self.momentum), "nesterov": self.nesterov}
        return work._replace(local=work.local.but(velocity=state.velocity, **how))

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        who, velocity = opened.cohort.agents[updates.place], updates.velocity
        if self.momentum > 0.0 and who.size and self.buffer != "reset":
            if self.buffer == "average":
                who = EVERY  # also those that are absent
                velocity = self.mean(velocity, opened, updates, facts)
            state.velocity[who] = velocity
        return super().combine(state, opened, updates, facts)


@dataclass(frozen=True, kw_only=True)
class MomentumSGD(LocalSGD):
    """SGD with momentum at all agents, with periodic averages of the models.

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
