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
from isfed.algorithms.parts import Sampled, check_number, draw_uniformly
from isfed.base.checks import is_number
from isfed.federation.agents import Agents
from isfed.federation.clock import Times


class Schedule(NamedTuple):
    """Which of the candidates work, and when the round ends."""

    chosen: np.ndarray  # places in the list of candidates, in the order of their uploads
    seconds: float


def greedy_schedule(times: Times, *, deadline: float, most: int | None = None) -> Schedule:
    """The paper's Algorithm 3: always the candidate that lengthens the round least."""
    download, compute, upload = (np.asarray(part, float) for part in times)
    waiting = np.arange(download.size)
    chosen: list[int] = []
    sent, elapsed = 0.0, 0.0  # the multicast, and the uploads after it
    while waiting.size and (most is None or len(chosen) < most):
        later = np.maximum(0.0, compute[waiting] - elapsed)
        longer = np.maximum(download[waiting], sent) - sent + upload[waiting] + later
        place = int(np.argmin(longer))
        unit = int(waiting[place])
        waiting = np.delete(waiting, place)
        end = elapsed + upload[unit] + later[place]
        if max(sent, download[unit]) + end < deadline:
            chosen.append(unit)
            sent, elapsed = max(sent, float(download[unit])), float(end)
    return Schedule(np.array(chosen, np.int64), sent + elapsed)


@dataclass(frozen=True, kw_only=True)
class FedCS(Sampled):
    """FedCS; `num_active` is how many agents are asked.

    deadline: virtual seconds of a round; infinite takes everybody who was asked.
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
                f"deadline={self.deadline:g} s: nobody meets it, the fastest agent takes "
                f"{fastest:.3g} s; give a longer one or a faster clock"
            )
        return state

    def _times(self, agents: Agents, which: np.ndarray) -> Times:
        return agents.times(which, self.examples_of(agents, which), None)

    def schedule(self, agents: Agents, round_index: int) -> tuple[np.ndarray, Schedule]:
        """The agents that were asked, and who of them works."""
        asked = draw_uniformly(agents, self.num_active, round_index)
        agents.cross(scalars_up=3 * asked.size)  # rate, upload, download
        if self.deadline == math.inf:
            return asked, Schedule(np.arange(asked.size), _parallel(self._times(agents, asked)))
        return asked, greedy_schedule(self._times(agents, asked), deadline=self.deadline)

    def round(self, state: Any, agents: Agents, round_index: int) -> ModelState:
        """Ask, schedule, work, average."""
        asked, schedule = self.schedule(agents, round_index)
        active = asked[schedule.chosen]
        agents.elapse(schedule.seconds)
        if not active.size:
            return ModelState(state.params)
        uploads = self.work(agents, active, state.params, round_index, timed=False)
        return ModelState(state.params + self.mean(agents, active, uploads.changes))


def _parallel(times: Times) -> float:
    """The end of a round in which all work, with uploads in the order in which they are done."""
    order = np.argsort(times.compute)
    end = 0.0
    for unit in order:
        end = max(end, float(times.compute[unit])) + float(times.upload[unit])
    return float(times.download.max()) + end


def check_share(value: Any, *, name: str) -> None:
    """A share between 0 and 1."""
    if not (is_number(value) and 0.0 <= value <= 1.0):
        raise ValueError(f"{name}={value!r} must be between 0 and 1")
