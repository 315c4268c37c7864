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

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from isfed.base.argument_checks import check_active
from isfed.base.random_streams import Purpose, Stream
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts
from isfed.methods.federated import Drawn, Sampler
from isfed.methods.method_protocol import CheckedPolicy, Count, check_record
from isfed.sampling.designs import Deville
from isfed.sampling.policies import Policy, Table, Uniform

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of uniform probability, which a new pass chooses from


class PassState(NamedTuple):
    """The scores of the agents, and the pass that is under way."""

    nodes: np.ndarray  # the table of the agents' scores
    cohorts: np.ndarray  # (T, L) who has which place
    left: np.ndarray  # (1,) cohorts that are still to come
    prob: np.ndarray  # (K,) p_k of this pass
    missed: np.ndarray  # (K,) places of agents that did not answer, which are given again


@dataclass(frozen=True)
class Passes(Sampler):
    """Agents heard in passes: all of them once, or as often as their scores ask.

    Args:
        num_active: L, the number of agents per round.
        policy: how scores become probabilities; `Uniform()` hears everybody equally often. Unequal
            probabilities are shrunk to equal ones where rounding to whole places would cost more
            than they gain.
    """

    num_active: Count
    policy: CheckedPolicy = field(default_factory=Uniform)
    gives: ClassVar[set[str]] = {"inclusion probabilities"}
    capped: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_record(self)

    @property
    def reports(self) -> Policy:
        return self.policy

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> PassState:
        count = facts.num_agents
        check_active(self.num_active, count)
        rounds = -(-count // self.num_active)
        return PassState(
            Table(count, self.policy, Deville()).nodes,
            np.zeros((rounds, self.num_active), np.int64),
            np.zeros(1, np.int64),
            facts.share(np.arange(count)),
            np.zeros(count),
        )

    def probabilities(self, state: PassState, num_agents: int) -> np.ndarray:
        return state.prob

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        """The next cohort of the pass; an agent with two places works once and counts twice."""
        if not state.left[0]:
            self._plan(state, facts, agents.stream(Purpose.AGENTS, round_index))
        cohort = state.cohorts[len(state.cohorts) - state.left[0]]
        state.left[0] -= 1
        times = np.bincount(cohort, minlength=facts.num_agents) + state.missed
        state.missed[:] = 0.0
        drawn = np.flatnonzero(times)
        return Cohort(drawn, self.num_active, times[drawn], state.prob[drawn]), state

    def _plan(self, state: PassState, facts: Facts, stream: Stream) -> None:
        """Give out the places of a new pass; writes into the state."""
        count, places = facts.num_agents, state.cohorts.size
        points = stream.uniforms(count + 1 + places)
        state.prob[:] = self._pass_probabilities(state, facts, places)
        order = np.argsort(points[:count], kind="stable")
        copies = rounded(state.prob[order] * places, float(points[count]))
        strata = np.repeat(order, copies).reshape(self.num_active, -1)
        shuffle = np.argsort(points[count + 1 :].reshape(strata.shape), axis=1, kind="stable")
        state.cohorts[:] = np.take_along_axis(strata, shuffle, axis=1).T
        state.left[0] = len(state.cohorts)

    def _pass_probabilities(self, state: PassState, facts: Facts, places: int) -> np.ndarray:
        """The policy's probabilities, mixed with as much of c_k as makes the least variance."""
        equal = facts.share(np.arange(facts.num_agents))
        if self.policy.equal:
            return equal
        table = Table.over(state.nodes, facts.num_agents, self.policy, Deville())
        scores = np.where(table.scores < 0.0, table.mean_seen(), table.scores)
        tried = [(1.0 - s) * table.probabilities() + s * equal for s in SHARES]
        costs = [pass_variance(scores, prob * places) for prob in tried]
        return tried[int(np.argmin(costs))]

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> Any:
        who = cohort.agents[updates.place]
        if self.policy.learns:
            table = Table.over(state.nodes, facts.num_agents, self.policy, Deville())
            table.refresh(who, facts.weighed(evidence.score, who))
        absent = np.ones(cohort.agents.size, bool)
        absent[updates.place] = False
        state.missed[cohort.agents[absent]] = 1.0  # one at most, or an agent away would pile up
        return state


def rounded(expected: np.ndarray, offset: float) -> np.ndarray:
    """(K,) whole numbers with these means and the same sum, by systematic rounding.

    Each is the whole number below or above its mean. `offset` is uniform in [0, 1).

    >>> rounded(np.array([0.5, 1.5, 1.0]), 0.25).tolist()
    [0, 2, 1]
    """
    ends = np.concatenate([[0.0], np.cumsum(expected)])
    ends *= round(ends[-1]) / ends[-1]  # the sum is whole but for rounding
    ends[-1] = round(ends[-1])
    return np.diff(np.floor(ends + offset)).astype(np.int64)


def pass_variance(scores: np.ndarray, expected: np.ndarray) -> float:
    """What varies in the sum of a pass, up to a factor: noise of turns, and rounding of places.

    Agent k with n places and gradients of length s contributes s^2 / n by the noise of its turns,
    and (s / n)^2 f (1 - f) because its places are a whole number, f the fraction of n.
    """
    fraction = expected - np.floor(expected)
    return float(np.sum(scores**2 * (1.0 / expected + fraction * (1.0 - fraction) / expected**2)))
