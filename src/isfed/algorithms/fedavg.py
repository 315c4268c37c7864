"""FedAvg and Dynamic FedAvg: the same record with uniform choices."""

from __future__ import annotations

from typing import Literal

from isfed.algorithms.isfedavg import ISFedAvg
from isfed.sampling.designs import HartleyRao, WithReplacement
from isfed.sampling.policies import Uniform


def FedAvg(  # noqa: N802 (reads as a type)
    *, step_size: float | Literal["auto"], num_active: int, divide_by_steps: bool = False
) -> ISFedAvg:
    """FedAvg as in the paper's experiments: uniform agents, uniform batches with replacement.

    Without the division by E_k an agent with more local steps pulls harder, and part of any gap
    to ISFedAvg is a larger step; `divide_by_steps=True` is the fair variant.
    """
    return ISFedAvg(
        step_size=step_size,
        num_active=num_active,
        agents=Uniform(),
        examples=Uniform(),
        agent_design=HartleyRao(),
        example_design=WithReplacement(),
        divide_by_steps=divide_by_steps,
        label="FedAvg with 1/E_k" if divide_by_steps else "FedAvg",
    )


def DynamicFedAvg(  # noqa: N802
    *, step_size: float | Literal["auto"], num_active: int, drift: float = 0.0
) -> ISFedAvg:
    """Dynamic FedAvg (Rizk, Vlaski, Sayed 2020): uniform, without replacement, divided by E_k.

    With a `drift` the true model is a random walk of that standard deviation per round and the
    msd is measured against the moving optimum. With drift 0 it is ISFedAvg with uniform policies.
    """
    return ISFedAvg(
        step_size=step_size,
        num_active=num_active,
        agents=Uniform(),
        examples=Uniform(),
        agent_design=HartleyRao(),
        example_design=HartleyRao(),
        drift=drift,
        label="Dynamic FedAvg",
    )
