"""K-Vib: Zeng, Xu, Pan, Sun, Xu and others, "Enhanced Federated Optimization: Adaptive Unbiased
Client Sampling with Reduced Variance" (2023), arXiv 2310.02698.

The cloud adds up what it heard, omega_k += (c_k |change_k|)^2 / pi_k, zero at first. With
theta = min(1, (K / (T L))^(1/3)) and gamma = reg K / (theta L):

    pi = (1 - theta) inclusion(sqrt(omega + gamma), L) + theta L / K

Every agent is drawn independently with pi_k; weights are c_k / pi_k. The public program leaves the
root out and gives probabilities above 1 by an error; `root=False` leaves the root out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from isfed.base.portable_arithmetic import power
from isfed.base.random_streams import Purpose
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts
from isfed.methods.change_norms import ON_CHANGE, capped_inclusion, weighed_changes
from isfed.methods.estimators import HorvitzThompson
from isfed.methods.federated import Drawn, Federated
from isfed.methods.method_protocol import Composed, Count, Positive
from isfed.methods.shared_fields import Sampled
from isfed.methods.uniform_samplers import Unscored


class SumsState(NamedTuple):
    """What was heard of every agent."""

    heard: np.ndarray  # (K,) omega_k


@dataclass(frozen=True)
class CumulativeNorms(Unscored):
    """Independent draws by the root of all squared lengths heard so far.

    The fields are those of `KVib`.
    """

    num_active: Count
    horizon: Count
    regulariser: Positive = 0.1
    root: bool = True
    needs: ClassVar[dict[str, str]] = ON_CHANGE
    gives: ClassVar[set[str]] = {"inclusion probabilities"}

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> SumsState:
        super().init(facts, agents, params)
        return SumsState(np.zeros(facts.num_agents))

    def inclusion(self, state: SumsState, num_agents: int) -> np.ndarray:
        """(K,) pi of the next round."""
        num = self.num_active
        theta = min(1.0, float(power(num_agents / (self.horizon * num), 1.0 / 3.0)))
        score = state.heard + self.regulariser * num_agents / (theta * num)
        learned = capped_inclusion(np.sqrt(score) if self.root else score, num)
        return (1.0 - theta) * learned + theta * num / num_agents

    def probabilities(self, state: SumsState, num_agents: int) -> np.ndarray:
        return self.inclusion(state, num_agents) / self.num_active

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        chances = self.inclusion(state, facts.num_agents)
        points = agents.stream(Purpose.AGENTS, round_index).uniforms(facts.num_agents)
        drawn = np.flatnonzero(points < chances)
        num = self.num_active
        return Cohort(drawn, num, np.ones(drawn.size), chances[drawn] / num), state

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> Any:
        who, chances = cohort.agents[updates.place], cohort.prob[updates.place] * cohort.num
        state.heard[who] += weighed_changes(evidence, facts, who) ** 2 / chances
        return state


@dataclass(frozen=True, kw_only=True)
class KVib(Composed, Sampled):
    """K-Vib: draws agents independently by all that was heard of them so far.

    Args:
        num_active: how many agents are drawn in a round, on average.
        horizon: T, the number of rounds of the run, which the paper's constants need.
        regulariser: stands for the square of a bound on c_k |change_k|.
        root: whether probabilities follow the root of the sums, as in the paper.
        divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    horizon: Count = 1000
    regulariser: Positive = 0.1
    root: bool = True
    divide_by_steps: bool = False

    def parts(self) -> Federated:
        sampler = CumulativeNorms(self.num_active, self.horizon, self.regulariser, self.root)
        return self.made_of(HorvitzThompson(), sampler=sampler)
