"""Agents drawn by their scores: the paper's sampler, with costs and with spread cohorts.

A table keeps the scores. They are normalised and mixed with a uniform share, the floor; a design
then draws L of K agents with these probabilities, eq. (4). It works the same for agents in this
process and over a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np

from isfed.base.argument_checks import check_active, check_share, is_number, matches, shown
from isfed.base.portable_arithmetic import product
from isfed.base.random_streams import Purpose, Stream
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts
from isfed.federation.safety import check_most_inclusion, limit_inclusion
from isfed.methods.federated import Drawn, Evidence, Sampler
from isfed.methods.local_steps import has_fixed_size
from isfed.methods.method_protocol import CheckedDesign, CheckedPolicy, Count, check_record
from isfed.methods.uniform_samplers import uniform_columns
from isfed.sampling.designs import Deville, LocalPivotal, Poisson, WithReplacement
from isfed.sampling.designs.design_protocol import compiled_code
from isfed.sampling.designs.spread import Spread, best_share, order_alike, projection
from isfed.sampling.policies import Initial, Memory, Policy, Refresh, ScorePolicy, Table
from isfed.sampling.score_table import rebuild

AGENTS, ALL = Purpose.AGENTS, Refresh.ALL  # looked up once: an enumeration takes its time


class ScoreState(NamedTuple):
    """The scores of the agents; all other arrays are empty unless the design is a `Spread`."""

    nodes: np.ndarray  # the table of the agents' scores
    sketches: np.ndarray  # (K, d) projections of the last gradient seen of every agent
    sketched: np.ndarray  # (K,) the round of that gradient; -1 for never
    order: np.ndarray  # (K,) the agents, sorted so that neighbours are alike
    share: np.ndarray  # (1,) the uniform share, chosen when the order was last renewed


def check_costs(costs: Any, *, name: str = "costs") -> None:
    """Raise a ValueError unless all costs are positive; it says which is not and what to do."""
    if not matches(costs, Sequence[Any]):
        raise ValueError(f"{name}={shown(costs)} must be positive numbers, one for each agent")
    for agent, cost in enumerate(costs):
        if is_number(cost) and cost > 0.0:
            continue
        reason = ""
        if is_number(cost):
            reason = ": a turn that costs nothing would be drawn always; give it a small cost"
        elif isinstance(cost, float) and cost == np.inf:
            reason = ": an agent that is never drawn would bias the mean; give it a large cost"
        raise ValueError(f"{name}[{agent}]={shown(cost)} must be a positive number{reason}")


class PricedTable(Table):
    """A table that divides scores by sqrt(cost) when it computes probabilities.

    Among draws of the same expected cost, those by score / sqrt(cost) have the least variance. An
    agent never seen gets the mean of the others whatever it costs: if costly agents were drawn
    late, their first updates would come with a large weight.
    """

    costs: np.ndarray  # (K,)

    def priced(self) -> Table:
        """The table with scores divided by sqrt(cost), from which agents are drawn."""
        seen, scores = self.scores >= 0.0, self.scores / np.sqrt(self.costs)
        table = Table.over(np.empty_like(self.nodes), self.count, self.policy, self.design)
        table.replace(np.where(seen, scores, scores[seen].mean() if seen.any() else 1.0))
        return table

    def draw(self, num: int, stream: Stream) -> tuple[np.ndarray, np.ndarray]:
        return self.priced().draw(num, stream)

    def probabilities(self) -> np.ndarray:
        return self.priced().probabilities()

    def inclusion(self, num: int) -> np.ndarray:
        return self.priced().inclusion(num)


@dataclass(frozen=True)
class ByScore(Sampler):
    """Agents drawn with probabilities proportional to their scores, by default without replacement.

    Args:
        num_active: L, the number of agents per round.
        policy: how scores become probabilities, and when they are renewed.
        design: how agents are drawn with these probabilities.
        costs: what a turn of each agent costs; agents are then drawn by score / sqrt(cost).
        most_inclusion: the largest inclusion probability of any agent; scores that would give more
            are lowered before the draw.
        forget_absent: whether scores of agents that were asked over a network and gave no answer
            fall by half the way to the mean of the others', until their next report.
    """

    num_active: Count
    policy: CheckedPolicy = field(default_factory=Memory)
    design: CheckedDesign = field(default_factory=Deville)
    costs: Annotated[Sequence[float], check_costs] = ()
    most_inclusion: Annotated[float, check_share] = 1.0
    # Not in the text by which a checkpoint knows its job: jobs of the version before go on.
    forget_absent: bool = field(default=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        check_record(self)
        object.__setattr__(self, "costs", tuple(self.costs))
        if isinstance(self.design, LocalPivotal) and self.design.points is None:
            raise ValueError(
                "agent_design=LocalPivotal() needs points, a row for each agent; to use sketches "
                "of what the agents send as points: Spread(LocalPivotal())"
            )

    @property
    def gives(self) -> set[str]:
        words = {"inclusion probabilities"}
        words |= {"cohorts of fixed size"} if has_fixed_size(self.design) else set()
        words |= {"public probabilities"} if self.public else set()
        return words if self.policy.equal else words | {"scores"}

    @property
    def needs(self) -> dict[str, str]:
        words = {}
        if self.costs:
            words["scores"] = (
                "costs divide them, and a uniform policy has none; use agents=Memory()"
            )
        if isinstance(self.design, Spread):
            words["step sizes"] = "a spread divides changes by them; use HorvitzThompson()"
        return words

    @property
    def reports(self) -> Policy:
        return self.policy

    @property
    def public(self) -> bool:
        """Whether probabilities depend on nothing private: here, on no reported scores."""
        return self.policy.equal

    @cached_property
    def _once(self) -> bool:
        """Whether it is known that each agent is drawn at most once."""
        return self.capped and compiled_code(type(self.design)) is not None

    @cached_property
    def capped(self) -> bool:
        """Whether inclusion probabilities are capped at 1."""
        return not isinstance(self.design, WithReplacement)

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> ScoreState:
        count = facts.num_agents
        check_active(self.num_active, count)
        check_most_inclusion(self.most_inclusion, num_agents=count, num_active=self.num_active)
        if self.costs and len(self.costs) != count:
            raise ValueError(
                f"costs has {len(self.costs)} numbers for num_agents={count}; give one "
                "for each agent"
            )
        if isinstance(self.design, LocalPivotal):
            self.design.check(count)
        table = Table(count, self.policy, self.design)
        if self.policy.initial == Initial.OPTIMUM:
            scores = agents.scores_at(agents.optimum, charge=False)  # eq. (48)
            table.replace(facts.weighed(scores))
        if not isinstance(self.design, Spread):
            none, ints = np.empty(0), np.empty(0, np.int64)
            return ScoreState(table.nodes, np.empty((0, 0)), ints, ints, none)
        sketches, share = np.zeros((count, self.design.sketch)), np.array([self.policy.floor])
        return ScoreState(table.nodes, sketches, np.full(count, -1), np.arange(count), share)

    def table(self, state: ScoreState, num_agents: int) -> Table:
        """The table for the next draw: scores with their policy, costs and order."""
        if not (self.costs or state.share.size):
            return Table.over(state.nodes, num_agents, self.policy, self.design)
        policy = self.policy
        if state.share.size and isinstance(policy, ScorePolicy) and not policy.equal:
            policy = replace(policy, floor=float(state.share[0]))
        table = Table.over(state.nodes, num_agents, policy, self.design)
        if self.costs:
            table = PricedTable.over(state.nodes, num_agents, policy, self.design)
            table.costs = np.asarray(self.costs, np.float64)
        if isinstance(self.design, Spread) and state.order.size:
            table.design = self.design.over(_points(state, table), state.order)
        return table

    def probabilities(self, state: ScoreState, num_agents: int) -> np.ndarray:
        return self.table(state, num_agents).probabilities()

    def _limited(self, table: Table) -> tuple[Table, int]:
        """The table with all scores lowered to the cap, and how many were above it."""
        if isinstance(table, PricedTable):
            table = table.priced()  # the cap applies to probabilities, which include the costs
        return table, limit_inclusion(table, self.num_active, self.most_inclusion)

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        """L of K agents, eq. (4); with replacement, an agent drawn twice works once."""
        table = self.table(state, facts.num_agents)
        if self.policy.refresh == ALL:
            table.replace(facts.weighed(agents.scores_at(params)))  # eq. (50)
        lowered = 0
        if self.most_inclusion < 1.0:
            table, lowered = self._limited(table)
        drawn, prob = table.draw(self.num_active, agents.stream(AGENTS, round_index))
        if self._once:
            times, _ = uniform_columns(drawn.size, facts.num_agents)
        else:
            _, first, counts = np.unique(drawn, return_index=True, return_counts=True)
            order = np.argsort(first, kind="stable")
            drawn, prob = drawn[first[order]], prob[first[order]]
            times = counts[order].astype(np.float64)
        chances = None
        if isinstance(self.design, Poisson) and self.public:
            chances = table.inclusion(self.num_active)
        floor = table.policy.floor
        cohort = Cohort(
            drawn, self.num_active, times, prob, floor, chances=chances, lowered=lowered
        )
        return cohort, state

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> ScoreState:
        if not self.policy.learns and not state.order.size:
            return state
        who = cohort.agents[updates.place]
        table = self.table(state, facts.num_agents)
        scored = updates.scored
        table.refresh(who[scored], self._scores(evidence, who, facts)[scored])
        if updates.excluded is not None:  # a score of 0: others are drawn in their place
            table.refresh(cohort.agents[updates.excluded], np.zeros(updates.excluded.size))
        if self.forget_absent and updates.asked is not None:
            forget(table, cohort.agents[updates.silent()])
        if state.order.size:
            self._remember(state, table, who, evidence, round_index)
        return state

    def _scores(self, evidence: Evidence, who: np.ndarray, facts: Facts) -> np.ndarray:
        """(m,) what the table is to remember of the agents that answered."""
        return facts.weighed(evidence.score, who)

    def _remember(
        self, state: ScoreState, table: Table, who: np.ndarray, evidence: Evidence, round_index: int
    ) -> None:
        """Sketch the gradients; every `every` rounds renew the order and the uniform share."""
        spread: Any = self.design
        if evidence.reach is None:
            raise ValueError(
                "a spread needs the step sizes of whole turns, and only the agents know how many "
                "steps they take; use divide_by_steps=True"
            )
        gradients = -evidence.change / evidence.reach[:, None]
        state.sketches[who] = product(gradients, projection(gradients.shape[1], spread.sketch))
        state.sketched[who] = round_index
        if (round_index + 1) % spread.every:
            return
        fresh = state.sketched > round_index - spread.every
        drawn_by = table.priced() if isinstance(table, PricedTable) else table
        scores = np.where(drawn_by.scores < 0.0, drawn_by.mean_seen(), drawn_by.scores)
        if not self.policy.equal and np.isfinite(state.sketches).all():
            state.share[0] = best_share(
                spread, state.order, scores, state.sketches, num=self.num_active,
                floor=self.policy.floor, fresh=fresh, costs=getattr(table, "costs", None),
            )  # fmt: skip
        points = _points(state, table)
        if np.isfinite(points).all():  # they are not while a model diverges
            state.order[:] = order_alike(points)


def forget(table: Table, silent: np.ndarray) -> None:
    """Lower the scores of silent agents by half the way to the mean of the others'."""
    if not silent.size:
        return
    scores = table.scores
    others = scores >= 0.0
    others[silent] = False
    if others.any():
        halfway = 0.5 * (scores[silent] + scores[others].mean())
        scores[silent] = np.minimum(scores[silent], halfway)  # the mark of an unseen one, -1, stays
        rebuild(table.nodes, 0, table.count)


def _points(state: ScoreState, table: Table) -> np.ndarray:
    """The sketches with the weights of the estimator, divided by K p_k."""
    return state.sketches / (len(state.sketches) * table.probabilities()[:, None])
