"""What a federated method is: a frozen record of choices with a start and a round."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from isfed.base.argument_types import check_fields
from isfed.federation.agent import Rules
from isfed.federation.agents import Agents
from isfed.problems import Problem
from isfed.sampling.designs import WithReplacement
from isfed.sampling.policies import Uniform

ClientWeights = Literal["uniform", "size"]  # c_k of the objective sum_k c_k P_k


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


def flat_state(state: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """The arrays of a state by name; those of a part have the part's name before them."""
    found: dict[str, np.ndarray] = {}
    for name, value in state._asdict().items():
        if isinstance(value, tuple):
            found |= flat_state(value, f"{prefix}{name}.") if value else {}
        else:
            found[prefix + name] = np.asarray(value)
    return found


def filled_state(state: Any, arrays: dict[str, np.ndarray], prefix: str = "") -> Any:
    """A state of the same form with other arrays, as `flat_state` names them."""
    fields = {}
    for name, value in state._asdict().items():
        if isinstance(value, tuple):
            fields[name] = filled_state(value, arrays, f"{prefix}{name}.") if value else value
        else:
            fields[name] = arrays[prefix + name]
    return state._replace(**fields)


def objective_of(problem: Problem, algorithm: Any) -> Problem:
    """The problem whose w^o a method aims at: by size if its `client_weights` say so."""
    by_size = getattr(algorithm, "client_weights", "uniform") == "size"
    return problem.by_size if by_size and not problem.without_optimum else problem


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
