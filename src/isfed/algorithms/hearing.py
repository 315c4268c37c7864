"""Whom the cloud hears: agents that do not answer, sketches for a spread, costs of the agents.

All of it is off unless asked for, and then is a few arrays beside the model and the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from isfed.base.arguments import matches, shown
from isfed.base.arithmetic import product
from isfed.base.checks import is_number
from isfed.base.streams import Stream
from isfed.federation.absences import WINDOW, Responses
from isfed.federation.agents import Agents
from isfed.federation.cloud import Cloud, Selection
from isfed.sampling.designs.spread import Spread, best_share, order_alike, projection
from isfed.sampling.policies import Policy, ScorePolicy, Table

if TYPE_CHECKING:
    from isfed.algorithms.isfedavg import ISFedAvg


EVERYBODY_HERE = np.ones(1)  # for all of a selection


class Hearing(NamedTuple):
    """What the cloud keeps for it; empty where it is not asked for."""

    responses: np.ndarray  # (K, 2 + WINDOW) turns, answers, and when the last answers were given
    sketches: np.ndarray  # (K, d) of what every agent was last heard to say
    sketched: np.ndarray  # (K,) in which round that was; -1 for never
    order: np.ndarray  # (K,) the agents, those that look alike beside each other
    share: np.ndarray  # (1,) of uniform probability, found at the last renewal of the order


def part_of(state: Any) -> Hearing:
    """These fields of a state that has them among others."""
    return Hearing(*(getattr(state, name) for name in Hearing._fields))


def no_hearing() -> Hearing:
    """Nothing is kept."""
    none, ints = np.empty(0), np.empty(0, np.int64)
    return Hearing(np.empty((0, 2 + WINDOW), np.int64), np.empty((0, 0)), ints, ints, none)


def start(algorithm: ISFedAvg, agents: Agents) -> Hearing:
    """Before the first round."""
    kept, count = no_hearing(), agents.num_agents
    if algorithm.absences == "adjusted":
        kept = kept._replace(responses=np.zeros((count, 2 + WINDOW), np.int64))
    spread = algorithm.agent_design
    if isinstance(spread, Spread):
        kept = kept._replace(
            sketches=np.zeros((count, spread.sketch)),
            sketched=np.full(count, -1),
            order=np.arange(count),
            share=np.array([algorithm.agents.floor]),
        )
    return kept


def policy_of(algorithm: ISFedAvg, kept: Hearing) -> Policy:
    """The policy of the next round: under a spread with the share of uniform probability found."""
    policy = algorithm.agents
    if kept.share.size and isinstance(policy, ScorePolicy) and not policy.equal:
        return replace(policy, floor=float(kept.share[0]))
    return policy


def check_costs(costs: Any) -> tuple[float, ...]:
    """Positive numbers, or an error that says which is not and what to do."""
    if not matches(costs, Sequence[Any]):
        raise ValueError(f"costs={shown(costs)} must be positive numbers, one for each agent")
    for agent, cost in enumerate(costs):
        if is_number(cost) and cost > 0.0:
            continue
        reason = ""
        if is_number(cost):
            reason = ": a turn that costs nothing would be drawn always; give it a small cost"
        elif isinstance(cost, float) and cost == np.inf:
            reason = ": an agent that is never drawn would bias the mean; give it a large cost"
        raise ValueError(f"costs[{agent}]={shown(cost)} must be a positive number{reason}")
    return tuple(costs)


class PricedTable(Table):
    """Scores of agents with costs, which count where probabilities are made of the scores.

    Of all draws of the same expected cost those by score / sqrt(cost) vary least. An agent never
    seen counts as the mean of the others whatever it costs: if costly agents were heard late, all
    that is learned from them would come with a large weight.
    """

    costs: np.ndarray  # (K,)

    def priced(self) -> Table:
        """The table from which agents are drawn."""
        seen, scores = self.scores >= 0.0, self.scores / np.sqrt(self.costs)
        table = Table.over(np.empty_like(self.nodes), self.count, self.policy, self.design)
        table.replace(np.where(seen, scores, scores[seen].mean() if seen.any() else 1.0))
        return table

    def draw(self, num: int, stream: Stream) -> tuple[np.ndarray, np.ndarray]:
        """As that of a table without costs."""
        return self.priced().draw(num, stream)

    def probabilities(self) -> np.ndarray:
        """(K,) p_k before any cap."""
        return self.priced().probabilities()

    def inclusion(self, num: int) -> np.ndarray:
        """(K,) the inclusion probabilities."""
        return self.priced().inclusion(num)


def weigh(algorithm: ISFedAvg, kept: Hearing, table: Table) -> Table:
    """The table of the agents' scores with the policy and the costs of the next round."""
    policy = policy_of(algorithm, kept)
    if not algorithm.costs:
        return Table.over(table.nodes, table.count, policy, table.design)
    priced = PricedTable.over(table.nodes, table.count, policy, table.design)
    priced.costs = np.asarray(algorithm.costs, np.float64)
    return priced


