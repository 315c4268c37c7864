"""A method around another: the same rounds with something changed before or after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from isfed.base.checks import is_number
from isfed.federation.agent import Rules
from isfed.federation.agents import Agents
from isfed.problems import Problem


def layers(algorithm: Any) -> Iterator[Any]:
    """A method, the one inside it if it is around another, and so on."""
    while algorithm is not None:
        yield algorithm
        algorithm = getattr(algorithm, "algorithm", None)


def objective_of(problem: Problem, algorithm: Any) -> Problem:
    """The problem whose w^o a method aims at: by size if its `client_weights` say so."""
    weights = [getattr(layer, "client_weights", "uniform") for layer in layers(algorithm)]
    return problem.by_size if "size" in weights and not problem.without_optimum else problem


@dataclass(frozen=True)
class Around:
    """What all methods around another share: they are like it unless they say otherwise."""

    algorithm: Any

    def __post_init__(self) -> None:
        # An array can be rounded too, but it cannot start.
        if not all(callable(getattr(self.algorithm, name, None)) for name in ("start", "round")):
            raise TypeError(f"algorithm={self.algorithm!r} must be an algorithm, e.g. FedAvg(...)")

    @property
    def name(self) -> str:
        """That of the method inside."""
        return self.algorithm.name

    @property
    def step_size(self) -> Any:
        """That of the method inside; nan if it has none."""
        return getattr(self.algorithm, "step_size", np.nan)

    @property
    def num_active(self) -> int:
        """L of the method inside."""
        return self.algorithm.num_active

    def __getattr__(self, name: str) -> Any:
        """What a method may have and may not: the policies, the drift."""
        if name in (
            "agents", "examples", "drift", "agent_design", "example_design", "full_batch",
        ):  # fmt: skip
            return getattr(self.algorithm, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def rules(self, num_agents: int) -> Rules:
        """What every agent is told."""
        return self.algorithm.rules(num_agents)

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        """The state before the first round."""
        return self.algorithm.start(agents, params)

    def round(self, state: Any, agents: Agents, round_index: int) -> Any:
        """One round."""
        return self.algorithm.round(state, agents, round_index)

    def model(self, state: Any) -> np.ndarray:
        """The model that a state stands for."""
        return self.algorithm.model(state)

    def agent_prob(self, state: Any, num_agents: int) -> np.ndarray:
        """(K,) p_k of the next round; empty for a method without."""
        inner = getattr(self.algorithm, "agent_prob", None)
        return np.empty(0) if inner is None else inner(state, num_agents)


@dataclass(frozen=True)
class Scheduled(Around):
    """A method whose step size changes from round to round.

    algorithm: the method; its own step size is not used.
    schedule: from the number of a round, beginning with 0, to its step size.

    >>> from isfed import FedAvg
    >>> halved = Scheduled(FedAvg(step_size=0.1, num_active=6), lambda i: 0.1 * 0.5 ** (i // 100))
    >>> halved.at(250).step_size
    0.025
    """

    schedule: Callable[[int], float]

    def __post_init__(self) -> None:
        super().__post_init__()
        inside = self.algorithm
        if not is_dataclass(inside) or "step_size" not in {f.name for f in fields(inside)}:
            raise TypeError(
                f"{type(inside).__name__} has no step_size of its own to change; put Scheduled "
                "directly around the method, e.g. Served(Scheduled(FedAvg(...), ...), FedAdam())"
            )
        if not callable(self.schedule):
            raise TypeError(
                f"schedule={self.schedule!r} must be a function from the round to its step size"
            )

    @property
    def step_size(self) -> float:
        """That of the first round."""
        return self.at(0).step_size

    def at(self, round_index: int) -> Any:
        """The method with the step size of a round."""
        return replace(self.algorithm, step_size=self._step(round_index))

    def _step(self, round_index: int) -> float:
        step = self.schedule(round_index)
        if not (is_number(step) and step > 0.0):
            raise ValueError(
                f"the schedule gives step_size={step!r} for round {round_index}; it must be a "
                "positive number in every round"
            )
        return float(step)

    def check_rounds(self, rounds: int) -> None:
        """Raise a ValueError for a schedule that ends before the last round does."""
        for i in range(rounds):
            self._step(i)

    def rules(self, num_agents: int) -> Rules:
        """With the step size of the first round; every turn is told its own."""
        return self.at(0).rules(num_agents)

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        """The state before the first round."""
        return self.at(0).start(agents, params)

    def round(self, state: Any, agents: Agents, round_index: int) -> Any:
        """One round at its own step size."""
        return self.at(round_index).round(state, agents, round_index)
