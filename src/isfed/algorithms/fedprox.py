"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in
Heterogeneous Networks" (MLSys 2020), arXiv 1812.06127.

Every agent works on P_k(x) + prox/2 |x - w|^2 and so stays near the model w that it was sent. Some
of the selected agents are slow: FedProx keeps what they have done, FedAvg drops them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from isfed.algorithms.algorithm import ModelState
from isfed.algorithms.parts import (
    Sampled,
    agent_weights,
    answering,
    check_choice,
    check_number,
    draw_with_replacement,
)
from isfed.base.arithmetic import weighted_sum
from isfed.base.checks import is_number
from isfed.base.streams import Purpose
from isfed.federation.agents import Agents

Sampling = Literal["uniform", "weighted"]


@dataclass(frozen=True, kw_only=True)
class FedProx(Sampled):
    """FedProx: local steps are pulled towards the model sent; slow agents may do fewer of them.

    prox: weight of the pull towards the model that was sent (mu in the paper).
    stragglers: share of the selected agents that are slow in a round.
    keep_stragglers: a slow agent does 1 to E_k - 1 of its steps and is averaged; False drops it,
        as the paper's FedAvg does.
    sampling: "uniform" draws without replacement and averages by `client_weights` (the public
        code); "weighted" draws with replacement by them and takes the plain mean (the paper).
    """

    prox: float = 1.0
    stragglers: float = 0.0
    keep_stragglers: bool = True
    sampling: Sampling = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.prox, name="prox")
        check_choice(self.sampling, Sampling, name="sampling")
        if not (is_number(self.stragglers) and 0.0 <= self.stragglers <= 1.0):
            raise ValueError(f"stragglers={self.stragglers!r} must be a share between 0 and 1")

    def round(self, state: Any, agents: Agents, round_index: int) -> ModelState:
        """Draw, step towards the local minimiser but not far from w, average."""
        times = None
        if self.sampling == "weighted":
            prob = agent_weights(agents, self.client_weights)
            active, times = draw_with_replacement(agents, prob, self.num_active, round_index)
            here = answering(agents, active, round_index)
            active, times = active[here], times[here]
        else:
            active = self.select(agents, round_index)
        steps = self.steps_of(agents, active)
        if self.stragglers > 0.0:
            slow, fewer = self._slow(agents, active, steps, round_index)
            steps = np.where(slow, fewer, steps)
            if not self.keep_stragglers:
                active, steps = active[~slow], steps[~slow]
                times = None if times is None else times[~slow]
        uploads = self.work(
            agents, active, state.params, round_index, steps=steps, prox=float(self.prox)
        )
        if times is None:
            return ModelState(state.params + self.mean(agents, active, uploads.changes))
        total = max(1.0, float(times.sum()))
        return ModelState(state.params + weighted_sum(times, uploads.changes) / total)

    def _slow(
        self, agents: Agents, active: np.ndarray, steps: np.ndarray, round_index: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Who is slow in this round, and how many steps each would then do."""
        points = agents.stream(Purpose.STRAGGLERS, round_index).uniforms(2 * active.size)
        order = np.argsort(points[: active.size], kind="stable")
        slow = np.zeros(active.size, bool)
        slow[order[round((1.0 - self.stragglers) * active.size) :]] = True
        # 1 to E_k - 1; one step where there is but one
        fewer = 1 + np.floor(points[active.size :] * np.maximum(steps - 1, 1)).astype(np.int64)
        return slow, fewer
