"""FedAvg (McMahan, Moore, Ramage, Hampson and Aguera y Arcas 2017, arXiv 1602.05629) and Dynamic
FedAvg (Rizk, Vlaski and Sayed 2020, arXiv 2002.08782): ISFedAvg with uniform choices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from isfed.base.argument_checks import checked
from isfed.methods.estimators import Mean
from isfed.methods.federated import Federated
from isfed.methods.isfedavg import ISFedAvg
from isfed.methods.method_protocol import ClientWeights, Composed
from isfed.methods.shared_fields import Sampled
from isfed.sampling.designs import HartleyRao, WithReplacement
from isfed.sampling.policies import Uniform

Step = float | Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class WeightedFedAvg(Composed, Sampled):
    """FedAvg whose mean weighs the agents heard by their sizes; see `FedAvg`, `DynamicFedAvg`."""

    client_weights: ClientWeights = "size"
    divide_by_steps: bool = False
    replacement: bool = True  # of the examples
    label: str = "FedAvg"

    @property
    def name(self) -> str:
        return f"{self.label}, by size"

    def parts(self) -> Federated:
        design = WithReplacement() if self.replacement else HartleyRao()
        local = self.local(divide_by_steps=self.divide_by_steps, example_design=design)
        return self.made_of(Mean(), local=local)


def _uniform(*, replacement: bool, client_weights: str, drift: float = 0.0, **fields: Any) -> Any:
    """Uniform agents and batches: an ISFedAvg, or a WeightedFedAvg by size."""
    if client_weights != "uniform":
        fields["label"] = fields["label"].removesuffix(" with 1/E_k")
        return WeightedFedAvg(replacement=replacement, **fields)
    return ISFedAvg(
        agents=Uniform(),
        examples=Uniform(),
        agent_design=HartleyRao(),
        example_design=WithReplacement() if replacement else HartleyRao(),
        drift=drift,
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
    """
    label = "FedAvg with 1/E_k" if divide_by_steps else "FedAvg"
    return _uniform(
        step_size=step_size,
        num_active=num_active,
        divide_by_steps=divide_by_steps,
        label=label,
        client_weights=client_weights,
        full_batch=full_batch,
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
) -> Any:
    """Dynamic FedAvg (Rizk, Vlaski, Sayed 2020): uniform draws, and steps divided by E_k.

    With drift 0 it is ISFedAvg with uniform policies.

    Args:
        step_size: mu, the step size; "auto" chooses a stable one when the run begins.
        num_active: L, the number of agents per round.
        drift: the standard deviation per round of a random walk of the true model; the msd is then
            measured against the moving optimum.
        client_weights: "uniform", or "size", which takes no drift: the mean then weighs agents by
            their sizes.
        full_batch: whether every local step uses all examples of the agent.
    """
    if drift != 0.0 and client_weights != "uniform":
        raise ValueError(f"drift={drift} needs client_weights='uniform'")
    return _uniform(
        step_size=step_size,
        num_active=num_active,
        divide_by_steps=True,
        label="Dynamic FedAvg",
        client_weights=client_weights,
        full_batch=full_batch,
        replacement=False,
        drift=drift,
    )
