"""Which methods the fused kernel runs, and with which constants."""

from __future__ import annotations

from typing import Any, NamedTuple

from isfed.federation.problem_arrays import compiled_design, make_sampler, wants_norms
from isfed.federation.variate_updates import make_rule
from isfed.methods import ISFedAvg
from isfed.sampling.policies import compiled_policy
from isfed.simulate.kernel import ControlPlan, Plan


class Lowered(NamedTuple):
    """A method as numbers; `control` is None without control variates."""

    plan: Plan
    control: ControlPlan | None


def can_lower(algorithm: Any) -> bool:
    """Whether the kernel does all that a method does; not so if a subclass has its own round."""
    kind = type(algorithm)
    if not isinstance(algorithm, ISFedAvg):
        return False
    if kind.parts is not ISFedAvg.parts or kind.round is not ISFedAvg.round:
        return False
    known = (
        compiled_design(algorithm.agent_design)
        and compiled_design(algorithm.example_design)
        and compiled_policy(algorithm.agents)
        and compiled_policy(algorithm.examples)
    )
    plain = algorithm.absences == "drop" and algorithm.client_weights == "uniform"
    return known and plain and not algorithm.costs and not algorithm.average


def lowered(algorithm: ISFedAvg) -> Lowered:
    """A method that `can_lower` accepts, with a step size that is a number."""
    agents = make_sampler(algorithm.agents, algorithm.agent_design)
    examples = make_sampler(algorithm.examples, algorithm.example_design)
    plan = Plan(
        step_size=float(algorithm.step_size),
        num_active=int(algorithm.num_active),
        divide_by_steps=algorithm.divide_by_steps,
        drift=float(algorithm.drift),
        agents=agents,
        examples=examples,
        scored=wants_norms(algorithm.agents, algorithm.examples),
        watched=not (agents.uniform and examples.uniform),
        on_change=algorithm.on_change,
        full=algorithm.full_batch,
    )
    if algorithm.memory is None:
        return Lowered(plan, None)
    reports = algorithm.federated.reports
    turn = plan._replace(
        agents=make_sampler(reports, algorithm.agent_design),
        scored=wants_norms(reports, algorithm.examples),
    )
    return Lowered(plan, ControlPlan(turn, make_rule(algorithm.memory, algorithm.agents)))
