"""Power-of-Choice: Cho, Wang and Joshi, "Towards Understanding Biased Client Selection in Federated
Learning" (AISTATS 2022), arXiv 2010.01243.

pow-d: d candidates are drawn without replacement, by their number of examples; each tells its loss
at the model, and the L with the largest work. The plain mean of their models is taken, for sizes
have counted in the draw: the objective is tilted towards the agents that are worst off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from isfed.algorithms.algorithm import ModelState
from isfed.algorithms.parts import Sampled, check_choice, sum_of_rows
from isfed.base.arithmetic import log1p
from isfed.base.checks import check_whole
from isfed.base.streams import Purpose
from isfed.federation.agents import Agents

By = Literal["size", "uniform"]


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(Sampled):
    """Power-of-Choice: selects, among d candidates, the L agents with the largest losses.

    candidates: d, from L (plain sampling) to K (the L agents that are worst off); 2 L unless given.
    candidates_by: candidates are drawn by "size", as in the paper, or "uniform".
    client_weights: "size" weighs the mean only if the draw of candidates does not count sizes yet.
    """

    candidates: int | None = None
    candidates_by: By = "size"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.candidates_by, By, name="candidates_by")
        if self.candidates is not None:
            check_whole(self.candidates, name="candidates", least=self.num_active)

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        """The model alone."""
        if self.candidates is not None and self.candidates > agents.num_agents:
            raise ValueError(f"candidates={self.candidates} exceeds num_agents={agents.num_agents}")
        return super().start(agents, params)

    def select_by_loss(self, agents: Agents, params: np.ndarray, round_index: int) -> np.ndarray:
        """(L,) the candidates with the largest losses; ties go to the lower number."""
        count = 2 * self.num_active if self.candidates is None else self.candidates
        points = agents.stream(Purpose.AGENTS, round_index).uniforms(agents.num_agents)
        weights = agents.sizes if self.candidates_by == "size" else np.ones(agents.num_agents)
        # Exponential times of these rates: the first d to ring are d successive draws.
        times = -log1p(-points) / weights
        drawn = np.sort(np.argsort(times, kind="stable")[: min(count, agents.num_agents)])
        if drawn.size == self.num_active:
            return drawn  # nobody's loss matters
        losses = agents.losses(drawn, params)
        return np.sort(drawn[np.argsort(-losses, kind="stable")[: self.num_active]])

    def round(self, state: Any, agents: Agents, round_index: int) -> ModelState:
        """Ask candidates for their losses, let the worst off work, average."""
        active = self.select_by_loss(agents, state.params, round_index)
        if agents.clock.drop > 0.0:
            active = active[agents.answers(active, round_index)]
        if not active.size:
            return ModelState(state.params)
        asked = (self.candidates or 2 * self.num_active) > self.num_active  # they have the model
        uploads = self.work(agents, active, state.params, round_index, sent=asked)
        return ModelState(state.params + self.mean(agents, active, uploads.changes))

    def mean(self, agents: Agents, active: np.ndarray, changes: np.ndarray) -> np.ndarray:
        """(M,) the mean change: plain as in the paper, unless by size over uniform candidates."""
        if self.candidates_by == "size" and active.size:
            return sum_of_rows(changes) / active.size
        return super().mean(agents, active, changes)
