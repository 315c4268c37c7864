"""ISFedAvg, Algorithm 1 of the paper, as a record of choices.

Agents are drawn by score, take E_k weighted steps over importance-sampled batches, and the cloud
adds the Horvitz-Thompson mean of what they changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from isfed.federation.variate_updates import Correction
from isfed.methods.by_score import ByScore, check_costs
from isfed.methods.control_variates import ControlVariates, check_correction
from isfed.methods.estimators import HorvitzThompson, InverseResponse
from isfed.methods.federated import Federated
from isfed.methods.local_steps import LocalSteps
from isfed.methods.method_protocol import (
    CheckedDesign,
    CheckedPolicy,
    ClientWeights,
    Composed,
    Count,
    NotNegative,
    StepSize,
    check_record,
)
from isfed.methods.passes_over_agents import Passes
from isfed.methods.servers import averaging
from isfed.sampling.designs import Deville, HartleyRao
from isfed.sampling.policies import Memory, Uniform

Kind = Literal["difference", "drift"]


def suffix_of(method: Any) -> str:
    """What a name ends with: whether agents are heard in passes, and the models averaged."""
    return (", passes" if method.passes else "") + (", averaged" if method.average else "")


@dataclass(frozen=True, kw_only=True)
class ISFedAvg(Composed):
    """Federated averaging under importance sampling of agents and of examples.

    Args:
        step_size: mu, the step size; "auto" tries about eight when `simulate` begins and takes the
            best for its rounds; where no run is made, a stable one.
        num_active: L, the number of agents per round.
        agents: the policy that gives agents their probabilities.
        examples: the policy that gives an agent's examples their probabilities.
        agent_design: how agents are drawn with these probabilities.
        example_design: how examples are drawn with theirs.
        divide_by_steps: whether a step is divided by E_k, as in eq. (8).
        drift: standard deviation of the true model's random walk, per round.
        correction: None is the paper's method; "difference" or "drift" let agents remember their
            gradients and estimate only what is new, see `Correction`.
        weighting: where 1/(K p_k) goes: into the agent's "step", as in eq. (8), or on the "change"
            that it sends. "step" unless there is a correction; "drift" needs "change".
        absences: how an upload that is lost (see `Clock`) counts: "drop" counts it as zero,
            "adjusted" divides what arrives by an estimate of how often its agent answers, at least
            1/5.
        costs: what a turn of each agent costs, in any unit; agents are then drawn with
            probabilities proportional to score / sqrt(cost).
        client_weights: c_k of the objective sum_k c_k P_k: "uniform", 1/K as in the paper, or by
            "size", N_k / sum N. The weight of a change is then c_k / p_k instead of 1 / (K p_k).
        full_batch: whether every local step uses all examples instead of B_k drawn ones, which is
            B_k = N_k without replacement; `examples` and `example_design` then say nothing.
        average: whether the model that is shown is the mean of those of the last half of the
            rounds; "pass" is an exponential mean over about K / L rounds, see `Average`.
        passes: whether no agent is heard again before the others were, see `Passes`;
            `agent_design` then says nothing.
        label: the name in tables and figures; made from the choices unless given.

    Examples:
        >>> from isfed import Memory, Uniform
        >>> policies = {"agents": Memory(floor=0.05), "examples": Uniform()}
        >>> ISFedAvg(step_size=0.01, num_active=6, **policies).name
        'ISFedAvg, memory agents, uniform examples'
    """

    step_size: StepSize
    num_active: Count
    agents: CheckedPolicy = field(default_factory=Memory)
    examples: CheckedPolicy = field(default_factory=Memory)
    agent_design: CheckedDesign = field(default_factory=Deville)
    example_design: CheckedDesign = field(default_factory=Deville)
    divide_by_steps: bool = True
    drift: NotNegative = 0.0
    correction: Annotated[Correction | Kind | None, check_correction] = None
    weighting: Literal["step", "change"] | None = None
    absences: Literal["drop", "adjusted"] = "drop"
    costs: Annotated[Sequence[float], check_costs] = ()
    client_weights: ClientWeights = "uniform"
    full_batch: bool = False
    average: bool | Literal["half", "pass"] = False
    passes: bool = False
    label: str = ""

    def __post_init__(self) -> None:
        check_record(self)
        if self.full_batch:  # nothing is drawn, so nothing is learned about examples
            object.__setattr__(self, "examples", Uniform())
            object.__setattr__(self, "example_design", HartleyRao())
        if isinstance(self.correction, str):
            object.__setattr__(self, "correction", Correction(self.correction))
        object.__setattr__(self, "costs", self.federated.sampler.costs)

    def parts(self) -> Federated:
        on = "change" if self.on_change else "step"
        estimator: Any = HorvitzThompson(on)
        if self.memory is not None:
            estimator = ControlVariates(self.memory, self.agents, self.example_design, on)
        sampler = ByScore(self.num_active, self.agents, self.agent_design, self.costs)
        if self.passes:
            sampler = Passes(self.num_active, self.agents, costs=self.costs)
        return Federated(
            sampler,
            LocalSteps(
                self.step_size,
                divide_by_steps=self.divide_by_steps,
                full_batch=self.full_batch,
                examples=self.examples,
                example_design=self.example_design,
            ),
            InverseResponse(estimator) if self.absences == "adjusted" else estimator,
            averaging(self.average),
            client_weights=self.client_weights,
        )

    @property
    def memory(self) -> Correction | None:
        """The correction, of which a word was made a record."""
        return self.correction  # type: ignore[return-value]

    @property
    def on_change(self) -> bool:
        """Whether 1/(K p_k) multiplies the change instead of the step."""
        return (self.weighting or ("step" if self.correction is None else "change")) == "change"

    @property
    def name(self) -> str:
        if self.label:
            return self.label
        agents, examples = self.agents.name, self.examples.name
        drawn = agents if agents == examples else f"{agents} agents, {examples} examples"
        drawn = f"{agents} agents, full batches" if self.full_batch else drawn
        kind = "" if self.memory is None else f", {self.memory.kind}"
        return f"ISFedAvg{kind}, {drawn}{suffix_of(self)}"
