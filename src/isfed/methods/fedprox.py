"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in
Heterogeneous Networks" (MLSys 2020), arXiv 1812.06127.

Every agent works on P_k(x) + prox/2 |x - w|^2 and so stays near the model w that it was sent. Some
of the selected agents are slow: FedProx keeps what they have done, FedAvg drops them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from isfed.base.jit import compiled
from isfed.base.random_streams import Purpose
from isfed.methods.estimators import Mean, PlainMean
from isfed.methods.federated import Drawn, Federated
from isfed.methods.local_steps import LocalSteps
from isfed.methods.method_protocol import Composed, Forwarding, NotNegative, ZeroToOne
from isfed.methods.shared_fields import Sampled
from isfed.methods.uniform_samplers import ByWeight, UniformCohort, Unscored

Sampling = Literal["uniform", "weighted"]


@dataclass(frozen=True)
class WithStragglers(Forwarding, Unscored):
    """A sampler some of whose agents are slow and do 1 to E_k - 1 steps, or are left out.

    Args:
        inner: the sampler.
        share: share of a cohort that is slow.
        keep: whether slow agents stay in the cohort.
        local: how agents step, which says how many steps they would take.
    """

    inner: Any
    share: float
    keep: bool
    local: LocalSteps
    forwarded: ClassVar[tuple[str, ...]] = ("num_active", "init")

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        cohort, state = self.inner.draw(state, facts, agents, params, round_index)
        count, steps = cohort.agents.size, self.local.steps(cohort.agents, facts)
        points = agents.stream(Purpose.STRAGGLERS, round_index).uniforms(2 * count)
        order, fast = points[:count].argsort(kind="stable"), round((1.0 - self.share) * count)
        if not self.keep:
            kept = np.sort(order[:fast], kind="stable")
            return cohort.rows(kept), state
        limits = np.array(steps, np.int64)
        _slow_down(limits, order[fast:], points[count:])
        return cohort._replace(steps=limits), state


@compiled
def _slow_down(steps, slow, points):
    """Lower E_k of the slow ones to 1 to E_k - 1; to one where it is one."""
    for i in slow:
        steps[i] = 1 + int(points[i] * max(steps[i] - 1, 1))


@dataclass(frozen=True, kw_only=True)
class FedProx(Composed, Sampled):
    """FedProx: local steps are pulled towards the model sent; slow agents may do fewer of them.

    Args:
        prox: weight of the pull towards the model that was sent (mu in the paper).
        stragglers: share of the selected agents that are slow in a round.
        keep_stragglers: a slow agent does 1 to E_k - 1 of its steps and is averaged; False drops
            it, as the paper's FedAvg does.
        sampling: "uniform" draws without replacement and averages by `client_weights` (the public
            code); "weighted" draws with replacement by them and takes the plain mean (the paper).
    """

    prox: NotNegative = 1.0
    stragglers: ZeroToOne = 0.0
    keep_stragglers: bool = True
    sampling: Sampling = "uniform"

    def parts(self) -> Federated:
        weighted = self.sampling == "weighted"
        sampler: Any = (ByWeight if weighted else UniformCohort)(self.num_active)
        if self.stragglers > 0.0:
            sampler = WithStragglers(sampler, self.stragglers, self.keep_stragglers, self.local())
        return self.made_of(PlainMean() if weighted else Mean(), sampler=sampler)
