"""DELTA: Wang, Xu, Liu and others, "DELTA: Diverse Client Sampling for Fasting Federated Learning"
(NeurIPS 2023), arXiv 2205.13925.

In every round all agents send their gradient g_k. Agents whose gradient is far from the mean g are
drawn more often, in L draws with replacement and weights c_k / (L p_k):

    p_k  proportional to  beta c_k |g_k - g| + (1 - beta) sqrt(c_k)

The public program draws without replacement and weighs by 1 / (K p_k) all the same, which is
biased: `as_coded=True`. The paper's p_k, which also has the variance of every agent's gradients, is
unconfirmed and not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from isfed.base.portable_arithmetic import weighted_sum
from isfed.base.random_streams import Purpose
from isfed.federation.messages import Cohort, Facts, Updates
from isfed.methods.change_norms import lengths_of
from isfed.methods.estimators import TINY, HorvitzThompson, Mean
from isfed.methods.federated import Drawn, Federated, Opened
from isfed.methods.method_protocol import Composed, Count, ZeroToOne
from isfed.methods.power_of_choice import first_to_ring
from isfed.methods.shared_fields import Sampled, answering
from isfed.methods.uniform_samplers import Unscored, draw_with_replacement


@dataclass(frozen=True)
class ByDiversity(Unscored):
    """Draws by how far the gradient of an agent is from the mean gradient.

    Args:
        num_active: L, the number of draws per round.
        balance: beta; 0 draws by the root of the weights alone.
        repeats: whether draws are with replacement; if not, they are successive.
    """

    num_active: Count
    balance: ZeroToOne = 0.5
    repeats: bool = True
    capped: ClassVar[bool] = False

    @property
    def gives(self) -> set[str]:
        # No cohort of fixed size: nobody is drawn if nobody answers.
        return {"inclusion probabilities"} if self.repeats else set()

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        """The cohort; those who do not answer the question are not drawn."""
        who = np.arange(facts.num_agents)
        who = who[answering(agents, who, round_index)]
        rows = agents.gradients(who, params)[:, : facts.num_trained]
        heard = ~np.isnan(rows).any(axis=1)
        who, prob = who[heard], np.zeros(facts.num_agents)
        if not who.size:
            none = np.empty(0)
            return Cohort(who, self.num_active, none, none, has_model=True), state
        prob[who] = self.chances(facts.share(who), rows[heard])
        num = self.num_active
        if self.repeats:
            drawn, times = draw_with_replacement(agents, prob, num, round_index)
        else:
            points = agents.stream(Purpose.AGENTS, round_index).uniforms(facts.num_agents)
            drawn = np.sort(who[first_to_ring(points[who], np.maximum(prob[who], TINY), num)])
            times = np.ones(drawn.size)
        return Cohort(drawn, num, times.astype(np.float64), prob[drawn], has_model=True), state

    def chances(self, share: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        """(n,) p_k from the gradients; by the weights alone where all gradients are equal."""
        mean = weighted_sum(share / share.sum(), gradients)
        far, root = share * lengths_of(gradients - mean), np.sqrt(share)
        mass = self.balance * far + (1.0 - self.balance) * root
        return mass / mass.sum() if mass.sum() > 0.0 else root / root.sum()


@dataclass(frozen=True)
class OverProbability(Mean):
    """The weighted mean of the changes over K p_k each, as the public program of DELTA has it."""

    def mean(self, rows: np.ndarray, opened: Opened, updates: Updates, facts: Facts) -> np.ndarray:
        prob = np.maximum(opened.cohort.prob[updates.place], TINY)
        return super().mean(rows / (facts.num_agents * prob)[:, None], opened, updates, facts)


@dataclass(frozen=True, kw_only=True)
class DELTA(Composed, Sampled):
    """DELTA: hears agents whose gradients differ from the mean gradient more often.

    Args:
        balance: beta, the part of the distance from the mean in the probabilities.
        as_coded: draw without replacement with the same weights, as the public program does.
        divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    balance: ZeroToOne = 0.5
    as_coded: bool = False
    divide_by_steps: bool = False

    def parts(self) -> Federated:
        sampler = ByDiversity(self.num_active, self.balance, not self.as_coded)
        estimator: Any = OverProbability() if self.as_coded else HorvitzThompson()
        return self.made_of(estimator, sampler=sampler)
