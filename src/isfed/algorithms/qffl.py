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

from isfed.algorithms.algorithm import ModelState
from isfed.algorithms.parts import Sampled, check_number, with_mean_buffers
from isfed.base.compiled import compiled
from isfed.federation.agents import Agents, num_trained

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
    if (losses < 0.0).any():
        raise ValueError(
            f"a risk of {losses.min():g} has no power q={power:g}: q-FFL needs losses that are "
            "never negative"
        )
    shares = np.broadcast_to(np.asarray(weights, np.float64), losses.shape)
    return _fair_step(losses, directions, float(power), float(step_size), np.array(shares))


@compiled
def _fair_step(losses, directions, power, step_size, weights):
    moved, curvature = np.zeros(directions.shape[1]), 0.0
    for i in range(losses.size):
        risk = losses[i] + TINY
        square = 0.0
        for j in range(moved.size):
            square += directions[i, j] * directions[i, j]
            moved[j] += weights[i] * risk**power * directions[i, j]
        bend = power * risk ** (power - 1.0) * square + risk**power / step_size  # h_k
        curvature += weights[i] * bend
    return moved / curvature


@dataclass(frozen=True, kw_only=True)
class QFedAvg(Sampled):
    """q-FedAvg: agents with larger losses count more, so that the losses become more equal.

    power: q >= 0; 0 is the plain mean of the models.
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.power, name="power")

    def round(self, state: Any, agents: Agents, round_index: int) -> ModelState:
        """Draw, ask for risks and directions, step."""
        active = self.select(agents, round_index)
        if not active.size:
            return ModelState(state.params)
        losses = agents.losses(active, state.params)
        directions = self.directions(agents, active, state.params, round_index)
        shares = np.ones(active.size) if self.client_weights == "uniform" else agents.sizes[active]
        changes = -self.step_size * directions
        directions[:, num_trained(agents) :] = 0.0  # buffers have no curvature
        step = fair_step(
            losses, directions, power=self.power, step_size=self.step_size,
            weights=shares,
        )  # fmt: skip
        found = state.params - step
        return ModelState(with_mean_buffers(found, agents, state.params, changes, shares))

    def directions(
        self, agents: Agents, active: np.ndarray, params: np.ndarray, round_index: int
    ) -> np.ndarray:
        """(n, M) d_k = (w - x_k) / eta."""
        uploads = self.work(agents, active, params, round_index, sent=True)
        return uploads.changes / -self.step_size


@dataclass(frozen=True, kw_only=True)
class QFedSGD(QFedAvg):
    """q-FedSGD: as q-FedAvg, with one full gradient per selected agent instead of local steps."""

    def directions(
        self, agents: Agents, active: np.ndarray, params: np.ndarray, round_index: int
    ) -> np.ndarray:
        """(n, M) grad P_k(w)."""
        return agents.gradients(active, params, sent=True)
