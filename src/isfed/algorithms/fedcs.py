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

from isfed.algorithms.algorithm import ModelState
from isfed.algorithms.parts import Sampled, answering, check_number, draw_uniformly
from isfed.base.checks import is_number
from isfed.base.compiled import compiled
from isfed.federation.agents import Agents
from isfed.federation.clock import Times


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


@dataclass(frozen=True, kw_only=True)
class FedCS(Sampled):
    """FedCS: asks `num_active` agents, and selects as many as can finish before a deadline.

    num_active: how many agents are asked in a round.
    deadline: virtual seconds per round; if it is infinite, all agents asked are selected.
    """

    deadline: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.deadline != math.inf:
            check_number(self.deadline, name="deadline", above=True)

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        """An error if nobody can ever meet the deadline."""
        state = super().start(agents, params)
        everybody = np.arange(agents.num_agents)
        fastest = self._times(agents, everybody).total.min()
        if fastest >= self.deadline:
            raise ValueError(
                f"deadline={self.deadline:g} s: no agent meets it, the fastest takes "
                f"{fastest:.3g} s; give a longer one or a faster clock"
            )
        return state

    def _times(self, agents: Agents, which: np.ndarray) -> Times:
        return agents.times(which, self.examples_of(agents, which), None)

    def schedule(self, agents: Agents, round_index: int) -> tuple[np.ndarray, Schedule]:
        """The agents that were asked, and who of them works."""
        asked = draw_uniformly(agents, self.num_active, round_index)
        agents.cross(scalars_up=3 * asked.size)  # rate, upload, download
        if self.deadline < math.inf:
            return asked, greedy_schedule(self._times(agents, asked), deadline=self.deadline)
        times = self._times(agents, asked)
        order = np.argsort(times.compute, kind="stable")
        return asked, Schedule(order, _length(*(part[order] for part in times)))

    def select_in_time(
        self, agents: Agents, round_index: int
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Who was asked, who of them works and answers, and how long the round really lasts."""
        asked, schedule = self.schedule(agents, round_index)
        active, seconds = asked[schedule.chosen], schedule.seconds
        if agents.clock.jitter > 0.0 and active.size:
            examples = self.examples_of(agents, active)
            seconds = _length(*agents.times(active, examples, round_index))
        return asked, active[answering(agents, active, round_index)], seconds

    def round(self, state: Any, agents: Agents, round_index: int) -> ModelState:
        """Ask, schedule, work, average."""
        _, active, seconds = self.select_in_time(agents, round_index)
        agents.elapse(seconds)
        if not active.size:
            return ModelState(state.params)
        uploads = self.work(agents, active, state.params, round_index, timed=False)
        return ModelState(state.params + self.mean(agents, active, uploads.changes))


def check_share(value: Any, *, name: str) -> None:
    """A share between 0 and 1."""
    if not (is_number(value) and 0.0 <= value <= 1.0):
        raise ValueError(f"{name}={value!r} must be between 0 and 1")
