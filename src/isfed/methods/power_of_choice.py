"""Power-of-Choice: Cho, Wang and Joshi, "Towards Understanding Biased Client Selection in Federated
Learning" (AISTATS 2022), arXiv 2010.01243.

pow-d: d candidates are drawn without replacement, by their number of examples; each tells its loss
at the model, and the L with the largest work. The plain mean of their models is taken, for sizes
have counted in the draw: the objective is tilted towards the agents that are worst off.

cpow-d: candidates tell their loss on one mini-batch. rpow-d: nobody is asked; the last loss that
the cloud was told counts, and who never told any comes first. In the paper that is the mean loss of
the local steps; here it is the risk at the model that was sent, for which a pass is charged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from isfed.base.argument_checks import check_whole
from isfed.base.portable_arithmetic import log1p
from isfed.base.random_streams import Purpose
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts
from isfed.methods.estimators import Mean
from isfed.methods.federated import Drawn, Federated
from isfed.methods.method_protocol import Composed
from isfed.methods.shared_fields import Sampled
from isfed.methods.uniform_samplers import Unscored

By = Literal["size", "uniform"]
Variant = Literal["pow-d", "cpow-d", "rpow-d"]
LOSS = frozenset({"loss"})


class LossState(NamedTuple):
    """What the cloud was told last."""

    losses: np.ndarray  # (K,)


def first_to_ring(points: np.ndarray, rates: np.ndarray, num: int) -> np.ndarray:
    """The first `num` of exponential times of these rates: successive draws, in their order."""
    return np.argsort(-log1p(-points) / rates, kind="stable")[:num]


@dataclass(frozen=True)
class LargestLosses(Unscored):
    """Of some candidates, the L agents with the largest losses.

    Args:
        num_active: L.
        candidates: d.
        by: candidates are drawn by "size" or "uniform".
    """

    num_active: int
    candidates: int
    by: By

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        """The candidates with the largest losses; ties go to the lower number."""
        points = agents.stream(Purpose.AGENTS, round_index).uniforms(facts.num_agents)
        weights = agents.sizes if self.by == "size" else np.ones(facts.num_agents)
        drawn = np.sort(first_to_ring(points, weights, self.candidates))
        asked = drawn.size > self.num_active  # else nobody's loss matters
        if asked:
            losses, asked = self.losses_of(state, agents, drawn, params, round_index)
            drawn = np.sort(drawn[np.argsort(-losses, kind="stable")[: self.num_active]])
        return Cohort(drawn, self.num_active, np.ones(drawn.size), has_model=asked), state

    def losses_of(self, state, agents, drawn, params, round_index) -> tuple[np.ndarray, bool]:
        """(d,) the losses of the candidates, and whether they got the model with the question."""
        return agents.losses(drawn, params), True


@dataclass(frozen=True)
class LargestBatchLosses(LargestLosses):
    """Of some candidates, the L agents with the largest losses on one mini-batch: cpow-d."""

    def losses_of(self, state, agents, drawn, params, round_index) -> tuple[np.ndarray, bool]:
        return agents.sampled_losses(drawn, params, round_index, whole_batch=True), True


@dataclass(frozen=True)
class LargestLastLosses(LargestLosses):
    """Of some candidates, the L agents whose last losses were the largest: rpow-d."""

    also: ClassVar[frozenset[str]] = LOSS

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> LossState:
        super().init(facts, agents, params)
        return LossState(np.full(facts.num_agents, np.inf))

    def losses_of(self, state, agents, drawn, params, round_index) -> tuple[np.ndarray, bool]:
        return state.losses[drawn], False

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> Any:
        state.losses[cohort.agents[updates.place]] = updates.loss
        return state


SAMPLERS = {
    "pow-d": LargestLosses, "cpow-d": LargestBatchLosses, "rpow-d": LargestLastLosses
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(Composed, Sampled):
    """Power-of-Choice: selects, among d candidates, the L agents with the largest losses.

    Args:
        candidates: d, from L (plain sampling) to K (the L agents that are worst off); 2 L unless
            given.
        candidates_by: candidates are drawn by "size", as in the paper, or "uniform".
        variant: "pow-d" asks for losses on all data, "cpow-d" on one mini-batch; "rpow-d" asks
            nobody and uses the last losses told.
        client_weights: "size" weighs the mean only if the draw of candidates does not count sizes.
        as_coded: the mean by size in any case, as a public baseline (adap/flower) takes it; sizes
            then count twice.
    """

    candidates: int | None = None
    candidates_by: By = "size"
    variant: Variant = "pow-d"
    as_coded: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates is not None:
            check_whole(self.candidates, name="candidates", least=self.num_active)

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        if self.candidates is not None and self.candidates > agents.num_agents:
            raise ValueError(f"candidates={self.candidates} exceeds num_agents={agents.num_agents}")
        return super().start(agents, params)

    def parts(self) -> Federated:
        candidates = 2 * self.num_active if self.candidates is None else self.candidates
        # By size, the draw has counted the sizes, and the mean is plain as in the paper.
        weights = "uniform" if self.candidates_by == "size" else self.client_weights
        if self.as_coded:
            weights = "size"
        sampler = SAMPLERS[self.variant](self.num_active, candidates, self.candidates_by)
        return Federated(sampler, self.local(), Mean(), client_weights=weights)
