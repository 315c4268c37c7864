"""ISFedAvg with the choices that suit networks."""

from __future__ import annotations

from typing import Literal

from isfed.base.argument_checks import checked
from isfed.federation.variate_updates import Correction
from isfed.methods.isfedavg import ISFedAvg
from isfed.methods.method_protocol import ClientWeights
from isfed.sampling.designs import Design, Deville, WithReplacement
from isfed.sampling.policies import Memory, Policy, Score, Uniform


@checked
def importance(
    *,
    step_size: float,
    num_active: int,
    agents: Policy | None = None,
    examples: Policy | None = None,
    correction: Correction | Literal["difference", "drift"] | None = None,
    agent_design: Design | None = None,
    example_design: Design | None = None,
    divide_by_steps: bool | None = None,
    weighting: Literal["step", "change"] = "change",
    client_weights: ClientWeights = "uniform",
    label: str = "",
) -> ISFedAvg:
    """ISFedAvg with the defaults for networks.

    Args:
        step_size: the size of a local step, as in PyTorch. With a `correction` it is the size of a
            whole turn and a local step is step_size / E_k, because agents then remember the mean
            gradient of a turn.
        num_active: L, the number of agents per round.
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
        label: the name in tables and figures.

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
        label=label or kind or "importance",
    )
