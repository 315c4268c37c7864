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
from isfed.algorithms.parts import (
    Sampled,
    answering,
    check_choice,
    check_number,
    count_draws,
    draw_uniformly,
    normalised,
    with_mean_buffers,
)
from isfed.base.arithmetic import inner, matvec, row_norms, weighted_sum
from isfed.base.streams import Purpose
from isfed.federation.agents import Agents, Uploads, trained_part

Variant = Literal["one-set", "two-sets", "near-optimal"]
TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class FOLB(Sampled):
    """FOLB: changes are weighted by how well their gradients agree with the mean gradient.

    Unconfirmed: there is no public code to compare it with.

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
        gradients = agents.gradients(active, params, sent=True)
        share = self.shares(agents, active)
        mean = weighted_sum(share, gradients)
        influence = share * (matvec(gradients, mean))
        if self.penalty > 0.0:
            error = self._inexactness(agents, active, params, uploads, gradients)
            influence = influence - share * self.penalty * error * inner(mean, mean)
        norm = influence
        if self.variant == "two-sets":
            others = draw_uniformly(agents, self.num_active, round_index, purpose=Purpose.DOMAINS)
            others = others[answering(agents, others, round_index)]
            second = agents.gradients(others, params)
            other_share = self.shares(agents, others)
            norm = other_share * (matvec(second, weighted_sum(other_share, second)))
        total = np.abs(norm).sum() if self.absolute else abs(norm.sum())
        if total < TINY:
            return ModelState(params + weighted_sum(share, uploads.changes))
        found = params + weighted_sum(influence / total, uploads.changes)
        return ModelState(with_mean_buffers(found, agents, params, uploads.changes, share))

    def shares(self, agents: Agents, active: np.ndarray) -> np.ndarray:
        """(n,) what each of these agents counts among them before their gradients are compared."""
        if self.client_weights == "uniform":
            return np.full(active.size, 1.0 / max(1, active.size))
        return normalised(agents.sizes[active])

    def _uploads(
        self,
        agents: Agents,
        active: np.ndarray,
        params: np.ndarray,
        round_index: int,
        *,
        sent: bool = False,
    ) -> Uploads:
        return self.work(agents, active, params, round_index, prox=float(self.prox), sent=sent)

    def _inexactness(self, agents, active, params, uploads, gradients) -> np.ndarray:
        """gamma_k = |gradient of the local problem at x_k| / |g_k|."""
        agents.cross(scalars_up=active.size)
        models = params + uploads.changes
        ends = agents.gradients(active, models, sent=True, kept=True) + self.prox * uploads.changes
        ends = trained_part(agents, ends)
        lengths = row_norms(gradients)
        return row_norms(ends) / np.maximum(lengths, TINY)

    def _near_optimal(self, params: np.ndarray, agents: Agents, round_index: int) -> ModelState:
        """Draw by |<grad P, g_k>| with replacement, and turn the changes of opposing agents."""
        everybody = np.arange(agents.num_agents)
        everybody = everybody[answering(agents, everybody, round_index)]
        gradients = agents.gradients(everybody, params)
        share = self.shares(agents, everybody)
        agreement = share * (matvec(gradients, weighted_sum(share, gradients)))
        mass = np.abs(agreement)
        if not mass.sum() > TINY:
            return ModelState(params)
        points = agents.stream(Purpose.AGENTS, round_index).uniforms(self.num_active)
        drawn, times = count_draws(mass, points)
        uploads = self._uploads(agents, everybody[drawn], params, round_index, sent=True)
        weights = times * np.sign(agreement[drawn]) / self.num_active
        found = params + weighted_sum(weights, uploads.changes)
        return ModelState(with_mean_buffers(found, agents, params, uploads.changes, times))
