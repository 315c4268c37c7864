"""Passes: no agent is heard again before the others were, as often as its probability asks.

Sampling without replacement across rounds, not only within one. A pass is T = ceil(K / L) rounds
with T L places. Agent k gets n_k of them, the whole number below or above T L p_k, so that
E n_k = T L p_k. The places are cut into L strata of T, and every cohort takes one of each, in a
random order. A change is weighted by c_k / (L p_k) for each of its places.

Every round is unbiased for fixed changes, over the plan of its pass. Given the earlier cohorts of
the pass it is not: whoever was heard early is not heard late. The sum over a pass has no sampling
noise at all where all p_k are 1/K and L divides K.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from isfed.base.argument_checks import check_share
from isfed.base.random_streams import Purpose
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts
from isfed.methods.by_score import ByScore, ScoreState, check_costs
from isfed.methods.federated import Drawn
from isfed.methods.method_protocol import CheckedDesign, CheckedPolicy
from isfed.sampling.designs import Deville
from isfed.sampling.policies import Refresh, Table, Uniform

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of uniform probability, which a new pass chooses from
AGAIN, LAST = 1, 2  # an agent that did not answer is asked again in the next round, and only then


class PassState(NamedTuple):
    """The scores of the agents, and the pass that is under way."""

    scores: ScoreState
    cohorts: np.ndarray  # (T, L) who has which place, each row in increasing order
    left: np.ndarray  # (1,) cohorts that are still to come
    prob: np.ndarray  # (K,) p_k of this pass
    missed: np.ndarray  # (K,) who did not answer: 0, AGAIN or LAST


@dataclass(frozen=True)
class Passes(ByScore):
    """Agents heard in passes: all of them once, or as often as their scores ask.

    Args:
        num_active: L, the number of agents per round.
        policy: how scores become probabilities; `Uniform()` hears everybody equally often. Unequal
            probabilities are shrunk to equal ones where rounding to whole places would cost more
            than they gain.
        costs: what a turn of each agent costs; agents are then heard by score / sqrt(cost).
        most_inclusion: the largest share of the rounds of a pass in which an agent is heard.
    """

    policy: CheckedPolicy = field(default_factory=Uniform)
    design: CheckedDesign = field(default_factory=Deville, init=False, repr=False)
    costs: Annotated[Sequence[float], check_costs] = field(default=(), kw_only=True)
    most_inclusion: Annotated[float, check_share] = field(default=1.0, kw_only=True)
    capped: ClassVar[bool] = False  # type: ignore[assignment]

    @property
    def gives(self) -> set[str]:
        return super().gives - {"cohorts of fixed size"}  # those absent are asked again

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> PassState:
        scores = super().init(facts, agents, params)
        return first_pass(scores, facts.share(), self.num_active)

    def table(self, state: Any, num_agents: int) -> Any:
        return super().table(getattr(state, "scores", state), num_agents)

    def probabilities(self, state: Any, num_agents: int) -> np.ndarray:
        return state.prob

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        """The next cohort of the pass; an agent with two places works once and counts twice."""
        lowered = 0
        if not state.left[0]:
            if self.policy.refresh == Refresh.ALL:
                table = self.table(state, facts.num_agents)
                table.replace(facts.weighed(agents.scores_at(params)))
            _, lowered = self._within_cap(state, facts)
            stream = agents.stream(Purpose.AGENTS, round_index)
            self.plan([state], facts, stream.uniforms(plan_size(state))[None])
        again = state.missed == AGAIN
        times = np.bincount(next_cohort(state), minlength=facts.num_agents) + again
        state.missed[:] = np.where(again, LAST, 0)
        drawn = np.flatnonzero(times)
        counts = times[drawn].astype(np.float64)
        own = counts, state.prob[drawn], self.policy.floor
        return Cohort(drawn, self.num_active, *own, lowered=lowered), state

    def plan(self, states: Sequence[PassState], facts: Facts, points: np.ndarray) -> None:
        """Give out the places of a new pass in every state; writes into the states.

        Args:
            states: of runs that begin a pass together.
            facts: about their agents.
            points: (states, `plan_size`) uniform on [0, 1).
        """
        count, places = facts.num_agents, states[0].cohorts.size
        row = np.arange(len(states))[:, None]
        prob = self._pass_probabilities(states, facts, places)
        order = np.argsort(points[:, :count], axis=1, kind="stable")
        copies = np.empty(order.shape, np.int64)
        copies[row, order] = rounded(prob[row, order] * places, points[:, count])
        order = np.array([self._order(*pair) for pair in zip(states, order, strict=True)])
        shape = len(states), self.num_active, -1
        strata = np.repeat(order.ravel(), copies[row, order].ravel()).reshape(shape)
        shuffle = np.argsort(points[:, count + 1 :].reshape(shape), axis=2, kind="stable")
        dealt = strata[row[:, None], np.arange(self.num_active)[:, None], shuffle]
        cohorts = np.sort(dealt.swapaxes(1, 2), axis=2)
        for state, own, cohort in zip(states, prob, cohorts, strict=True):
            state.prob[:], state.cohorts[:] = own, cohort
            state.left[0] = len(cohort)

    def _order(self, state: Any, order: np.ndarray) -> np.ndarray:
        """(K,) along which order the places are cut into strata, given a random one."""
        return order

    def _wanted(self, table: Table, facts: Facts) -> tuple[np.ndarray, np.ndarray]:
        """(K,) the scores with their weights, and the probabilities that they ask for."""
        scores = np.where(table.scores < 0.0, table.mean_seen(), table.scores)
        return scores, table.inclusion(self.num_active) / self.num_active

    def _within_cap(self, state: PassState, facts: Facts) -> tuple[Table, int]:
        """A table with the scores lowered to the cap, and how many were above it."""
        table = self.table(state, facts.num_agents)
        if self.most_inclusion >= 1.0:
            return table, 0
        return self._limited(
            self.table(state.scores._replace(nodes=table.nodes.copy()), facts.num_agents)
        )

    def _pass_probabilities(
        self, states: Sequence[PassState], facts: Facts, places: int
    ) -> np.ndarray:
        """The policy's probabilities, mixed with as much of c_k as makes the least variance."""
        equal = facts.share()
        if self.policy.equal:
            return np.tile(equal, (len(states), 1))
        pairs = [self._wanted(self._within_cap(state, facts)[0], facts) for state in states]
        scores, wanted = (np.stack(column)[:, None] for column in zip(*pairs, strict=True))
        shares = np.array(SHARES)[:, None]
        tried = (1.0 - shares) * wanted + shares * equal
        lost = pass_variance(scores, tried * places)
        if self.costs:
            lost = lost * (tried * np.asarray(self.costs)).sum(axis=-1)
        return tried[np.arange(len(states)), lost.argmin(axis=1)]

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> Any:
        super().learn(state.scores, cohort, updates, evidence, facts, round_index)
        absent = np.ones(cohort.agents.size, bool)
        absent[updates.place] = False
        if updates.excluded is not None:
            absent[updates.excluded] = False
        who = cohort.agents[absent]
        first = who[state.missed[who] == 0]
        state.missed[:] = 0
        state.missed[first] = AGAIN  # once: who is away for good would be asked in every round
        return state


