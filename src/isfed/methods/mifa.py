"""MIFA: Gu, Huang, Zhang and Huang, "Fast Federated Learning in the Presence of Arbitrary Device
Unavailability" (NeurIPS 2021), arXiv 2106.04159.

The cloud keeps y_k, the last change of every agent, zero at first, and steps by their mean:

    y_k <- change_k for k in S,  then  w <- w + sum over all k of c_k y_k

A round is biased towards what was heard before; with many rounds and small steps this vanishes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isfed.base.portable_arithmetic import weighted_sum
from isfed.federation.messages import Facts, Updates
from isfed.methods.estimators import trained_changes
from isfed.methods.federated import Combined, Evidence, Federated, Opened
from isfed.methods.fedvarp import RememberedMean
from isfed.methods.method_protocol import Composed
from isfed.methods.shared_fields import Sampled


@dataclass(frozen=True)
class MeanOfLastChanges(RememberedMean):
    """The weighted mean of the last changes of all agents, those of this round included."""

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        change = trained_changes(updates, facts)
        state.changes[opened.cohort.agents[updates.place]] = change
        return weighted_sum(facts.share(), state.changes), state, Evidence(updates.score, change)


@dataclass(frozen=True, kw_only=True)
class MIFA(Composed, Sampled):
    """MIFA: the cloud steps by the mean of the last changes of all agents.

    Args:
        divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    divide_by_steps: bool = False

    def parts(self) -> Federated:
        return self.made_of(MeanOfLastChanges())
