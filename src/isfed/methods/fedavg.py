"""FedAvg (McMahan, Moore, Ramage, Hampson and Aguera y Arcas 2017, arXiv 1602.05629) and Dynamic
FedAvg (Rizk, Vlaski and Sayed 2020, arXiv 2002.08782): ISFedAvg with uniform choices; and
`importance`, ISFedAvg with the choices that suit networks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Literal

from isfed.base.argument_checks import checked
from isfed.federation.variate_updates import Correction
from isfed.methods.estimators import Mean, PlainMean
from isfed.methods.federated import Federated
from isfed.methods.isfedavg import ISFedAvg, suffix_of
from isfed.methods.method_protocol import ClientWeights, Composed, NotNegative
from isfed.methods.passes_over_agents import Passes
from isfed.methods.servers import averaging
from isfed.methods.shared_fields import Sampled
from isfed.sampling.designs import Design, Deville, HartleyRao, WithReplacement
from isfed.sampling.policies import Memory, Policy, Score, Uniform

Step = float | Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class WeightedFedAvg(Composed, Sampled):
    """FedAvg whose mean weighs the agents heard by their sizes; see `FedAvg`, `DynamicFedAvg`."""

    client_weights: ClientWeights = "size"
    divide_by_steps: bool = False
    replacement: bool = True  # of the examples
    average: bool | Literal["half", "pass"] = False
    passes: bool = False
    label: str = "FedAvg"
    # Not in the text by which a checkpoint knows its run: runs of the version before go on.
    drift: NotNegative = field(default=0.0, repr=False)

    @property
    def name(self) -> str:
        return f"{self.label}, by size{suffix_of(self)}"

    def parts(self) -> Federated:
        design = WithReplacement() if self.replacement else HartleyRao()
        # In passes agents are heard as often as they count, so that their mean is a plain one.
        sampler, mean = (Passes(self.num_active), PlainMean()) if self.passes else (None, Mean())
        made = self.made_of(mean, sampler=sampler, local=self.local(example_design=design))
        return replace(made, server=averaging(self.average))


def _uniform(*, replacement: bool, client_weights: str, **fields: Any) -> Any:
    """Uniform agents and batches: an ISFedAvg, or a WeightedFedAvg by size."""
    if client_weights != "uniform":
        fields["label"] = fields["label"].removesuffix(" with 1/E_k")
        return WeightedFedAvg(replacement=replacement, **fields)
    fields["label"] += suffix_of(SimpleNamespace(**fields))
    return ISFedAvg(
        agents=Uniform(),
        examples=Uniform(),
        agent_design=HartleyRao(),
        example_design=WithReplacement() if replacement else HartleyRao(),
        **fields,
    )


@checked
def FedAvg(  # noqa: N802 (reads as a type)
    *,
    step_size: Step,
    num_active: int,
    divide_by_steps: bool = False,
    client_weights: ClientWeights = "uniform",
    full_batch: bool = False,
    average: bool | Literal["half", "pass"] = False,
    passes: bool = False,
) -> Any:
    """FedAvg as in the paper's experiments: uniform agents, uniform batches with replacement.

    Args:
        step_size: mu, the step size; "auto" chooses a stable one when the run begins.
        num_active: L, the number of agents per round.
        divide_by_steps: whether to divide an agent's steps by E_k. Without it an agent with more
            local steps pulls harder, and part of any gap to ISFedAvg is a larger step; True is the
            fair variant.
        client_weights: "uniform", or "size": the mean then weighs agents by their sizes, as in most
            public code.
        full_batch: whether every local step uses all examples of the agent.
        average, passes: as in `ISFedAvg`; by size, agents have places in proportion to their sizes.
    """
    return _uniform(
        step_size=step_size,
        num_active=num_active,
        divide_by_steps=divide_by_steps,
        label="FedAvg with 1/E_k" if divide_by_steps else "FedAvg",
        client_weights=client_weights,
        full_batch=full_batch,
        average=average,
        passes=passes,
        replacement=True,
    )


@checked
def DynamicFedAvg(  # noqa: N802
    *,
    step_size: Step,
    num_active: int,
    drift: float = 0.0,
    client_weights: ClientWeights = "uniform",
    full_batch: bool = False,
    average: bool | Literal["half", "pass"] = False,
    passes: bool = False,
) -> Any:
    """Dynamic FedAvg (Rizk, Vlaski, Sayed 2020): uniform draws, and steps divided by E_k.

    With drift 0 it is ISFedAvg with uniform policies.

    Args:
        step_size: mu, the step size; "auto" chooses a stable one when the run begins.
        num_active: L, the number of agents per round.
        drift: the standard deviation per round of a random walk of the true model; the msd is then
            measured against the moving optimum.
        client_weights: "uniform", or "size": the mean then weighs agents by their sizes.
        full_batch: whether every local step uses all examples of the agent.
        average, passes: as in `ISFedAvg`; by size, agents have places in proportion to their sizes.
    """
    return _uniform(
        step_size=step_size,
        num_active=num_active,
        divide_by_steps=True,
        label="Dynamic FedAvg",
        client_weights=client_weights,
        full_batch=full_batch,
        average=average,
        passes=passes,
        replacement=False,
        drift=drift,
    )


@checked
def importance(
    *,
    num_active: int,
    step_size: Step = "auto",
    agents: Policy | None = None,
    examples: Policy | None = None,
    correction: Correction | Literal["difference", "drift"] | None = None,
    agent_design: Design | None = None,
    example_design: Design | None = None,
    divide_by_steps: bool | None = None,
    weighting: Literal["step", "change"] = "change",
    client_weights: ClientWeights = "uniform",
    average: bool | Literal["half", "pass"] = False,
    passes: bool = False,
    label: str = "",
) -> ISFedAvg:
    """ISFedAvg with the defaults for networks.

    Args:
        num_active: L, the number of agents per round.
        step_size: the size of a local step, as in PyTorch. With a `correction` it is the size of a
            whole turn and a local step is step_size / E_k, because agents then remember the mean
            gradient of a turn. Over Flower it may be left out if agents train by a loop of their
            own, `flower.own_turn`; elsewhere a network needs a number.
        agents: how agents are drawn. Unless given, by the second moment that each of them reports,
            one number; an averaged gradient would be as many as the model has.
        examples: how examples are drawn; uniformly unless given. Drawing them by their scores gains
            little on networks and makes steps less stable.
        correction: "difference" or "drift", see `Correction`; agents are then drawn uniformly
            unless `agents` is given.
        divide_by_steps: whether a local step is step_size / E_k; unless given, if there is a
            correction.
        agent_design, example_design: as in `ISFedAvg`; uniform examples are drawn with replacement.
        weighting: the weight 1/(K p_k) is on the "change" that an agent returns, so that its local
            steps are those of plain training; "step" has it on the steps, as in the paper.
        client_weights: "uniform", or by "size", as in `ISFedAvg`.
        average, passes: as in `ISFedAvg`.
        label: the name in tables and figures.

    Examples:
        >>> algorithm = importance(step_size=0.1, num_active=10)
        >>> algorithm.weighting, algorithm.agents.score.name, algorithm.examples.name
        ('change', 'SECOND_MOMENT', 'uniform')
    """
    if agents is None:
        agents = Memory(score=Score.SECOND_MOMENT, floor=0.2) if correction is None else Uniform()
    if example_design is None:
        example_design = WithReplacement() if examples is None else Deville()
    if divide_by_steps is None:
        divide_by_steps = correction is not None
    kind = correction.kind if isinstance(correction, Correction) else correction
    return ISFedAvg(
        step_size=step_size,
        num_active=num_active,
        agents=agents,
        examples=examples or Uniform(),
        agent_design=agent_design or Deville(),
        example_design=example_design,
        divide_by_steps=divide_by_steps,
        correction=correction,
        weighting=weighting,
        client_weights=client_weights,
        average=average,
        passes=passes,
        label=label or kind or "importance",
    )
