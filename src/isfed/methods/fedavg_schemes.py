"""FedAvg with partial participation on data that differ: Li, Huang, Yang, Wang and Zhang, "On the
Convergence of FedAvg on Non-IID Data" (ICLR 2020), arXiv 1907.02189.

p_k are the weights of the agents in the objective. Four ways to average L of K models x_k:

    I               L draws with replacement with probabilities p_k; the plain mean
    II              uniform without replacement; K/L sum p_k x_k, whose weights need not sum to 1
    transformed-II  as II, but agent k steps with p_k K times the step size; the plain mean
    original        uniform without replacement; sum p_k x_k + (1 - sum p_k) w
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from isfed.base.portable_arithmetic import weighted_sum
from isfed.federation.messages import Cohort, Facts, Updates, Work
from isfed.methods.estimators import Mean, PlainMean
from isfed.methods.federated import Federated, Opened
from isfed.methods.method_protocol import Composed, NotNegative
from isfed.methods.shared_fields import Sampled
from isfed.methods.uniform_samplers import ByWeight

Scheme = Literal["I", "II", "transformed-II", "original"]


@dataclass(frozen=True)
class Original(Mean):
    """The original scheme: sum p_k x_k, and the missing weight stays on w."""

    def mean(self, rows: np.ndarray, opened: Opened, updates: Updates, facts: Facts) -> np.ndarray:
        return weighted_sum(facts.share(opened.cohort.agents[updates.place]), rows)


@dataclass(frozen=True)
class SchemeTwo(Mean):
    """Scheme II: K/L sum p_k x_k, where L are those that answered."""

    def mean(self, rows: np.ndarray, opened: Opened, updates: Updates, facts: Facts) -> np.ndarray:
        weights = facts.share(opened.cohort.agents[updates.place])
        weights = weights * (facts.num_agents / max(1, weights.size))
        left = weights.sum() - 1.0 if weights.size else 0.0
        return weighted_sum(weights, rows) + left * opened.sent[: rows.shape[1]]


@dataclass(frozen=True)
class TransformedTwo(PlainMean):
    """Transformed scheme II: p_k K multiplies the step size instead of the model."""

    def ask(self, state: Any, cohort: Cohort, facts: Facts, work: Work) -> Work:
        return work._replace(scale=facts.share(cohort.agents) * facts.num_agents)


ESTIMATORS = {
    "I": PlainMean(), "II": SchemeTwo(), "transformed-II": TransformedTwo(), "original": Original()
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FedAvgScheme(Composed, Sampled):
    """FedAvg by one of four schemes of selection and averaging.

    Args:
        client_weights: the p_k of the paper, "uniform" or by "size".
        scheme: "I", "II", "transformed-II" or "original".
        decay: the step size of round i is step_size / (1 + decay i); 1 in the public code.
    """

    scheme: Scheme = "I"
    decay: NotNegative = 0.0

    @property
    def name(self) -> str:
        return f"FedAvg, scheme {self.scheme}"

    def parts(self) -> Federated:
        sampler = ByWeight(self.num_active) if self.scheme == "I" else None
        local = replace(self.local(), step_size=lambda i: self.step_size / (1.0 + self.decay * i))
        return self.made_of(ESTIMATORS[self.scheme], sampler=sampler, local=local)
