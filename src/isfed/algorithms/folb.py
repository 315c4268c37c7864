"""FOLB: Nguyen, Sehwag, Hosseinalipour, Brinton, Chiang and Poor, "Fast-Convergent Federated
Learning" (JSAC 2021), arXiv 2007.13137. Unconfirmed: no public code was found, and the rules are
written from memory of the paper.

Agents work as in FedProx and also send g_k = grad P_k(w). With g the mean of the g_k heard, agent k
counts by I_k = <g_k, g>: w <- w + sum_k I_k change_k / sum_l |I_l|. An agent whose gradient opposes
the mean moves the model the other way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from isfed.algorithms.algorithm import ModelState
from isfed.algorithms.parts import Sampled, check_choice, check_number, draw_uniformly
from isfed.base.streams import Purpose
from isfed.federation.agents import Agents, Uploads

Variant = Literal["one-set", "two-sets", "near-optimal"]
TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class FOLB(Sampled):
    """FOLB (unconfirmed: no public code).

    prox: weight of the pull towards the model that was sent.
    variant: "one-set" normalises with the agents that work, "two-sets" with an independent second
        set, and "near-optimal" draws by |<grad P, g_k>| and needs the gradients of all agents.
    penalty: psi; agents that solve their local problem badly count less.
    absolute: normalise by sum |I_l| instead of |sum I_l|.
    """

    prox: float = 1.0
    variant: Variant = "one-set"
    penalty: float = 0.0
    absolute: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.prox, name="prox")
        check_number(self.penalty, name="penalty")
        check_choice(self.variant, Variant, name="variant")

    def round(self, state: Any, agents: Agents, round_index: int) -> ModelState:
        """Draw, work, and count the changes by how their gradients agree."""
        params = state.params
        if self.variant == "near-optimal":
            return self._near_optimal(params, agents, round_index)
        active = self.select(agents, round_index)
        if not active.size:
            return ModelState(params)
        uploads = self._uploads(agents, active, params, round_index)
        gradients = agents.gradients(active, params)
        mean = gradients.sum(axis=0) / active.size
        influence = gradients @ mean
        if self.penalty > 0.0:
            error = self._inexactness(agents, active, params, uploads, gradients)
            influence = influence - self.penalty * error * (mean @ mean)
        norm = influence
        if self.variant == "two-sets":
            others = draw_uniformly(agents, self.num_active, round_index, purpose=Purpose.DOMAINS)
            agents.cross(models_down=others.size)
            second = agents.gradients(others, params)
            norm = second @ (second.sum(axis=0) / others.size)
        total = np.abs(norm).sum() if self.absolute else abs(norm.sum())
        if total < TINY:
            return ModelState(params + uploads.changes.sum(axis=0) / active.size)
        return ModelState(params + (influence / total) @ uploads.changes)

    def _uploads(
        self, agents: Agents, active: np.ndarray, params: np.ndarray, round_index: int
    ) -> Uploads:
        return self.work(agents, active, params, round_index, prox=float(self.prox))

    def _inexactness(self, agents, active, params, uploads, gradients) -> np.ndarray:
        """gamma_k = |gradient of the local problem at x_k| / |g_k|."""
        agents.cross(scalars_up=active.size)
        ends = agents.gradients(active, params + uploads.changes) + self.prox * uploads.changes
        lengths = np.linalg.norm(gradients, axis=1)
        return np.linalg.norm(ends, axis=1) / np.maximum(lengths, TINY)

    def _near_optimal(self, params: np.ndarray, agents: Agents, round_index: int) -> ModelState:
        """Draw by |<grad P, g_k>| with replacement, and turn the changes of opposing agents."""
        everybody = np.arange(agents.num_agents)
        agents.cross(models_down=agents.num_agents)
        gradients = agents.gradients(everybody, params)
        agreement = gradients @ (gradients.sum(axis=0) / agents.num_agents)
        mass = np.abs(agreement)
        if not mass.sum() > TINY:
            return ModelState(params)
        ends = np.cumsum(mass)
        points = agents.stream(Purpose.AGENTS, round_index).uniforms(self.num_active) * ends[-1]
        drawn = np.minimum(np.searchsorted(ends, points, side="right"), np.flatnonzero(mass)[-1])
        active, times = np.unique(drawn, return_counts=True)
        uploads = self._uploads(agents, active, params, round_index)
        weights = times * np.sign(agreement[active]) / self.num_active
        return ModelState(params + weights @ uploads.changes)
