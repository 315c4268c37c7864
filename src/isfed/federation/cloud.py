"""A cloud as one object, kept for one version; the round of all methods is in `Federated`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from isfed.base.argument_types import shown
from isfed.base.jit import compiled
from isfed.base.random_streams import NO_AGENT, Stream
from isfed.base.value_checks import as_numbers, check_active, check_vector, check_whole
from isfed.federation.agent import Upload
from isfed.sampling.designs import Design, WithReplacement
from isfed.sampling.policies import Policy, Table


class Selection(NamedTuple):
    """The agents that were drawn for a round, each listed once.

    active: (n,) their numbers.
    agent_prob: (n,) their p_k, the inclusion probability divided by L.
    times: (n,) how often each was drawn; 1 without replacement.
    """

    active: np.ndarray
    agent_prob: np.ndarray
    times: np.ndarray


class Cloud:
    """The cloud: the model and the agents' scores; it does not know where the agents run.

    params: (M,) the first model.
    num_agents: K.
    num_active: L, the number of agents per round.
    policy: how scores become probabilities.
    design: how agents are drawn with these probabilities.
    """

    def __init__(
        self, params: np.ndarray, num_agents: int, num_active: int, policy: Policy, design: Design
    ) -> None:
        check_active(num_active, check_whole(num_agents, name="num_agents", least=1))
        if not isinstance(policy, Policy):
            raise TypeError(f"policy={shown(policy)} must be a policy, e.g. Memory()")
        if not isinstance(design, Design) or isinstance(design, type):
            raise TypeError(f"design={shown(design)} must be a design, e.g. Deville()")
        model = as_numbers(params, name="params")
        self.params = check_vector(model, name="params", size=model.size)
        self.num_active = num_active
        self.key = np.uint64(0)
        self.table = Table(num_agents, policy, design)

    def select(self, round_index: int) -> Selection:
        """Draw L of K agents, eq. (4); one drawn twice (with replacement) works once."""
        stream = Stream.at(self.key, round_index=round_index, agent=NO_AGENT)
        drawn, prob = self.table.draw(self.num_active, stream)
        design = self.table.design
        if hasattr(design, "code") and not isinstance(design, WithReplacement):
            times = np.empty(drawn.size)
            times.fill(1.0)  # twice as fast as np.ones
            return Selection(drawn, prob, times)
        _, first, times = np.unique(drawn, return_index=True, return_counts=True)
        order = np.argsort(first, kind="stable")
        places = first[order]
        return Selection(drawn[places], prob[places], times[order].astype(np.float64))

    def aggregate(self, selection: Selection, changes: np.ndarray | Sequence[Upload]) -> None:
        """w_i = 1/L sum of the returned models, eq. (9), as a mean of their changes, (n, M)."""
        if not isinstance(changes, np.ndarray):
            changes = np.array([upload.change for upload in changes])
        times = np.asarray(selection.times, np.float64)
        rows = changes.reshape(-1, self.params.size)
        # The new model is made here: to return an array from compiled code is slow.
        params = np.empty(self.params.size)
        _average(self.params, times, rows, self.num_active, params)
        self.params = params

    def refresh(self, selection: Selection, scores: np.ndarray) -> None:
        """Tell the table what the agents of the round scored."""
        self.table.refresh(selection.active, scores)


def mean_buffers(before: np.ndarray, changes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(m,) buffers, such as running means and variances: a mean of those that the agents sent.

    before: (m,) those that the agents were sent.
    changes: (n, m) what the agents made of them.
    weights: (n,) what every agent counts, in any unit.
    """
    if not weights.sum() > 0.0:
        return before  # nobody answered
    # Normalised, unlike a step: weights 1/(K p_k) of another sum can make a variance negative.
    share = weights / weights.sum()
    return before + sum(part * row for part, row in zip(share, changes, strict=True))


@compiled
def _average(params, times, changes, num_active, out):
    """The model plus the changes over L, each as often as it was drawn."""
    for j in range(params.size):
        out[j] = 0.0
    for i in range(times.size):
        for j in range(params.size):
            out[j] += times[i] * changes[i, j]
    for j in range(params.size):
        # Divided by L, never by the sum of the weights: that would bias the mean.
        out[j] = params[j] + out[j] / num_active
