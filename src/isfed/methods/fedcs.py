"""FedCS: Nishio and Yonetani, "Client Selection for Federated Learning with Heterogeneous
Resources in Mobile Edge" (ICC 2019), arXiv 1804.08333.

The cloud asks a random share of the agents how fast they are and takes, greedily, those that add
the least time, as long as the round ends before its deadline. The model is sent to all at once, at
the pace of the slowest; agents train side by side and send their models one after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isfed.base.jit import compiled
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts
from isfed.federation.virtual_clock import Times
from isfed.methods.estimators import Mean
from isfed.methods.federated import Composed, Federated
from isfed.methods.local_steps import LocalSteps
from isfed.methods.shared_fields import Sampled, check_number
from isfed.methods.uniform_samplers import Unscored, draw_uniformly


class Schedule(NamedTuple):
    """Which of the candidates work, and when the round ends."""

    chosen: np.ndarray  # places in the list of candidates, in the order of their uploads
    seconds: float


def greedy_schedule(times: Times, *, deadline: float) -> Schedule:
    """The paper's Algorithm 3: always the candidate that lengthens the round least."""
    parts = [np.asarray(part, np.float64) for part in times]
    chosen = np.empty(parts[0].size, np.int64)  # to return it from compiled code would be slow
    count, seconds = _greedy(*parts, float(deadline), chosen)
    return Schedule(chosen[:count], seconds)


@compiled
def _greedy(download, compute, upload, deadline, chosen):
    waiting, count = np.ones(download.size, np.bool_), 0
    sent, elapsed = 0.0, 0.0  # the multicast, and the uploads after it
    for _ in range(download.size):
        best, least = -1, np.inf
        for unit in range(download.size):
            later = max(0.0, compute[unit] - elapsed)
            longer = max(download[unit], sent) - sent + upload[unit] + later
            if waiting[unit] and longer < least:
                best, least = unit, longer
        waiting[best] = False
        end = elapsed + upload[best] + max(0.0, compute[best] - elapsed)
        if max(sent, download[best]) + end < deadline:
            chosen[count] = best
            count += 1
            sent, elapsed = max(sent, download[best]), end
    return count, sent + elapsed


@compiled
def _length(download, compute, upload):
    """The end of a round: a multicast, training side by side, uploads one after the other."""
    sent, end = 0.0, 0.0
    for unit in range(download.size):
        sent = max(sent, download[unit])
        end = max(end, compute[unit]) + upload[unit]
    return sent + end


@dataclass(frozen=True)
class InTime(Unscored):
    """Of those asked, as many as finish before a deadline.

    Args:
        num_active: how many agents are asked in a round.
        deadline: virtual seconds per round; if it is infinite, all agents asked are selected.
        local: how agents step, which says how long a turn takes.
    """

    num_active: int
    deadline: float
    local: LocalSteps

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> tuple[()]:
        """An error if nobody can ever meet the deadline."""
        super().init(facts, agents, params)
        fastest = self.times(facts, agents, np.arange(facts.num_agents)).total.min()
        if fastest >= self.deadline:
            raise ValueError(
                f"deadline={self.deadline:g} s: no agent meets it, the fastest takes "
                f"{fastest:.3g} s; give a longer one or a faster clock"
            )
        return ()

    def times(
        self, facts: Facts, agents: Agents, which: np.ndarray, round_index: int | None = None
    ) -> Times:
        """How long turns of these agents take: in a round, or as expected for None."""
        return agents.times(which, self.local.examples_of(which, facts), round_index)

    def schedule(self, facts: Facts, agents: Agents, asked: np.ndarray) -> Schedule:
        """Who of those asked works."""
        times = self.times(facts, agents, asked)
        if self.deadline < math.inf:
            return greedy_schedule(times, deadline=self.deadline)
        order = np.argsort(times.compute, kind="stable")
        return Schedule(order, _length(*(part[order] for part in times)))

    def select(
        self, facts: Facts, agents: Agents, round_index: int
    ) -> tuple[np.ndarray, Cohort, float]:
        """Who was asked, who of them works, and how long the round really lasts."""
        asked = draw_uniformly(agents, self.num_active, round_index)
        agents.cross(scalars_up=3 * asked.size)  # rate, upload, download
        chosen, seconds = self.schedule(facts, agents, asked)
        active = asked[chosen]
        if agents.clock.jitter > 0.0 and active.size:
            seconds = _length(*self.times(facts, agents, active, round_index))
        return asked, Cohort(active, self.num_active, np.ones(active.size)), seconds

    def draw(
        self, state: Any, facts: Facts, agents: Agents, params: np.ndarray, round_index: int
    ) -> tuple[Cohort, Any]:
        """Ask and schedule; the round lasts as long as its schedule."""
        _, cohort, seconds = self.select(facts, agents, round_index)
        agents.elapse(seconds)
        return cohort, state


def check_deadline(deadline: Any) -> None:
    """A positive number, or infinity."""
    if deadline != math.inf:
        check_number(deadline, name="deadline", above=True)


@dataclass(frozen=True, kw_only=True)
class FedCS(Composed, Sampled):
    """FedCS: asks `num_active` agents, and selects as many as can finish before a deadline.

    num_active: how many agents are asked in a round.
    deadline: virtual seconds per round; if it is infinite, all agents asked are selected.
    """

    deadline: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        check_deadline(self.deadline)

    def parts(self) -> Federated:
        """Ask, schedule, work, average."""
        local = self.local(timed=False)
        return self.made_of(InTime(self.num_active, self.deadline, local), local, Mean())
