"""Samplers that learn probabilities as a bandit does: OSMD, MABS and VRB.

OSMD: Zhao, Wang, Kolar and others, "Adaptive Client Sampling in Federated Learning via Online
Learning with Bandit Feedback" (2021), arXiv 2112.14332. MABS: Salehi, Celis and Thiran,
"Stochastic Optimization with Bandit Sampling" (2017), arXiv 1708.02544. VRB: Borsos, Krause and
Levy, "Online Variance Reduction for Stochastic Optimization" (COLT 2018), arXiv 1802.04715.

L draws with replacement by p, which stays at or above alpha / K; weights are c_k / (L p_k). What is
heard of an agent drawn m_k times is a_k = (c_k |g_k|)^2. Constants need its size at the first
model, for which all agents tell |g_k| once.

The public program of OSMD, which has all three, differs (`as_coded=True`). OSMD and MABS hear the
gradient summed over a batch, B_k g_k, where the constants have its mean, and the step of OSMD
counts an agent once however often it was drawn. VRB hears losses, without c_k, in place of
c_k |g_k|: there on a mini-batch, here on all data of an agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from isfed.base.argument_checks import check_share
from isfed.base.portable_arithmetic import exp, log, power
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts, Updates
from isfed.methods.change_norms import LARGEST, ON_CHANGE, lengths_of, weighed_gradients
from isfed.methods.estimators import HorvitzThompson
from isfed.methods.federated import Drawn, Evidence, Federated
from isfed.methods.method_protocol import Composed, Count, NotNegative
from isfed.methods.power_of_choice import LOSS
from isfed.methods.shared_fields import Sampled, answering
from isfed.methods.uniform_samplers import Unscored, draw_with_replacement

Share = Annotated[float, check_share]


class BanditState(NamedTuple):
    """What a bandit has learned."""

    prob: np.ndarray  # (K,) p_k of the next draw
    learned: np.ndarray  # (X, K): p_k of every expert, the logarithms of weights, or sums
    experts: np.ndarray  # (X,) the weights of the experts
    first: np.ndarray  # (2,) the mean and the maximum of a_k at the first model; -1 before that


@dataclass(frozen=True)
class Bandit(Unscored):
    """What the three have in common; the fields are those of their methods."""

    num_active: Count
    horizon: Count
    alpha: Share = 0.4
    as_coded: bool = False
    capped: ClassVar[bool] = False
    asks: ClassVar[Any] = True  # whether the constants need gradients of all at the first model
    needs: ClassVar[Any] = {**ON_CHANGE, "step sizes": "gradients count; use HorvitzThompson()"}
    gives: ClassVar[set[str]] = {"inclusion probabilities", "cohorts of fixed size"}

    def begin(self, num_agents: int) -> np.ndarray:
        """(X, K) what is learned, before the first round."""
        return np.zeros((1, num_agents))

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> BanditState:
        super().init(facts, agents, params)
        count, learned = facts.num_agents, self.begin(facts.num_agents)
        place = np.arange(1.0, len(learned) + 1.0)
        experts = 1.0 / (place * (place + 1.0))
        first = np.full(2, -1.0 if self.asks else 1.0)
        return BanditState(np.full(count, 1.0 / count), learned, experts / experts.sum(), first)

    def probabilities(self, state: BanditState, num_agents: int) -> np.ndarray:
        return state.prob

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        """L draws; before the first, all agents tell what the constants need."""
        ask = bool(state.first[0] < 0.0)
        if ask:
            who = np.arange(facts.num_agents)
            who = who[answering(agents, who, round_index)]
            squares = self.squares_of(who, facts, agents, params)
            if squares.size:
                state.first[:] = squares.mean(), squares.max()
        num = self.num_active
        drawn, times = draw_with_replacement(agents, state.prob, num, round_index)
        cohort = Cohort(drawn, num, times.astype(np.float64), state.prob[drawn], has_model=ask)
        return cohort, state

    def squares_of(
        self, who: np.ndarray, facts: Facts, agents: Agents, params: np.ndarray
    ) -> np.ndarray:
        """The a_k at the first model of the agents whose answer came."""
        rows = agents.gradients(who, params, kept=True)[:, : facts.num_trained]
        agents.charge_messages(scalars_up=who.size)
        heard = ~np.isnan(rows).any(axis=1)  # over a network an answer may be lost
        return (facts.share(who) * lengths_of(rows))[heard] ** 2

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> Any:
        if state.first[1] > 0.0:  # else no agent has a gradient, and all are alike
            who, times = cohort.agents[updates.place], cohort.times[updates.place]
            self.move(state, who, self.heard(who, updates, evidence, facts), times)
        return state

    def heard(
        self, who: np.ndarray, updates: Updates, evidence: Evidence, facts: Facts
    ) -> np.ndarray:
        """(m,) the a_k of those that answered."""
        squares = weighed_gradients(evidence, facts, self) ** 2
        if not self.as_coded:
            return squares
        if facts.batch_size is None:
            raise ValueError(
                f"as_coded=True makes {type(self).__name__} learn from sums over batches, whose "
                "size is not known here; leave it out"
            )
        return squares * facts.batch_size[who].astype(np.float64) ** 2

    def move(
        self, state: BanditState, who: np.ndarray, heard: np.ndarray, times: np.ndarray
    ) -> None:
        """Learn the a_k of agents drawn m_k times; writes into the state."""
        raise NotImplementedError

    def mixed(self, weights: np.ndarray) -> np.ndarray:
        """(K,) the weights normalised, with a uniform share of alpha."""
        return (1.0 - self.alpha) * weights / weights.sum() + self.alpha / weights.size


@dataclass(frozen=True)
class MirrorDescent(Bandit):
    """OSMD: steps of mirror descent on the variance, by experts with different learning rates.

    Args:
        rate: eta of a single expert; unless given, experts are weighed by what they would cost.
    """

    rate: NotNegative | None = None

    @property
    def asks(self) -> bool:
        return self.rate is None

    def begin(self, num_agents: int) -> np.ndarray:
        experts = 1
        if self.rate is None and num_agents > 1:
            one, rest = log(num_agents), 4.0 * (self.horizon - 1) * log(num_agents / self.alpha)
            experts = int(np.ceil(0.5 * log((one + rest) / one) / log(2.0))) + 1
        return np.full((experts, num_agents), 1.0 / num_agents)

    def rates(self, state: BanditState) -> np.ndarray:
        """(X,) the learning rate of every expert."""
        count, num = state.prob.size, self.num_active
        if self.rate is not None:
            return np.array([self.rate])
        least = num**2 * power(self.alpha / count, 3) / state.first[1]
        speed = np.sqrt(log(count) / (2 * self.horizon))
        return 2.0 ** np.arange(len(state.learned)) * least * speed

    def move(
        self, state: BanditState, who: np.ndarray, heard: np.ndarray, times: np.ndarray
    ) -> None:
        each, squared = state.learned, self.num_active**2
        pull = heard * times / (squared * state.prob[who])
        cost = (pull / each[:, who]).sum(axis=1)
        if self.as_coded:  # there an agent counts once in the gradient
            pull = pull / times
        for expert, rate in zip(each, self.rates(state), strict=True):
            exponent = log(expert)
            exponent[who] += rate * pull / expert[who] ** 2
            expert[:] = floored(exp(exponent - exponent.max()), self.alpha)
        gain = self.alpha / state.prob.size
        gain *= np.sqrt(8.0 * self.num_active / (self.horizon * state.first[1]))
        weights = state.experts * exp(-gain * cost)
        total = weights.sum()
        state.experts[:] = weights / total if total > 0.0 else 1.0 / weights.size
        mean = (state.experts[:, None] * each).sum(axis=0)
        state.prob[:] = mean / mean.sum()


@dataclass(frozen=True)
class ExponentialWeights(Bandit):
    """MABS: weights that grow by exp(delta a_k / p_k^3)."""

    def move(
        self, state: BanditState, who: np.ndarray, heard: np.ndarray, times: np.ndarray
    ) -> None:
        count = state.prob.size
        rate = self.alpha**2 * self.alpha**2 * log(count) / (self.horizon * power(count, 5))
        weights = state.learned[0]
        weights[who] += np.sqrt(rate / state.first[0]) * (heard * times) / power(state.prob[who], 3)
        weights -= weights.max()
        state.prob[:] = self.mixed(exp(weights))


@dataclass(frozen=True)
class RootOfSums(Bandit):
    """VRB: probabilities by the root of sums of a_k / p_k, which begin at G K / alpha."""

    @property
    def also(self) -> frozenset[str]:
        return LOSS if self.as_coded else frozenset()

    @property
    def needs(self) -> dict[str, str]:
        return {} if self.as_coded else Bandit.needs

    def squares_of(
        self, who: np.ndarray, facts: Facts, agents: Agents, params: np.ndarray
    ) -> np.ndarray:
        if not self.as_coded:
            return super().squares_of(who, facts, agents, params)
        losses = agents.losses(who, params)
        return losses[~np.isnan(losses)] ** 2

    def heard(
        self, who: np.ndarray, updates: Updates, evidence: Evidence, facts: Facts
    ) -> np.ndarray:
        if not self.as_coded:
            return super().heard(who, updates, evidence, facts)
        return np.nan_to_num(updates.loss, nan=0.0, posinf=LARGEST) ** 2

    def move(
        self, state: BanditState, who: np.ndarray, heard: np.ndarray, times: np.ndarray
    ) -> None:
        state.learned[0, who] += heard * times / state.prob[who]
        bound = 1.5 * state.first[1] * state.prob.size / self.alpha
        state.prob[:] = self.mixed(np.sqrt(state.learned[0] + bound))


def floored(weights: np.ndarray, alpha: float) -> np.ndarray:
    """(K,) weights scaled to sum 1 and to at least alpha / K, with as few as possible raised to it.

    >>> floored(np.array([6.0, 1.0, 3.0]), 0.6).round(3).tolist()
    [0.533, 0.2, 0.267]
    """
    count, order = weights.size, np.argsort(weights, kind="stable")
    ranked = weights[order]
    left = 1.0 - alpha * np.arange(count) / count  # what the others share if so many are raised
    above = np.cumsum(ranked[::-1])[::-1]
    enough = ranked * left >= alpha / count * above
    raised = int(np.argmax(enough)) if enough.any() else count - 1
    out = np.full(count, alpha / count)
    out[order[raised:]] = ranked[raised:] * (left[raised] / above[raised])
    return out / out.sum()


@dataclass(frozen=True, kw_only=True)
class _BanditMethod(Composed, Sampled):
    """A method whose agents are drawn by a bandit.

    Args:
        num_active: L, the number of draws per round; an agent drawn twice works once.
        horizon: T, the number of rounds of the run, which the constants need.
        alpha: probabilities are at least alpha / K; 1 draws uniformly.
        as_coded: learn as the public program does: by sums over batches, VRB by losses.
        divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    horizon: Count = 1000
    alpha: Share = 0.4
    as_coded: bool = False
    divide_by_steps: bool = False
    sampler: ClassVar[Any]

    def parts(self) -> Federated:
        more = {"rate": self.rate} if isinstance(self, OSMD) else {}
        sampler = self.sampler(self.num_active, self.horizon, self.alpha, self.as_coded, **more)
        return self.made_of(HorvitzThompson(), sampler=sampler)


@dataclass(frozen=True, kw_only=True)
class OSMD(_BanditMethod):
    """OSMD: probabilities learned by mirror descent from what those drawn return.

    Args:
        rate: the learning rate eta; adaptive OSMD, which needs none, unless given.
    """

    rate: NotNegative | None = None
    sampler: ClassVar[Any] = MirrorDescent


@dataclass(frozen=True, kw_only=True)
class MABS(_BanditMethod):
    """MABS: probabilities learned by exponential weights from what those drawn return."""

    sampler: ClassVar[Any] = ExponentialWeights


@dataclass(frozen=True, kw_only=True)
class VRB(_BanditMethod):
    """VRB: probabilities by the root of the sums of what those drawn returned."""

    sampler: ClassVar[Any] = RootOfSums
