"""The default for networks: stratified passes by importance, look-ahead Adam, averaged models.

Each of the four helps where the others do not, and none sends a byte more than FedAvg:

    importance    agents with long changes are heard more often, and weighted by c_k / (L p_k)
    coverage      nobody is heard again before the others were; a cohort has one of each stratum
    look-ahead    agents start at w + beta_1 x (the cloud's last move), where Adam will go anyway
    average       the model that is shown is the mean over about one pass

The law of the sampler: for fixed changes every round is unbiased over the plan of its pass; given
the earlier cohorts of the pass it is not. Agents keep no state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from isfed.base.argument_checks import check_share
from isfed.methods.estimators import HorvitzThompson
from isfed.methods.federated import Federated
from isfed.methods.local_steps import LocalSteps
from isfed.methods.method_protocol import (
    ClientWeights,
    Composed,
    Count,
    Positive,
    StepSize,
    check_record,
)
from isfed.methods.passes_over_agents import Passes
from isfed.methods.servers import Average, FedAdam, LookAhead
from isfed.methods.stratified_passes import StratifiedPasses
from isfed.sampling.policies import Memory


@dataclass(frozen=True, kw_only=True)
class LookAheadPasses(Composed):
    """Stratified passes by importance, with look-ahead FedAdam and averaged models.

    Args:
        num_active: L, the number of agents per round.
        step_size: the size of a local step, as in PyTorch. With "auto" `isfed.torch.train` finds it
            by short trials, and over Flower agents with a loop of their own choose it themselves.
        server_step_size: eta of FedAdam.
        floor: the share of every p_k that does not depend on scores; with 1 agents are heard as
            often as they count.
        single_changes: whether the cloud may look at the changes of single agents. If not, as under
            secure aggregation, strata are random and all agents are heard equally often.
        client_weights: c_k of the objective, "uniform" or by "size".

    Examples:
        >>> LookAheadPasses(num_active=10, step_size=0.1).federated.server.name
        'look-ahead FedAdam, averaged'
    """

    num_active: Count
    step_size: StepSize = "auto"
    server_step_size: Positive = 0.02
    floor: Annotated[float, check_share] = 0.3
    single_changes: bool = True
    client_weights: ClientWeights = "uniform"

    def __post_init__(self) -> None:
        check_record(self)

    @property
    def name(self) -> str:
        return "look-ahead passes"

    def parts(self) -> Federated:
        sampler = Passes(self.num_active)
        if self.single_changes:
            sampler = StratifiedPasses(self.num_active, Memory(floor=self.floor))
        return Federated(
            sampler,
            LocalSteps(self.step_size),
            HorvitzThompson(),
            Average(LookAhead(FedAdam(step_size=self.server_step_size)), window="pass"),
            client_weights=self.client_weights,
        )
