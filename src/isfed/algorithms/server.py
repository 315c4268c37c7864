"""Optimisers of the cloud: what it does with the round's update instead of adding it.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan, "Adaptive Federated
Optimization" (ICLR 2021), arXiv 2003.00295: FedAdagrad, FedAdam and FedYogi of its algorithm 2.
Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution" (2019), arXiv
1909.06335: FedAvgM, the cloud's momentum.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from isfed.algorithms.around import Around
from isfed.base.checks import is_number
from isfed.federation.agents import Agents, num_trained

Memory = dict[str, np.ndarray]


class ServerOptimizer(Protocol):
    """What the cloud does with the update of a round."""

    def start(self, size: int) -> Memory:
        """What it remembers before the first round, of a model of that size."""
        ...

    def step(
        self, memory: Memory, params: np.ndarray, update: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        """The next model and memory, from the model and the update that was to be added to it."""
        ...


def _check(value: Any, *, name: str, below: float | None = None, least: float = 0.0) -> None:
    if not (is_number(value) and value >= least and (below is None or value < below)):
        limit = f"at least {least:g}" + ("" if below is None else f" and below {below:g}")
        raise ValueError(f"{name}={value!r} must be a number, {limit}")


@dataclass(frozen=True, kw_only=True)
class ServerMomentum:
    """FedAvgM, momentum at the cloud: v <- momentum v + update, w <- w + step_size v.

    step_size: the step size of the cloud; 1 takes the update as it is.
    momentum: at least 0 and below 1.
    """

    step_size: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check(self.step_size, name="step_size")
        _check(self.momentum, name="momentum", below=1.0)

    def start(self, size: int) -> Memory:
        """No velocity."""
        return {"velocity": np.zeros(size)}

    def step(
        self, memory: Memory, params: np.ndarray, update: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        """The heavy ball on the updates."""
        velocity = self.momentum * memory["velocity"] + update
        return params + self.step_size * velocity, {"velocity": velocity}


@dataclass(frozen=True, kw_only=True)
class _Adaptive:
    """m <- beta_1 m + (1 - beta_1) update, w <- w + step_size m / (sqrt(v) + tau).

    step_size: eta of the paper.
    beta_1: the decay rate of the average of the updates.
    tau: how adaptive it is; v starts at tau^2.
    """

    step_size: float = 0.1
    beta_1: float = 0.9
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check(self.step_size, name="step_size")
        _check(self.beta_1, name="beta_1", below=1.0)
        if not (is_number(self.tau) and self.tau > 0.0):
            raise ValueError(f"tau={self.tau!r} must be a positive number")

    def start(self, size: int) -> Memory:
        """No average yet, and the smallest second moment allowed."""
        return {"first": np.zeros(size), "second": np.full(size, self.tau**2)}

    def _second(self, second: np.ndarray, square: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def step(
        self, memory: Memory, params: np.ndarray, update: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        """Algorithm 2 of the paper."""
        first = self.beta_1 * memory["first"] + (1.0 - self.beta_1) * update
        second = self._second(memory["second"], update * update)
        move = self.step_size * first / (np.sqrt(second) + self.tau)
        return params + move, {"first": first, "second": second}


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(_Adaptive):
    """FedAdagrad, the cloud's Adagrad: v <- v + update^2; the paper uses beta_1 = 0."""

    beta_1: float = 0.0

    def _second(self, second: np.ndarray, square: np.ndarray) -> np.ndarray:
        return second + square


@dataclass(frozen=True, kw_only=True)
class FedAdam(_Adaptive):
    """FedAdam, the cloud's Adam: v <- beta_2 v + (1 - beta_2) update^2.

    beta_2: the decay rate of the average of the squared updates.
    """

    beta_2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.beta_2, name="beta_2", below=1.0)

    def _second(self, second: np.ndarray, square: np.ndarray) -> np.ndarray:
        return self.beta_2 * second + (1.0 - self.beta_2) * square


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedAdam):
    """FedYogi, the cloud's Yogi: v <- v - (1 - beta_2) update^2 sign(v - update^2)."""

    def _second(self, second: np.ndarray, square: np.ndarray) -> np.ndarray:
        return second - (1.0 - self.beta_2) * square * np.sign(second - square)


@lru_cache
def _state_type(inner: type, remembered: tuple[str, ...]) -> type:
    """The fields of the method inside, and what the cloud remembers."""
    own = [f"server_{name}" for name in remembered]
    names: Any = [*getattr(inner, "_fields"), *own]  # noqa: B009  (of a NamedTuple)
    made: Any = namedtuple(f"Served{inner.__name__}", names)
    made.inside = inner
    return made


@dataclass(frozen=True)
class Served(Around):
    """A method whose update goes through an optimiser of the cloud before it changes the model.

    algorithm: the method; its model must be a field `params` of its state.
    server: a `ServerOptimizer`, e.g. FedAdam().

    Entries of the model that are not trained, such as the running means of batch norm, are averaged
    as before.

    >>> from isfed import FedAvg
    >>> Served(FedAvg(step_size=0.1, num_active=6), FedAdam(step_size=0.01)).name
    'FedAvg, FedAdam'
    """

    server: ServerOptimizer

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.server, type) or not callable(getattr(self.server, "step", None)):
            raise TypeError(f"server={self.server!r} must be an optimiser, e.g. FedAdam()")

    @property
    def name(self) -> str:
        """Both names."""
        return f"{self.algorithm.name}, {getattr(self.server, 'name', type(self.server).__name__)}"

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        """The state of the method, and the cloud's memory."""
        inner = self.algorithm.start(agents, params)
        if getattr(inner, "params", None) is not self.algorithm.model(inner):
            raise TypeError(
                f"{self.algorithm.name} keeps more than one model; an optimiser of the cloud needs "
                "a method with one"
            )
        return self._join(inner, self.server.start(num_trained(agents)))

    def _join(self, inner: Any, memory: Memory) -> Any:
        return _state_type(type(inner), tuple(memory))(*inner, *memory.values())

    def _parts(self, state: Any) -> tuple[Any, Memory]:
        count = len(state.inside._fields)
        names = [name.removeprefix("server_") for name in state._fields[count:]]
        return state.inside(*state[:count]), dict(zip(names, state[count:], strict=True))

    def round(self, state: Any, agents: Agents, round_index: int) -> Any:
        """The round of the method, then the cloud's step by its update."""
        before = np.array(state.params)  # a round may write into the state that it is given
        inner, memory = self._parts(state)
        found = self.algorithm.round(inner, agents, round_index)
        trained = slice(0, num_trained(agents))
        params = np.array(found.params)
        update = params[trained] - before[trained]
        params[trained], memory = self.server.step(memory, before[trained], update)
        return self._join(found._replace(params=params), memory)

    def model(self, state: Any) -> np.ndarray:
        """The cloud's model."""
        return state.params

    def agent_prob(self, state: Any, num_agents: int) -> np.ndarray:
        """(K,) p_k of the next round; empty for a method without."""
        return super().agent_prob(self._parts(state)[0], num_agents)
