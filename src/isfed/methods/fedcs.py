"""FedCS: Nishio and Yonetani, "Client Selection for Federated Learning with Heterogeneous
Resources in Mobile Edge" (ICC 2019), arXiv 1804.08333.

The cloud asks a random share of the agents how fast they are and takes, greedily, those that add
the least time, as long as the round ends before its deadline. The model is sent to all at once, at
the pace of the slowest; agents train side by side and send their models one after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from isfed.base.jit import compiled
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts
from isfed.federation.virtual_clock import Times
from isfed.methods.estimators import Mean
from isfed.methods.federated import Drawn, Federated
from isfed.methods.local_steps import LocalSteps
from isfed.methods.method_protocol import Composed, check_number
from isfed.methods.shared_fields import Sampled
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
    reads_problem: ClassVar[str] = (
        "it selects by the times of turns, which only a simulated clock knows beforehand"
    )

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> tuple[()]:
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
        agents.charge_messages(scalars_up=3 * asked.size)  # rate, upload, download
        chosen, seconds = self.schedule(facts, agents, asked)
        active = asked[chosen]
        if agents.clock.jitter > 0.0 and active.size:
            seconds = _length(*self.times(facts, agents, active, round_index))
        return asked, Cohort(active, self.num_active, np.ones(active.size)), seconds

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        _, cohort, seconds = self.select(facts, agents, round_index)
        agents.elapse(seconds)
        return cohort, state


def _check_deadline(value: Any, *, name: str) -> None:
    if not (isinstance(value, float) and value == math.inf):  # nor an array
        check_number(value, name=name, above=True)


Deadline = Annotated[float, _check_deadline]  # positive, or infinity


@dataclass(frozen=True, kw_only=True)
class FedCS(Composed, Sampled):
    """FedCS: asks `num_active` agents, and selects as many as can finish before a deadline.

    Args:
        num_active: how many agents are asked in a round.
        deadline: virtual seconds per round; if it is infinite, all agents asked are selected.
    """

    deadline: Deadline = math.inf

    def parts(self) -> Federated:
        local = self.local(timed=False)
        sampler = InTime(self.num_active, self.deadline, local)
        return self.made_of(Mean(), sampler=sampler, local=local)
