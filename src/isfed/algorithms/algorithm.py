"""What a federated method is: a frozen record of choices with a start and a round."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from isfed.base.arguments import check_fields
from isfed.federation.agent import Rules
from isfed.federation.agents import Agents
from isfed.federation.correction import CorrectionRule
from isfed.federation.turn import Sampler
from isfed.sampling.designs import WithReplacement
from isfed.sampling.policies import Uniform


class Plan(NamedTuple):
    """An algorithm as numbers, for the fused kernel."""

    step_size: float
    num_active: int
    divide_by_steps: bool
    drift: float
    agents: Sampler
    examples: Sampler
    scored: bool  # whether anything needs the norms of the examples' gradients
    watched: bool  # whether the weights differ at all, so that there is something to watch
    full: bool  # all examples in every step, instead of a drawn batch


class CorrectedPlan(NamedTuple):
    """The same with a correction, or with the weights on the changes; `turn` is for the agents."""

    step_size: float
    num_active: int
    divide_by_steps: bool
    drift: float
    agents: Sampler
    examples: Sampler
    scored: bool
    watched: bool
    full: bool
    turn: Plan
    rule: CorrectionRule
    on_change: bool


class Algorithm(Protocol):
    """A federated method; `State` is a NamedTuple of arrays, and that is the checkpoint.

    `round` may write into the arrays of the state it is given, and returns the state of the next
    round. It asks the agents for work and never looks at their data.
    """

    @property
    def name(self) -> str:
        """The name in tables and figures."""
        ...

    def rules(self, num_agents: int) -> Rules:
        """What the cloud sends to every agent before the first round."""
        ...

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        """The state before the first round, from an initial model, (M,)."""
        ...

    def round(self, state: Any, agents: Agents, round_index: int) -> Any:
        """One round."""
        ...

    def model(self, state: Any) -> np.ndarray:
        """The model that a state stands for, (M,)."""
        ...

    def plan(self) -> Plan | CorrectedPlan | None:
        """The algorithm as numbers if the fused kernel can run it."""
        ...


class ModelState(NamedTuple):
    """The state of a method that keeps nothing but its model.

    params: (M,) the model.
    """

    params: np.ndarray


def _checked_first(own: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(own)
    def post_init(self: Any) -> None:
        check_fields(self)
        own(self)

    return post_init


class Method:
    """What most methods share; a method of your own may inherit it and write `round` alone.

    Examples are drawn uniformly with replacement, the state is the model, and the rounds run over
    agents, not in the fused kernel.
    """

    step_size: Any

    def __init_subclass__(cls, **options: Any) -> None:
        """Have the fields of every method that is a dataclass looked at, before its own checks."""
        super().__init_subclass__(**options)
        own = cls.__dict__.get("__post_init__")
        if own is not None:
            cls.__post_init__ = _checked_first(own)  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def name(self) -> str:
        """The name of the class."""
        return type(self).__name__

    def rules(self, num_agents: int) -> Rules:
        """Uniform examples with replacement, and no score."""
        # A method without steps, such as MOCHA, has nan here, and nothing to tell.
        without_steps = self.step_size != self.step_size
        return Rules(
            num_agents=num_agents,
            step_size=1.0 if without_steps else self.step_size,
            examples=Uniform(),
            example_design=WithReplacement(),
            agents=Uniform(),
        )

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        """The model alone."""
        return ModelState(params.copy())

    def model(self, state: Any) -> np.ndarray:
        """The model that a state stands for."""
        return state.params

    def plan(self) -> Plan | None:
        """Not for the fused kernel."""
        return None
