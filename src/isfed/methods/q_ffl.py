"""q-FFL: Li, Sanjabi, Beirami and Smith, "Fair Resource Allocation in Federated Learning" (ICLR
2020), arXiv 1905.10497.

The objective is sum_k c_k P_k^(q+1) / (q+1): agents with a large risk count more. With F = P_k(w)
and d_k = (w - x_k) / eta, the cloud moves by the sum of F^q d_k over the sum of
h_k = q F^(q-1) |d_k|^2 + F^q / eta, an estimate of the curvature. q-FedSGD takes d_k = grad P_k(w).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from isfed.base.jit import compiled
from isfed.federation.messages import Cohort, Facts, LocalOptions, Updates, Work
from isfed.methods.estimators import Mean
from isfed.methods.federated import Federated, Opened
from isfed.methods.local_steps import LocalSteps, equal_turns
from isfed.methods.method_protocol import Composed, NotNegative
from isfed.methods.shared_fields import Sampled

SILENT = LocalOptions(silent=True)
TINY = 1e-10  # keeps a power of a vanishing risk finite, as in the public code


def fair_step(
    losses: np.ndarray,
    directions: np.ndarray,
    *,
    power: float,
    step_size: float,
    weights: np.ndarray | float = 1.0,
) -> np.ndarray:
    """(M,) how far the model moves down, from the risks and the directions of the agents heard.

    `weights` are c_k of the objective, up to a factor.
    """
    shares = weights if isinstance(weights, np.ndarray) else np.full(losses.size, weights)
    moved = np.zeros(directions.shape[1])
    least = _fair_step(losses, directions, float(power), float(step_size), shares, moved)
    if least < 0.0:
        raise ValueError(
            f"a risk of {least:g} has no power q={power:g}: q-FFL needs losses that are never "
            "negative"
        )
    return moved


@compiled
def _fair_step(losses, directions, power, step_size, weights, moved):
    """Write the step; the smallest risk."""
    curvature, least = 0.0, np.inf
    for i in range(losses.size):
        risk = losses[i] + TINY
        least = min(least, losses[i])
        square = 0.0
        for j in range(moved.size):
            square += directions[i, j] * directions[i, j]
            moved[j] += weights[i] * risk**power * directions[i, j]
        bend = power * risk ** (power - 1.0) * square + risk**power / step_size  # h_k
        curvature += weights[i] * bend
    for j in range(moved.size):
        moved[j] /= curvature
    return least


@dataclass(frozen=True)
class FairMean(Mean):
    """The fair step, from what agents send and their risks at the model that they were sent.

    Args:
        power: q.
        asked: what agents send beside their changes: "loss", and for q-FedSGD the "gradient".
    """

    power: float
    asked: frozenset[str]

    def ask(self, state: Any, cohort: Cohort, facts: Facts, work: Work) -> Work:
        return work._replace(also=self.asked)

    def mean(self, rows: np.ndarray, opened: Opened, updates: Updates, facts: Facts) -> np.ndarray:
        if not len(rows):
            return np.zeros(facts.num_trained)
        step_size = opened.work.step_size
        if updates.gradient is None:
            directions = rows / -step_size  # d_k = (w - x_k) / eta
        else:
            directions = np.ascontiguousarray(updates.gradient[:, : facts.num_trained])
        return -fair_step(
            updates.loss, directions, power=self.power, step_size=step_size,
            weights=self.counts_here(opened.cohort, updates, facts),
        )  # fmt: skip


@dataclass(frozen=True)
class NoSteps(LocalSteps):
    """Agents only answer what they are asked: they take no step and send no change."""

    def work(self, cohort: Cohort, facts: Facts, round_index: int) -> Work:
        return Work(self.at(round_index), local=equal_turns(SILENT, cohort.agents.size, 0, False))


@dataclass(frozen=True, kw_only=True)
class QFedAvg(Composed, Sampled):
    """q-FedAvg: agents with larger losses count more, so that the losses become more equal.

    Args:
        power: q >= 0; 0 is the plain mean of the models.
    """

    power: NotNegative = 1.0

    def parts(self) -> Federated:
        return self.made_of(FairMean(self.power, frozenset({"loss"})))


@dataclass(frozen=True, kw_only=True)
class QFedSGD(QFedAvg):
    """q-FedSGD: as q-FedAvg, with one full gradient per selected agent instead of local steps."""

    def parts(self) -> Federated:
        estimator = FairMean(self.power, frozenset({"loss", "gradient"}))
        return self.made_of(estimator, local=NoSteps(self.step_size))
