"""FedAU: Wang and Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in
Federated Averaging" (ICLR 2024), arXiv 2306.03401.

Participation is given and its probabilities are unknown. The cloud counts the rounds from one
participation of an agent to the next and weighs its change by c_k times the mean of these gaps,
which estimates c_k over its probability; by c_k before the first gap is complete. A gap longer
than Q counts as Q and begins anew. The gap that a round ends counts from the next round on.

`known_prob=True` is what the public program compares it with: the probability L / K of the draw is
known, and a change is divided by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from isfed.base.portable_arithmetic import weighted_sum
from isfed.federation.messages import Facts, Updates
from isfed.methods.estimators import HorvitzThompson, Mean, trained_changes
from isfed.methods.federated import Combined, Evidence, Federated, Opened
from isfed.methods.method_protocol import Composed, Count
from isfed.methods.shared_fields import Sampled


class Gaps(NamedTuple):
    """How often every agent took part."""

    since: np.ndarray  # (K,) rounds since its last participation
    total: np.ndarray  # (K,) the sum of its complete gaps
    count: np.ndarray  # (K,) their number


@dataclass(frozen=True)
class MeanGapWeights(Mean):
    """The sum of the changes by c_k times the mean gap between participations.

    Args:
        longest: Q, the longest gap; no limit unless given.
    """

    longest: Count | None = None

    def init(self, facts: Facts, params: np.ndarray) -> Gaps:
        return Gaps(*(np.zeros(facts.num_agents, np.int64) for _ in range(3)))

    def combine(self, state: Gaps, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        change, who = trained_changes(updates, facts), opened.cohort.agents[updates.place]
        gap = np.where(state.count > 0, state.total / np.maximum(state.count, 1), 1.0)[who]
        step = weighted_sum(facts.share(who) * gap * updates.factor, change)
        since = state.since + 1
        ended = np.isin(np.arange(since.size), who)
        if self.longest is not None:
            ended |= since >= self.longest
        moved = Gaps(np.where(ended, 0, since), state.total + ended * since, state.count + ended)
        return step, moved, Evidence(updates.score, change)


@dataclass(frozen=True, kw_only=True)
class FedAU(Composed, Sampled):
    """FedAU: changes are weighed by the mean number of rounds between two of an agent.

    Args:
        longest: Q, the longest gap between two participations; no limit unless given.
        known_prob: weigh by the true probability in place of the mean gap, which is unbiased.
        divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    longest: Count | None = None
    known_prob: bool = False
    divide_by_steps: bool = False

    def parts(self) -> Federated:
        known = HorvitzThompson() if self.known_prob else None
        return self.made_of(known or MeanGapWeights(longest=self.longest))
