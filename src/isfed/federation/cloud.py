"""The cloud: selects the agents of a round, averages what they send, refreshes their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from isfed.base.streams import NO_AGENT, Stream
from isfed.federation.agent import Upload
from isfed.sampling.designs import Design
from isfed.sampling.policies import Policy, Table


class Selection(NamedTuple):
    """The agents of a round, each once, with p_k and how often it was drawn."""

    active: np.ndarray
    agent_prob: np.ndarray
    times: np.ndarray


class Cloud:
    """Owns the model and the agents' scores; knows nothing of where the agents run."""

    def __init__(
        self, params: np.ndarray, num_agents: int, num_active: int, policy: Policy, design: Design
    ) -> None:
        if not 1 <= num_active <= num_agents:  # compiled code would draw beyond the table
            raise ValueError(
                f"num_active={num_active} must be between 1 and num_agents={num_agents}"
            )
        self.params = params.copy()
        self.num_active = num_active
        self.key = np.uint64(0)
        self.table = Table(num_agents, policy, design)

    def select(self, round_index: int) -> Selection:
        """Draw L of K agents, eq. (4); one drawn twice (with replacement) works once."""
        stream = Stream.at(self.key, round_index=round_index, agent=NO_AGENT)
        drawn, prob = self.table.draw(self.num_active, stream)
        _, first, times = np.unique(drawn, return_index=True, return_counts=True)
        order = np.argsort(first)
        places = first[order]
        return Selection(drawn[places], prob[places], times[order])

    def aggregate(self, selection: Selection, uploads: Sequence[Upload]) -> None:
        """w_i = 1/L sum of the returned models, eq. (9), as a mean of their changes."""
        total = np.zeros_like(self.params)
        for times, upload in zip(selection.times, uploads, strict=True):
            total += times * upload.change
        # Divided by L, never by the sum of the weights: that would bias the mean.
        self.params = self.params + total / self.num_active

    def refresh(self, selection: Selection, scores: np.ndarray) -> None:
        """Tell the table what the agents of the round scored."""
        self.table.refresh(selection.active, scores)
