"""Stratified passes: passes whose cohorts are spread over agents with unlike changes.

As in `Passes`, agent k gets n_k of the T L places of a pass, E n_k = T L p_k, and a change counts
c_k / (L p_k) for each place. Here the places are put in an order in which neighbours had like
changes, the leaves of Ward's tree over short sketches of the last changes, before they are cut into
L strata of T; each cohort has one place of each stratum. By default p_k grows with the length of
the agent's last change: whoever still has much to teach is heard more often.

The law: over the plan of its pass the mean weight of agent k is c_k in every round, whatever the
order and the p_k, since each of its places is in each cohort with probability 1/T. Given the
earlier cohorts of the pass it is not c_k. Agents report nothing beside their changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import ClassVar, NamedTuple

import numpy as np

from isfed.base.portable_arithmetic import row_norms, weighted_sum
from isfed.federation.agents import Agents
from isfed.federation.messages import Facts
from isfed.methods.by_score import ScoreState
from isfed.methods.federated import Evidence
from isfed.methods.method_protocol import CheckedPolicy, CountOrZero
from isfed.methods.passes_over_agents import Passes
from isfed.sampling.designs.spread import order_alike
from isfed.sampling.policies import Memory, Policy, Table, Uniform


class StratifiedState(NamedTuple):
    """As `PassState`, and a sketch of every agent's last change."""

    scores: ScoreState
    cohorts: np.ndarray
    left: np.ndarray
    prob: np.ndarray
    missed: np.ndarray
    sketches: np.ndarray  # (K, sketch), zero for an agent never heard


@dataclass(frozen=True)
class StratifiedPasses(Passes):
    """Passes with one agent of each stratum per cohort; strata are agents with like changes.

    Args:
        num_active: L, the number of agents per round.
        policy: how the lengths of the last changes become p_k, `Memory(floor=0.3)` unless given;
            its floor is a share of c_k. With `Uniform()` p_k is c_k.
        sketch: numbers kept of every agent's last change; with 0, where the cloud must not see
            single changes, the strata are random.

    Examples:
        >>> from isfed import Federated, HorvitzThompson, LocalSteps
        >>> method = Federated(StratifiedPasses(10), LocalSteps(0.1), HorvitzThompson())
        >>> method.num_active
        10
    """

    policy: CheckedPolicy = field(default_factory=partial(Memory, floor=0.3))
    sketch: CountOrZero = 32
    needs: ClassVar[dict[str, str]] = {
        "weights on the change": "the lengths of the changes count; use HorvitzThompson()"
    }

    @property
    def reports(self) -> Policy:
        return Uniform()  # nothing: the cloud measures the changes

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> StratifiedState:
        state = super().init(facts, agents, params)
        return StratifiedState(*state, np.zeros((facts.num_agents, self.sketch)))

    def _order(self, state: StratifiedState, order: np.ndarray) -> np.ndarray:
        points = state.sketches[order]
        lengths = row_norms(points)
        known = lengths > 0.0
        if 2 * np.count_nonzero(known) < order.size or not np.isfinite(lengths).all():
            return order  # too few are known, or the model diverges
        points[known] /= lengths[known, None]
        return order[order_alike(points)]

    def _scores(self, evidence: Evidence, who: np.ndarray, facts: Facts) -> np.ndarray:
        return row_norms(evidence.change)

    def _wanted(self, table: Table, facts: Facts) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.where(table.scores < 0.0, table.mean_seen(), table.scores)
        scores, share = facts.weighed(lengths), facts.share(np.arange(facts.num_agents))
        total, floor = float(scores.sum()), self.policy.floor
        wanted = scores / total if total > 0.0 else share
        return scores, (1.0 - floor) * wanted + floor * share

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> StratifiedState:
        who = cohort.agents[updates.place]
        if self.sketch and who.size:
            rows = sketches(evidence.change, self.sketch)
            if who.size > 1:  # the direction, less what the whole cohort shares
                rows -= weighted_sum(np.full(who.size, 1.0 / who.size), rows)
            state.sketches[who] = rows
        return super().learn(state, cohort, updates, evidence, facts, round_index)


@lru_cache(maxsize=2)
def _places(size: int, count: int) -> np.ndarray:
    """(size,) to which of `count` sums every entry is added, or, from `count` on, subtracted."""
    return np.random.default_rng((size, count)).integers(2 * count, size=size)


def sketches(rows: np.ndarray, count: int) -> np.ndarray:
    """(m, count) the entries of every row added up with random signs: lengths stay in the mean."""
    places = _places(rows.shape[1], count)
    sums = np.array([np.bincount(places, row, 2 * count) for row in rows])
    return sums[:, :count] - sums[:, count:]
