"""A method around another: the same rounds with the step size or the cloud's move changed.

Around a method made of parts it is the same composition with one part changed. Around a method with
rounds of its own it wraps these rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from isfed.federation.agents import Agents
from isfed.methods.federated import Federated
from isfed.methods.local_steps import step_at
from isfed.methods.method_protocol import Composed, Forwarding
from isfed.methods.servers import Add, as_server, name_of


def layers(method: Any, inside: str = "algorithm") -> Iterator[Any]:
    """A method, or another part, the one inside it if it is around another, and so on."""
    while method is not None:
        yield method
        method = getattr(method, inside, None)


def at_step_size(method: Any, step_size: float) -> Any:
    """The same method with another step size, wherever it keeps that.

    Args:
        method: a record with a `step_size`, a method around one, or a `Federated`.
        step_size: the new one.
    """
    inside = method.local if isinstance(method, Federated) else getattr(method, "algorithm", None)
    if inside is None:
        return replace(method, step_size=step_size)
    place = "local" if isinstance(method, Federated) else "algorithm"
    return replace(method, **{place: at_step_size(inside, step_size)})


@dataclass(frozen=True)
class Around(Forwarding, Composed):
    """What all methods around another share: they are like it unless they say otherwise."""

    algorithm: Any
    inside: ClassVar[str] = "algorithm"
    forwarded: ClassVar[tuple[str, ...]] = (
        "num_active", "agents", "examples", "agent_design", "example_design", "full_batch", "drift",
        "client_weights", "check_rounds",
    )  # fmt: skip

    def __post_init__(self) -> None:
        # An array can be rounded too, but it cannot start.
        if not all(callable(getattr(self.algorithm, name, None)) for name in ("start", "round")):
            raise TypeError(f"algorithm={self.algorithm!r} must be an algorithm, e.g. FedAvg(...)")

    def changed(self, inside: Federated) -> Federated | None:
        """The parts of the method inside with one of them changed; None if they cannot be."""
        raise NotImplementedError

    @cached_property
    def federated(self) -> Federated | None:  # type: ignore[override]
        """The parts; None around rounds that are not made of parts."""
        inside = getattr(self.algorithm, "federated", None)
        return None if inside is None else self.changed(inside)

    @cached_property
    def _runs(self) -> Any:
        return self.federated or self.algorithm

    def round(self, state: Any, agents: Agents, round_index: int) -> Any:
        run = self.federated.round if self.federated else self.changed_round
        return run(state, agents, round_index)

    def changed_round(self, state: Any, agents: Agents, round_index: int) -> Any:
        """A round of a method whose parts cannot be changed."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return self.algorithm.name

    @property
    def step_size(self) -> Any:
        """That of the method inside; nan if it has none."""
        return getattr(self.algorithm, "step_size", np.nan)


@dataclass(frozen=True)
class Scheduled(Around):
    """A method whose step size changes from round to round.

    Args:
        algorithm: the method; its own step size is not used.
        schedule: from the number of a round, beginning with 0, to its step size.

    Examples:
        >>> from isfed import FedAvg
        >>> fedavg = FedAvg(step_size=0.1, num_active=6)
        >>> halved = Scheduled(fedavg, lambda i: 0.1 * 0.5 ** (i // 100))
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
        return step_at(self.schedule, 0)

    def at(self, round_index: int) -> Any:
        """The method with the step size of a round."""
        return replace(self.algorithm, step_size=step_at(self.schedule, round_index))

    def check_rounds(self, rounds: int) -> None:
        """Raise a ValueError for a schedule that ends before the last round does."""
        for i in range(rounds):
            step_at(self.schedule, i)

    def changed(self, inside: Federated) -> Federated:
        step = self._decayed if callable(inside.local.step_size) else self.schedule
        local = replace(inside.local, step_size=step)
        sampler = inside.sampler
        if hasattr(sampler, "local"):  # it reads how agents step, too
            sampler = replace(sampler, local=local)
        return replace(inside, sampler=sampler, local=local)

    def _decayed(self, round_index: int) -> float:
        """The step size of a round of a method that has a schedule of its own as well."""
        return self.at(round_index).federated.local.at(round_index)

    @cached_property
    def _runs(self) -> Any:
        return self.federated or self.at(0)

    def changed_round(self, state: Any, agents: Agents, round_index: int) -> Any:
        return self.at(round_index).round(state, agents, round_index)


class ServedState(NamedTuple):
    """The states of the method and of the server."""

    inside: Any
    server: Any


@dataclass(frozen=True)
class Served(Around):
    """A method whose step goes through a server before it changes the model.

    Entries of the model that are not trained, such as the running means of batch norm, are averaged
    as before.

    Args:
        algorithm: the method; its model must be a field `params` of its state.
        server: an optimiser of the cloud, e.g. FedAdam() or Average(LookAhead(FedAdam())).

    Examples:
        >>> from isfed import FedAdam, FedAvg
        >>> Served(FedAvg(step_size=0.1, num_active=6), FedAdam(step_size=0.01)).name
        'FedAvg, FedAdam'
    """

    server: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "server", as_server(self.server))

    @property
    def name(self) -> str:
        """Both names."""
        return f"{self.algorithm.name}, {name_of(self.server)}".removesuffix(", ")

    def changed(self, inside: Federated) -> Federated | None:
        # A method with a server of its own keeps that, inside its rounds.
        return replace(inside, server=self.server) if type(inside.server) is Add else None

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        inside = super().start(agents, params)
        if self.federated:
            return inside
        if getattr(inside, "params", None) is not self.algorithm.model(inside):
            reason = "keeps more than one model, and a server moves one: leave Served out"
            if getattr(self.algorithm, "federated", None):
                reason = (
                    "has a server that shows another model than it moves: give the method without "
                    "it one server for both, e.g. Served(FedAvg(...), Average(FedAdam()))"
                )
            raise TypeError(f"{self.algorithm.name} {reason}")
        num_active = getattr(self.algorithm, "num_active", agents.num_agents)
        trained = params[: agents.facts().num_trained]
        return ServedState(inside, self.server.init(trained, agents.num_agents / num_active))

    def changed_round(self, state: Any, agents: Agents, round_index: int) -> Any:
        """The change of the model is a step for the server."""
        trained, before = agents.facts().num_trained, state.inside.params
        sent = np.array(self.server.send(state.server, before))
        # The round is given a copy, because it may write into its state.
        inside = self.algorithm.round(
            state.inside._replace(params=sent.copy()), agents, round_index
        )
        params = np.array(inside.params)
        step = params[:trained] - sent[:trained]
        params[:trained], server = self.server.move(state.server, before[:trained], step)
        return ServedState(inside._replace(params=params), server)

    def model(self, state: Any) -> np.ndarray:
        if self.federated:
            return self.federated.model(state)
        return self.server.show(state.server, state.inside.params)

    def agent_prob(self, state: Any, num_agents: int) -> np.ndarray:
        return super().agent_prob(state if self.federated else state.inside, num_agents)
