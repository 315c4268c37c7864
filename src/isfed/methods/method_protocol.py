"""What a federated method is: a frozen record of choices with a start and a round."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cached_property, partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    get_args,
    get_type_hints,
)

import numpy as np

from isfed.base.argument_checks import check_fields, check_whole, is_number, shown
from isfed.federation.agent import AgentConfig
from isfed.federation.agents import Agents
from isfed.methods.local_steps import LocalSteps
from isfed.problems import Problem
from isfed.sampling.designs import Design
from isfed.sampling.policies import Policy, Uniform

if TYPE_CHECKING:
    from isfed.methods.federated import Federated

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

    def rules(self, num_agents: int) -> AgentConfig:
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
    arrays: dict[str, np.ndarray] = {}
    for name, value in state._asdict().items():
        if isinstance(value, tuple):
            arrays |= flat_state(value, f"{prefix}{name}.") if value else {}
        else:
            arrays[prefix + name] = np.asarray(value)
    return arrays


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

    Attributes:
        params: (M,) the model.
    """

    params: np.ndarray


def check_number(value: Any, *, name: str, least: float = 0.0, above: bool = False) -> None:
    """A finite number that is not too small; with `above` it must be larger than `least`."""
    if not (is_number(value) and (value > least or (value == least and not above))):
        raise ValueError(f"{name}={value!r} must be a number {'>' if above else '>='} {least:g}")


def _check_up_to_one(value: Any, *, name: str, below: bool = False) -> None:
    if not (is_number(value) and 0.0 <= value <= 1.0 and not (below and value == 1.0)):
        asked = ", at least 0 and below 1" if below else " between 0 and 1"
        raise ValueError(f"{name}={value!r} must be a number{asked}")


def _check_part(value: Any, *, name: str, kind: type, words: str) -> None:
    if not isinstance(value, kind) or isinstance(value, type):
        raise TypeError(f"{name}={shown(value)} must be a {words}")


def _check_step_size(value: Any, *, name: str) -> None:
    # Perhaps an array, which cannot be compared with a word.
    if not (value == "auto" if isinstance(value, str) else is_number(value) and value > 0.0):
        raise ValueError(f"{name}={shown(value)} must be a positive number or 'auto'")


# The types of fields that `check_record` looks at more closely.
StepSize = Annotated[float | Literal["auto"], _check_step_size]
Positive = Annotated[float, partial(check_number, above=True)]
NotNegative = Annotated[float, check_number]
BelowOne = Annotated[float, partial(_check_up_to_one, below=True)]
ZeroToOne = Annotated[float, _check_up_to_one]
Count = Annotated[int, partial(check_whole, least=1)]
CountOrZero = Annotated[int, partial(check_whole, least=0)]
CheckedPolicy = Annotated[Policy, partial(_check_part, kind=Policy, words="policy, e.g. Memory()")]
CheckedDesign = Annotated[Design, partial(_check_part, kind=Design, words="design, e.g. Deville()")]


@functools.cache
def _ranges(kind: type) -> list[tuple[str, Callable[..., Any]]]:
    """The checks that the annotations of a class ask for, by field."""
    try:
        hints = get_type_hints(kind, include_extras=True).items()
    except Exception:  # an annotation that only a type checker can resolve says nothing
        return []
    parts = [(name, part) for name, hint in hints for part in (hint, *get_args(hint))]
    return [(name, c) for name, part in parts for c in getattr(part, "__metadata__", ())]


def check_record(record: Any) -> None:
    """Look at the range and the type of every field; call it first thing in `__post_init__`."""
    for name, check in _ranges(type(record)):
        if (value := getattr(record, name)) is not None:
            check(value, name=name)
    check_fields(record)


class Method:
    """What most methods share; a method of your own may inherit it and write `round` alone.

    Examples are drawn uniformly with replacement, the state is the model, and the rounds run over
    agents, not in the fused kernel.
    """

    step_size: Any

    def __init_subclass__(cls, **options: Any) -> None:
        """Have the fields of every method that is a dataclass looked at, before its own checks."""
        super().__init_subclass__(**options)
        own: Any = cls.__dict__.get("__post_init__")
        if own is None:
            return

        @functools.wraps(own)
        def post_init(self: Any) -> None:
            check_record(self)
            own(self)

        cls.__post_init__ = post_init  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        check_record(self)

    @property
    def name(self) -> str:
        return type(self).__name__

    def rules(self, num_agents: int) -> AgentConfig:
        return LocalSteps(self.step_size, divide_by_steps=True).rules(num_agents, Uniform())

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        return ModelState(params.copy())

    def model(self, state: Any) -> np.ndarray:
        return state.params


class Composed:
    """A method that is a composition: it writes `parts`, and everything else follows.

    Rounds that are not made of parts come from another object, if a class says so in `_runs`.
    """

    def parts(self) -> Federated:
        """The four parts."""
        raise NotImplementedError

    @cached_property
    def federated(self) -> Federated:
        """The parts, made once."""
        return self.parts()

    @property
    def _runs(self) -> Any:
        """What makes the rounds."""
        return self.federated

    def rules(self, num_agents: int) -> AgentConfig:
        return self._runs.rules(num_agents)

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        return self._runs.start(agents, params)

    def round(self, state: Any, agents: Agents, round_index: int) -> Any:
        return self._runs.round(state, agents, round_index)

    def model(self, state: Any) -> np.ndarray:
        return self._runs.model(state)

    def agent_prob(self, state: Any, num_agents: int) -> np.ndarray:
        """(K,) p_k of the next round, before any cap; empty for a method without."""
        own = getattr(self._runs, "agent_prob", None)
        return np.empty(0) if own is None else own(state, num_agents)


class Forwarding:
    """What is around another and has of it what `forwarded` names, if that has it.

    The one place of what a wrapper forwards, be it around a method, a sampler or an estimator.
    """

    inside: ClassVar[str] = "inner"  # the field with what is inside
    forwarded: ClassVar[tuple[str, ...]] = ()

    def __getattr__(self, name: str) -> Any:
        if name in self.forwarded:
            return getattr(getattr(self, self.inside), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
