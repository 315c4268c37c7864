"""FedCM: Xu, Wang, Wang and Yao, "FedCM: Federated Learning with Client-level Momentum" (2021),
arXiv 2106.10874.

The cloud keeps d, the mean change of the last round, zero at first, and sends it along. Agents step
by a share alpha of their own gradient and follow d with the rest:

    agent:  x <- x - mu (alpha g(x) - (1 - alpha) d / (mu E_k)), E_k times
    cloud:  d <- mean over S of (x - w),  w <- w + d

alpha = 1 is FedAvg. Not unbiased: what earlier agents found moves the model again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from isfed.base.argument_checks import check_share
from isfed.federation.messages import Cohort, Facts, Updates, Work
from isfed.methods.estimators import Mean
from isfed.methods.federated import Combined, Federated, Opened
from isfed.methods.method_protocol import Composed
from isfed.methods.shared_fields import Sampled


class DirectionState(NamedTuple):
    """Where the last round went."""

    direction: np.ndarray  # (M',) d


@dataclass(frozen=True)
class DirectedMean(Mean):
    """The mean of changes whose steps also followed the last mean change, which is sent along.

    Args:
        alpha: the share of an agent's own gradient in its steps.
    """

    alpha: Annotated[float, check_share] = 0.1
    reads_steps: ClassVar[bool] = True  # the direction is divided by mu E_k

    def init(self, facts: Facts, params: np.ndarray) -> DirectionState:
        return DirectionState(np.zeros(params.size))

    def ask(self, state: DirectionState, cohort: Cohort, facts: Facts, work: Work) -> Work:
        """Steps of alpha mu along g - (1 / alpha - 1) d / (mu E_k)."""
        reach = work.reach(cohort.agents, facts) * np.ones(cohort.agents.size)  # mu E_k
        along = (1.0 - 1.0 / self.alpha) / reach[:, None] * state.direction
        step_size = self.alpha * work.step_size
        return work._replace(
            step_size=step_size, local=work.local.but(correction=along), extra={"models_down": 1}
        )

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        step, _, evidence = super().combine(state, opened, updates, facts)
        return step, DirectionState(step), evidence


@dataclass(frozen=True, kw_only=True)
class FedCM(Composed, Sampled):
    """FedCM: local steps also follow the last move of the model; two vectors travel down.

    Args:
        alpha: the share of an agent's own gradient in its steps; 1 is FedAvg.
        divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    alpha: Annotated[float, check_share] = 0.1
    divide_by_steps: bool = False

    def parts(self) -> Federated:
        return self.made_of(DirectedMean(alpha=self.alpha))
