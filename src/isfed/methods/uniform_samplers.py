"""Samplers without scores: all agents, uniform cohorts, and draws by the agents' weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from isfed.base.argument_checks import check_active
from isfed.base.jit import compiled
from isfed.base.random_streams import Purpose, fill_uniform
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts
from isfed.methods.federated import Drawn, Sampler
from isfed.methods.method_protocol import check_record
from isfed.sampling.policies import Policy, Uniform
from isfed.sampling.table_draws import HARTLEY_RAO, draw_from_table

UNIFORM, NO_NODES = Uniform(), np.empty(0)
GIVES = {"inclusion probabilities", "public probabilities", "cohorts of fixed size"}


def draw_uniformly(
    agents: Agents, num: int, round_index: int, *, purpose: Purpose = Purpose.AGENTS
) -> np.ndarray:
    """`num` of all agents, without replacement: the draw that `FedAvg` makes."""
    state = agents.stream(purpose, round_index).state
    return draw_from_table(NO_NODES, agents.num_agents, 0.0, num, HARTLEY_RAO, True, state)[0]


def draw_with_replacement(
    agents: Agents, prob: np.ndarray, num: int, round_index: int
) -> tuple[np.ndarray, np.ndarray]:
    """`num` independent draws by probabilities, as the agents drawn and how often each was."""
    points = np.empty(num)  # filled by compiled code at once: there is a draw in every round
    fill_uniform(agents.stream(Purpose.AGENTS, round_index).state, points, num)
    return count_draws(prob, points)


@compiled
def count_draws(mass, points):
    """The units in which points of [0, 1) fall, in order, and how often each was hit."""
    total, last = 0.0, 0
    for unit in range(mass.size):
        total += mass[unit]
        last = unit if mass[unit] > 0.0 else last
    places = np.sort(points) * total
    units, times = np.empty(points.size, np.int64), np.zeros(points.size, np.int64)
    count, unit, end = 0, 0, mass[0]
    for place in places:
        # A point beyond the last end, by rounding, belongs to the last unit that can be drawn.
        while unit < last and place >= end:
            unit += 1
            end += mass[unit]
        if count == 0 or units[count - 1] != unit:
            units[count] = unit
            count += 1
        times[count - 1] += 1
    return units[:count], times[:count]


class Unscored(Sampler):
    """What samplers share that learn nothing: agents report no score, and no state is kept."""

    num_active: Any
    reports: ClassVar[Policy] = UNIFORM
    capped: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_record(self)

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> Any:
        check_active(self.num_active, facts.num_agents)
        return ()

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> Any:
        """Nothing is learned."""
        return state


@dataclass(frozen=True)
class UniformCohort(Unscored):
    """L of K agents, each with the same chance, without replacement.

    Args:
        num_active: L, the number of agents per round.
    """

    num_active: int
    gives: ClassVar[set[str]] = GIVES

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        drawn = draw_uniformly(agents, self.num_active, round_index)
        ones, prob = uniform_columns(drawn.size, facts.num_agents)
        return Cohort(drawn, self.num_active, ones, prob), state


@lru_cache(maxsize=8)
def uniform_columns(count: int, num_agents: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each was drawn, once, and p_k = 1/K; nobody writes to them."""
    return np.ones(count), np.full(count, 1.0 / num_agents)


@dataclass(frozen=True)
class AllAgents(Unscored):
    """All agents in every round: full participation."""

    gives: ClassVar[set[str]] = GIVES

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> tuple[()]:
        return ()

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        return _everybody(facts.num_agents), state


@lru_cache(maxsize=8)
def _everybody(num_agents: int) -> Cohort:
    """The cohort of all agents; nobody writes to it."""
    return Cohort(np.arange(num_agents), num_agents, *uniform_columns(num_agents, num_agents))


@dataclass(frozen=True)
class ByWeight(Unscored):
    """L draws with replacement by c_k; an agent drawn twice works once and counts twice.

    The draw counts the weights, so the estimator must not: see `PlainMean`.

    Args:
        num_active: L, the number of draws per round.
    """

    num_active: int
    capped: ClassVar[bool] = False
    gives: ClassVar[set[str]] = GIVES

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        prob = facts.share()
        drawn, times = draw_with_replacement(agents, prob, self.num_active, round_index)
        return Cohort(drawn, self.num_active, times.astype(np.float64), prob[drawn]), state
