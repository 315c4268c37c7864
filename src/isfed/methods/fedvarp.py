"""FedVARP: Jhunjhunwala, Sharma, Nagarkar and Joshi, "FedVARP: Tackling the Variance Due to
Partial Client Participation in Federated Learning" (UAI 2022), arXiv 2207.14130.

The cloud keeps y_k, the last change of every agent, zero at first:

    w <- w + mean over all k of y_k + mean over S of (d_k - y_k),  then y_k <- d_k for k in S

If nobody of S answers, the model still moves by the mean of the y_k.

`ISFedAvg(correction="difference")` has it as its uniform case; this file is the method as
published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isfed.base.portable_arithmetic import weighted_sum
from isfed.federation.messages import Facts, Updates
from isfed.methods.estimators import Mean, trained_changes
from isfed.methods.federated import Combined, Evidence, Federated, Opened
from isfed.methods.method_protocol import Composed
from isfed.methods.shared_fields import Sampled


class ChangeMemory(NamedTuple):
    """What every agent changed last."""

    changes: np.ndarray  # (K, M') y_k


@dataclass(frozen=True)
class RememberedMean(Mean):
    """The mean of the last changes of all agents, corrected by those that answered."""

    def init(self, facts: Facts, params: np.ndarray) -> ChangeMemory:
        return ChangeMemory(np.zeros((facts.num_agents, params.size)))

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        last, change = state.changes, trained_changes(updates, facts)
        step = weighted_sum(facts.share(), last)
        who = opened.cohort.agents[updates.place]
        if who.size:
            # Each of S stands for K / |S| agents: the mean over S where all weigh the same.
            share = facts.share(who) * (facts.num_agents / who.size)
            step = step + weighted_sum(share, change - last[who])
            last[who] = change
        return step, state, Evidence(updates.score, change)


@dataclass(frozen=True, kw_only=True)
class FedVARP(Composed, Sampled):
    """FedVARP: for agents that were not selected, the cloud uses their last change.

    Args:
        divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    divide_by_steps: bool = False

    def parts(self) -> Federated:
        return self.made_of(RememberedMean())