def prepare(algorithm: ISFedAvg, kept: Hearing, cloud: Cloud) -> None:
    """Let the cloud draw by what is known: costs, the order of a spread and its uniform share."""
    cloud.table = weigh(algorithm, kept, cloud.table)
    spread = algorithm.agent_design
    if not (isinstance(spread, Spread) and kept.order.size):
        return
    points = _points(algorithm, kept, cloud)
    cloud.table.design = spread.over(points, kept.order)


def _points(algorithm: ISFedAvg, kept: Hearing, cloud: Cloud) -> np.ndarray:
    """The sketches as a draw weighs them: over p_k, in units of 1/K."""
    return kept.sketches / (len(kept.sketches) * cloud.table.probabilities()[:, None])


def heard(
    kept: Hearing, agents: Agents, selection: Selection, round_index: int
) -> tuple[Selection, np.ndarray]:
    """Those of a selection that answer, and what the absences of an agent make it weigh, (n,).

    The mean stays over L, so that an absence counts as no change. Dividing by those that answered
    would bias the mean: whoever is heard then counts for others.
    """
    active = selection.active
    here = agents.answers(active, round_index) if agents.clock.drop > 0.0 else None
    if here is None and not kept.responses.size:
        return selection, EVERYBODY_HERE
    weight = np.ones(active.size)
    if kept.responses.size:
        responses = Responses.over(kept.responses)
        weight = responses.adjustments(active)
        responses.record(active, np.ones(active.size, bool) if here is None else here)
    if here is None or here.all():
        return selection, weight
    return Selection(*(column[here] for column in selection)), weight[here]


def remember(
    algorithm: ISFedAvg,
    kept: Hearing,
    cloud: Cloud,
    heard: tuple[np.ndarray, np.ndarray],
    round_index: int,
) -> None:
    """Sketch what was heard, (agents, vectors); now and then renew the order and the share."""
    spread = algorithm.agent_design
    if not (isinstance(spread, Spread) and kept.order.size):
        return
    active, vectors = heard
    kept.sketches[active] = product(vectors, projection(vectors.shape[1], spread.sketch))
    kept.sketched[active] = round_index
    if (round_index + 1) % spread.every:
        return
    fresh = kept.sketched > round_index - spread.every
    table = cloud.table.priced() if isinstance(cloud.table, PricedTable) else cloud.table
    scores = np.where(table.scores < 0.0, table.mean_seen(), table.scores)
    if not algorithm.agents.equal and np.isfinite(kept.sketches).all():
        kept.share[0] = best_share(
            spread, kept.order, scores, kept.sketches, num=algorithm.num_active,
            floor=algorithm.agents.floor, fresh=fresh, costs=getattr(cloud.table, "costs", None),
        )  # fmt: skip
    points = _points(algorithm, kept, cloud)
    if np.isfinite(points).all():  # not while a model diverges
        kept.order[:] = order_alike(points)
