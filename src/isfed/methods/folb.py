"""FOLB: Nguyen, Sehwag, Hosseinalipour, Brinton, Chiang and Poor, "Fast-Convergent Federated
Learning" (JSAC 2021), arXiv 2007.13137. Unconfirmed: no public code was found, and the rules are
written from memory of the paper.

Agents work as in FedProx and also send g_k = grad P_k(w). With g the mean of the g_k heard, agent k
counts by I_k = <g_k, g>: w <- w + sum_k I_k change_k / sum_l |I_l|. An agent whose gradient opposes
the mean moves the model the other way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from isfed.base.portable_arithmetic import inner, matvec, row_norms, weighted_sum
from isfed.base.random_streams import Purpose
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts, Updates, Work
from isfed.methods.estimators import Mean, PlainMean
from isfed.methods.federated import Drawn, Federated, Info, Opened, State
from isfed.methods.method_protocol import Composed, NotNegative
from isfed.methods.shared_fields import Sampled, answering
from isfed.methods.uniform_samplers import UniformCohort, count_draws, draw_uniformly

Variant = Literal["one-set", "two-sets", "near-optimal"]
TINY, GRADIENT = 1e-12, frozenset({"gradient"})


def agreement(share: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """(n,) I_k = <g_k, g>, times the share of each agent."""
    return share * matvec(gradients, weighted_sum(share, gradients))


def shares(facts: Facts, agents: np.ndarray) -> np.ndarray:
    """(n,) what each of these agents counts among them before gradients are compared."""
    counts = facts.counted(np.ones(agents.size), agents)
    return counts / max(float(counts.sum()), TINY)


@dataclass(frozen=True)
class TwoSets(UniformCohort):
    """A uniform cohort, and an independent second set whose gradients normalise its weights."""

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        """The cohort, and the I_l of the second set for the estimator."""
        others = draw_uniformly(agents, self.num_active, round_index, purpose=Purpose.DOMAINS)
        others = others[answering(agents, others, round_index)]
        norm = agreement(shares(facts, others), agents.gradients(others, params))
        return super().draw(state, facts, agents, params, round_index)[0], norm

    def learn(self, *_: Any) -> tuple[()]:
        return ()


@dataclass(frozen=True)
class NearOptimal(TwoSets):
    """Draws by |<grad P, g_k>| with replacement, for which all agents send their gradients."""

    gives: ClassVar[set[str]] = set()

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        """The cohort, and for the estimator the I_k of its agents."""
        everybody = np.arange(facts.num_agents)
        everybody = everybody[answering(agents, everybody, round_index)]
        agreed = agreement(shares(facts, everybody), agents.gradients(everybody, params))
        drawn = times = np.empty(0, np.int64)
        if np.abs(agreed).sum() > TINY:
            points = agents.stream(Purpose.AGENTS, round_index).uniforms(self.num_active)
            drawn, times = count_draws(np.abs(agreed), points)
        times = times.astype(np.float64)
        return Cohort(everybody[drawn], self.num_active, times, has_model=True), agreed[drawn]


@dataclass(frozen=True)
class SignedMean(PlainMean):
    """The mean over draws by |I_k|; the changes of agents that oppose the mean are turned."""

    def mean(self, rows: np.ndarray, opened: Opened, updates: Updates, facts: Facts) -> np.ndarray:
        weights = (opened.cohort.times * np.sign(opened.sampler))[updates.place]
        return weighted_sum(weights / opened.cohort.num, rows)


@dataclass(frozen=True)
class ByAgreement(Mean):
    """Changes weighted by how their gradients agree with the mean gradient.

    Args:
        absolute: normalise by sum |I_l| instead of |sum I_l|.
        penalty: psi; agents then report gamma_k as their score.
    """

    absolute: bool
    penalty: float

    def ask(self, state: Any, cohort: Cohort, facts: Facts, work: Work) -> Work:
        return work._replace(also=GRADIENT)

    def mean(self, rows: np.ndarray, opened: Opened, updates: Updates, facts: Facts) -> np.ndarray:
        """sum_k I_k change_k / sum_l |I_l|; the mean where no gradient is left."""
        share = shares(facts, opened.cohort.agents[updates.place])
        influence = agreement(share, updates.gradient)
        if self.penalty > 0.0:
            mean = weighted_sum(share, updates.gradient)
            influence = influence - share * self.penalty * updates.score * inner(mean, mean)
        # Normalised by the I_l of the second set, where there is one.
        norm = influence if isinstance(opened.sampler, tuple) else opened.sampler
        total = np.abs(norm).sum() if self.absolute else abs(norm.sum())
        return weighted_sum(share if total < TINY else influence / total, rows)


@dataclass(frozen=True)
class WithPenalty(Federated):
    """The round in which agents also tell how well they solved their local problem."""

    own_round: ClassVar[bool] = True

    def step(self, state: State, agents: Agents, round_index: int) -> tuple[State, Info]:
        """One round; gamma_k = |gradient of the local problem at x_k| / |g_k| takes another ask."""
        opened = self.open(state, agents, round_index)
        updates = agents.train(opened.cohort, opened.sent, opened.work, round_index)
        who = opened.cohort.agents[updates.place]
        agents.charge_messages(scalars_up=who.size)
        ends = agents.gradients(who, opened.sent + updates.change, sent=True, kept=True)
        facts = self.facts(agents)
        ends = (ends + self.local.prox * updates.change)[:, : facts.num_trained]
        error = row_norms(np.ascontiguousarray(ends))
        error = error / np.maximum(row_norms(updates.gradient), TINY)
        return self.close(state, facts, opened, updates._replace(score=error), round_index)


@dataclass(frozen=True, kw_only=True)
class FOLB(Composed, Sampled):
    """FOLB: changes are weighted by how well their gradients agree with the mean gradient.

    Unconfirmed: there is no public code to compare it with.

    Args:
        prox: weight of the pull towards the model that was sent.
        variant: "one-set" normalises with the agents that work, "two-sets" with an independent
            second set, "near-optimal" draws by |<grad P, g_k>|, from the gradients of all agents.
        penalty: psi; agents that solve their local problem badly count less.
        absolute: normalise by sum |I_l| instead of |sum I_l|.
    """

    prox: NotNegative = 1.0
    variant: Variant = "one-set"
    penalty: NotNegative = 0.0
    absolute: bool = True

    def parts(self) -> Federated:
        if self.variant == "near-optimal":
            return self.made_of(SignedMean(), sampler=NearOptimal(self.num_active))
        sampler = (TwoSets if self.variant == "two-sets" else UniformCohort)(self.num_active)
        made = WithPenalty if self.penalty > 0.0 else Federated
        estimator = ByAgreement(self.absolute, self.penalty)
        return made(sampler, self.local(), estimator, client_weights=self.client_weights)
