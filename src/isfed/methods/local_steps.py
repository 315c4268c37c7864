"""How agents step: the step size of a round, the number of steps, and which examples they use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from isfed.base.argument_checks import check_fields, check_whole, is_number, shown
from isfed.federation.agent import AgentConfig
from isfed.federation.agents import LocalOptions
from isfed.federation.messages import Cohort, Facts, Work
from isfed.sampling.designs import Design, LocalPivotal, Spread, WithReplacement
from isfed.sampling.policies import Policy, Uniform


@lru_cache(maxsize=32)  # to make them anew in every round would take a tenth of its time
def equal_turns(local: LocalOptions, count: int, steps: int | None, sent: bool) -> LocalOptions:
    """How so many agents take the same number of steps; nobody writes to it."""
    each = None if steps is None else np.full(count, steps, np.int64)
    return local.but(steps=each, sent=sent)


@dataclass(frozen=True)
class LocalSteps:
    """Mini-batch steps of gradient descent.

    Args:
        step_size: mu, a number, or a function from the number of a round to its step size.
        local_steps: steps of a turn, one number or one for each agent; the problem's E_k unless
            given.
        divide_by_steps: whether a step is divided by the number of steps, as in eq. (8).
        prox: weight of the pull (x - w) towards the model that was sent.
        full_batch: whether every step uses all examples.
        timed: whether a round lasts as long as its slowest turn; False where a sampler has a
            schedule of its own.
        examples: the policy by which an agent draws its examples.
        example_design: the design by which it draws them.
    """

    step_size: Any
    local_steps: int | Sequence[int] | None = None
    divide_by_steps: bool = False
    prox: float = 0.0
    full_batch: bool = False
    timed: bool = True
    examples: Policy = field(default_factory=Uniform)
    example_design: Design = field(default_factory=WithReplacement)

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.example_design, Spread | LocalPivotal):
            raise ValueError(
                f"example_design={type(self.example_design).__name__}() would need a sketch of "
                "every example, which nobody keeps; use it for agent_design"
            )
        step = self.step_size  # perhaps an array, which cannot be compared with a word
        known = isinstance(step, str | float) and (step == "auto" or step != step)
        if not (callable(step) or known or (is_number(step) and float(step) > 0.0)):
            raise ValueError(
                f"step_size={shown(step)} must be a positive number, or a function from the round "
                "to its step size"
            )
        steps = self.local_steps
        for number in (steps if isinstance(steps, Sequence) else (steps,)) if steps else ():
            check_whole(number, name="local_steps", least=1)

    @property
    def needs(self) -> dict[str, str]:
        auto = isinstance(self.step_size, str)
        remedy = "step_size='auto' needs client_weights='uniform'; give a number"
        return {"equal weights": remedy} if auto else {}

    @property
    def gives(self) -> set[str]:
        return {"steps divided by E_k"} if self.divide_by_steps else set()

    def at(self, round_index: int) -> float:
        """The step size of a round."""
        return step_at(self.step_size, round_index)

    @cached_property
    def plain(self) -> LocalOptions:
        """The options of a turn with the problem's E_k steps; made once, which saves time."""
        return LocalOptions(prox=float(self.prox), full_batch=self.full_batch, timed=self.timed)

    def work(self, cohort: Cohort, facts: Facts, round_index: int) -> Work:
        local, steps = self.plain, self.local_steps
        if cohort.steps is not None:
            local = local.but(steps=cohort.steps, sent=cohort.has_model)
        elif steps is None or isinstance(steps, int):  # asked first: it is fast
            if steps is not None or cohort.has_model:
                local = equal_turns(local, cohort.agents.size, steps, cohort.has_model)
        else:
            local = local.but(steps=np.array(steps)[cohort.agents], sent=cohort.has_model)
        return Work(self.at(round_index), self.divide_by_steps, local=local)

    def steps(self, agents: np.ndarray, facts: Facts) -> np.ndarray:
        """(n,) how many local steps each of these agents takes, if it has the time."""
        if self.local_steps is None:
            if facts.local_steps is None:
                raise ValueError("the E_k of the agents are not known here; give local_steps=...")
            return facts.local_steps[agents]
        return np.broadcast_to(self.local_steps, facts.num_agents)[agents]

    def examples_of(self, agents: np.ndarray, facts: Facts) -> np.ndarray:
        """(n,) how many example gradients a turn of each of these agents takes."""
        per_step = facts.sizes if self.full_batch else facts.batch_size
        return self.steps(agents, facts) * per_step[agents]

    def rules(self, num_agents: int, reports: Policy) -> AgentConfig:
        step: Any = self.at(0)
        if step == "auto":
            raise ValueError(
                "step_size='auto' needs the data: give a number, e.g. stable_step_size(problem, "
                "algorithm)"
            )
        return AgentConfig(
            num_agents=num_agents,
            step_size=1.0 if step != step else step,  # a method without steps has nan here
            examples=self.examples,
            example_design=self.example_design,
            agents=reports,
            divide_by_steps=self.divide_by_steps,
        )


def step_at(step_size: Any, round_index: int) -> Any:
    """The step size of a round, from a number or from a schedule."""
    if not callable(step_size):
        return step_size
    step: Any = step_size(round_index)
    if not (is_number(step) and step > 0.0):
        raise ValueError(
            f"the schedule gives step_size={step!r} for round {round_index}; it must be a "
            "positive number in every round"
        )
    return float(step)


def has_fixed_size(design: Design) -> bool:
    """Whether a design draws as many units as it is asked for, counting repeats."""
    return isinstance(design, WithReplacement) or getattr(design, "fixed_size", True)
