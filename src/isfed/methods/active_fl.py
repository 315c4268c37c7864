"""Active Federated Learning: Goetz, Malik, Bui, Moon, Liu and Kumar (2019), arXiv 1909.12641.

Every agent has a value v_k = sqrt(N_k) times its mean loss, told by all at the start and then by
those that work. The share alpha_1 of agents with the lowest values is set aside. Of the others,
(1 - alpha_3) L are drawn successively by exp(alpha_2 v_k). The rest of the cohort is drawn
uniformly from all that are left. The plain mean is taken: agents with large losses count more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from isfed.base.portable_arithmetic import exp
from isfed.base.random_streams import Purpose
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts
from isfed.methods.estimators import Mean
from isfed.methods.federated import Drawn, Federated
from isfed.methods.method_protocol import BelowOne, Composed, Count, NotNegative, ZeroToOne
from isfed.methods.power_of_choice import LOSS, LossState, first_to_ring
from isfed.methods.shared_fields import Sampled
from isfed.methods.uniform_samplers import Unscored


@dataclass(frozen=True)
class ByValue(Unscored):
    """Most of the cohort by exp(sharpness v_k) among the best values, the rest uniformly.

    The fields are those of `ActiveFL`.
    """

    num_active: Count
    drop: BelowOne = 0.75
    sharpness: NotNegative = 0.01
    uniform: ZeroToOne = 0.1
    also: ClassVar[frozenset[str]] = LOSS

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> LossState:
        super().init(facts, agents, params)
        return LossState(np.full(facts.num_agents, np.nan))

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        """In the first round all agents are asked; who gives no answer has the mean value."""
        count, ask = facts.num_agents, bool(np.isnan(state.losses).all())
        if ask:
            state.losses[:] = agents.losses(np.arange(count), params)
        sizes = np.ones(count) if facts.sizes is None else facts.sizes
        values = np.sqrt(sizes) * state.losses
        heard = np.isfinite(values)
        values = np.where(heard, values, values[heard].mean() if heard.any() else 0.0)
        points = agents.stream(Purpose.AGENTS, round_index).uniforms(2 * count)
        best = np.argsort(values, kind="stable")[int(self.drop * count) :]
        num = min(int((1.0 - self.uniform) * self.num_active), best.size)
        # Differences from the largest: the exponentials neither overflow nor all vanish.
        rates = np.maximum(exp(self.sharpness * (values[best] - values.max())), 1e-300)
        chosen = best[first_to_ring(points[best], rates, num)]
        others = np.setdiff1d(np.arange(count), chosen)
        others = others[np.argsort(points[count + others], kind="stable")]
        drawn = np.sort(np.concatenate([chosen, others[: self.num_active - num]]))
        return Cohort(drawn, self.num_active, np.ones(drawn.size), has_model=ask), state

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> Any:
        state.losses[cohort.agents[updates.place]] = updates.loss
        return state


@dataclass(frozen=True, kw_only=True)
class ActiveFL(Composed, Sampled):
    """Active FL: draws most agents by their losses among those with the largest, some uniformly.

    Args:
        drop: alpha_1, the share of agents with the lowest values that only the uniform part can
            draw.
        sharpness: alpha_2, how strongly the draw prefers large values.
        uniform: alpha_3, the share of the cohort that is drawn uniformly.
    """

    drop: BelowOne = 0.75
    sharpness: NotNegative = 0.01
    uniform: ZeroToOne = 0.1

    def parts(self) -> Federated:
        sampler = ByValue(self.num_active, self.drop, self.sharpness, self.uniform)
        return self.made_of(Mean(), sampler=sampler)