def first_pass(scores: ScoreState, prob: np.ndarray, num_active: int) -> PassState:
    """The state before the first pass."""
    rounds = -(-prob.size // num_active)
    cohorts, missed = np.zeros((rounds, num_active), np.int64), np.zeros(prob.size, np.int64)
    return PassState(scores, cohorts, np.zeros(1, np.int64), prob, missed)


def plan_size(state: PassState) -> int:
    """How many random numbers a new pass takes."""
    return state.prob.size + 1 + state.cohorts.size


def next_cohort(state: PassState) -> np.ndarray:
    """(L,) the places of the next round of a pass; writes into the state."""
    cohort = state.cohorts[len(state.cohorts) - state.left[0]]
    state.left[0] -= 1
    return cohort


def rounded(expected: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Whole numbers with these means and the same sum in every row, by systematic rounding.

    Each is the whole number below or above its mean. `offset` is uniform in [0, 1), one per row.

    >>> rounded(np.array([[0.5, 1.5, 1.0]]), np.array([0.25])).tolist()
    [[0, 2, 1]]
    """
    ends = np.zeros((len(expected), expected.shape[1] + 1))
    np.cumsum(expected, axis=1, out=ends[:, 1:])
    total = np.round(ends[:, -1:])
    ends *= total / ends[:, -1:]  # the sum is whole but for rounding
    ends[:, -1:] = total
    return np.diff(np.floor(ends + offset[:, None]), axis=1).astype(np.int64)


def pass_variance(scores: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """What varies in the sum of a pass, up to a factor: noise of turns, and rounding of places.

    Agent k with n places and gradients of length s contributes s^2 / n by the noise of its turns,
    and (s / n)^2 f (1 - f) because its places are a whole number, f the fraction of n.
    """
    fraction = expected - np.floor(expected)
    each = scores**2 * (1.0 / expected + fraction * (1.0 - fraction) / expected**2)
    return each.sum(axis=-1)
