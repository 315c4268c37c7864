"""Servers: what the cloud sends, how its model moves by the step of a round, and what it shows.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan, "Adaptive Federated
Optimization" (ICLR 2021), arXiv 2003.00295: FedAdagrad, FedAdam and FedYogi of its algorithm 2.
Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution" (2019), arXiv
1909.06335: FedAvgM, the cloud's momentum.
Kim, Kim and Han, "Communication-Efficient Federated Learning with Accelerated Client Gradient"
(CVPR 2024), arXiv 2201.03172: FedACG, which is `LookAhead` around momentum.
Rakhlin, Shamir and Sridharan, "Making Gradient Descent Optimal for Strongly Convex Stochastic
Optimization" (ICML 2012): the average over the last half of the rounds.
Shamir and Zhang, "Stochastic Gradient Descent for Non-smooth Optimization" (ICML 2013): the weights
with which the average over a pass begins.
"""

from __future__ import annotations

import warnings
from collections import namedtuple
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import numpy as np

from isfed.base.argument_checks import check_positive
from isfed.methods.iterate_average import BLOCKS, add_model, write_mean
from isfed.methods.method_protocol import BelowOne, NotNegative, check_record

SERVER = ("init", "send", "move", "show")  # what a server can do


class Server(Protocol):
    """What the cloud sends, how its model moves, and which model it shows."""

    def init(self, params: np.ndarray, rounds_per_pass: float) -> Any:
        """The state before the first round, from the trained part of the model and from K / L."""
        ...

    def send(self, state: Any, params: np.ndarray) -> np.ndarray:
        """(M,) the model that the agents start from."""
        ...

    def move(self, state: Any, params: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, Any]:
        """(M',) the trained part of the model after a step, and the new state.

        The step is relative to the model that was sent.
        """
        ...

    def show(self, state: Any, params: np.ndarray) -> np.ndarray:
        """(M,) the model that is measured, evaluated and saved."""
        ...


@dataclass(frozen=True)
class Add(Server):
    """The plain server: it sends and shows its model, adds the step to it, and keeps nothing."""

    def __post_init__(self) -> None:
        check_record(self)

    def init(self, params: np.ndarray, rounds_per_pass: float = np.inf) -> Any:
        return ()

    def send(self, state: Any, params: np.ndarray) -> np.ndarray:
        return params

    def move(self, state: Any, params: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, Any]:
        return params + step, state

    def show(self, state: Any, params: np.ndarray) -> np.ndarray:
        return params


class MomentumState(NamedTuple):
    """What momentum keeps."""

    velocity: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ServerMomentum(Add):
    """FedAvgM, momentum at the cloud: v <- momentum v + step, w <- w + step_size v.

    Args:
        step_size: the step size of the cloud; 1 takes the round's step as it is.
        momentum: at least 0 and below 1.
    """

    step_size: NotNegative = 1.0
    momentum: BelowOne = 0.9

    def init(self, params: np.ndarray, rounds_per_pass: float = np.inf) -> MomentumState:
        return MomentumState(np.zeros(params.size))

    def move(self, state, params, step) -> tuple[np.ndarray, MomentumState]:
        velocity = self.momentum * state.velocity + step
        return params + self.step_size * velocity, MomentumState(velocity)


class MomentsState(NamedTuple):
    """The averages of the steps and of their squares."""

    first: np.ndarray
    second: np.ndarray


@dataclass(frozen=True, kw_only=True)
class _Adaptive(Add):
    """m <- beta_1 m + (1 - beta_1) step, w <- w + step_size m / (sqrt(v) + tau).

    Args:
        step_size: eta of the paper.
        beta_1: the decay rate of the average of the steps.
        tau: how adaptive it is; v starts at tau^2.
    """

    step_size: NotNegative = 0.1
    beta_1: BelowOne = 0.9
    tau: Annotated[float, check_positive] = 1e-3

    def init(self, params: np.ndarray, rounds_per_pass: float = np.inf) -> MomentsState:
        return MomentsState(np.zeros(params.size), np.full(params.size, self.tau**2))

    def _second(self, second: np.ndarray, square: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def move(self, state, params, step) -> tuple[np.ndarray, MomentsState]:
        first = self.beta_1 * state.first + (1.0 - self.beta_1) * step
        second = self._second(state.second, step * step)
        move = self.step_size * first / (np.sqrt(second) + self.tau)
        return params + move, MomentsState(first, second)


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(_Adaptive):
    """FedAdagrad, the cloud's Adagrad: v <- v + step^2; the paper uses beta_1 = 0."""

    beta_1: BelowOne = 0.0

    def _second(self, second: np.ndarray, square: np.ndarray) -> np.ndarray:
        return second + square


@dataclass(frozen=True, kw_only=True)
class FedAdam(_Adaptive):
    """FedAdam, the cloud's Adam: v <- beta_2 v + (1 - beta_2) step^2.

    Args:
        beta_2: the decay rate of the average of the squared steps.
    """

    beta_2: BelowOne = 0.99

    def _second(self, second: np.ndarray, square: np.ndarray) -> np.ndarray:
        return self.beta_2 * second + (1.0 - self.beta_2) * square


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedAdam):
    """FedYogi, the cloud's Yogi: v <- v - (1 - beta_2) step^2 sign(v - step^2)."""

    def _second(self, second: np.ndarray, square: np.ndarray) -> np.ndarray:
        return second - (1.0 - self.beta_2) * square * np.sign(second - square)


class LookAheadState(NamedTuple):
    """What the server inside keeps, and how it last moved the model."""

    server: Any
    last: np.ndarray


@dataclass(frozen=True)
class ServerAround(Server):
    """A server around another, whose state is in `server` of its own state: it sends and shows
    the same unless it says otherwise."""

    server: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "server", as_server(self.server))
        check_record(self)

    def send(self, state: Any, params: np.ndarray) -> np.ndarray:
        return self.server.send(state.server, params)

    def show(self, state: Any, params: np.ndarray) -> np.ndarray:
        return self.server.show(state.server, params)


@dataclass(frozen=True)
class LookAhead(ServerAround):
    """A server whose agents start ahead of its model: at w + reach x (its last move).

    That is about where its momentum will carry the model anyway, as Nesterov's gradients are taken.
    Nothing more is sent. Around `ServerMomentum` it is FedACG without its proximal term.

    Args:
        server: any server with momentum, e.g. FedAdam().
        reach: above 0 and below 1; the server's own `momentum` or `beta_1` unless given.

    Examples:
        >>> from isfed import FedAdam
        >>> LookAhead(FedAdam()).ahead
        0.9
    """

    reach: BelowOne | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ahead:
            raise ValueError(
                f"LookAhead around {name_of(self.server)} has no momentum to look ahead by; give "
                "reach, or a server with momentum, e.g. FedAdam()"
            )

    @property
    def ahead(self) -> float:
        """The share of the last move by which agents start ahead; 0 without any momentum."""
        if self.reach is not None:
            return self.reach
        return getattr(self.server, "momentum", getattr(self.server, "beta_1", 0.0))

    @property
    def name(self) -> str:
        return f"look-ahead {name_of(self.server)}".rstrip()

    def init(self, params: np.ndarray, rounds_per_pass: float = np.inf) -> LookAheadState:
        return LookAheadState(self.server.init(params, rounds_per_pass), np.zeros(params.size))

    def send(self, state: LookAheadState, params: np.ndarray) -> np.ndarray:
        sent = np.array(self.server.send(state.server, params))
        sent[: state.last.size] += self.ahead * state.last
        return sent

    def move(self, state, params, step) -> tuple[np.ndarray, LookAheadState]:
        moved, server = self.server.move(state.server, params, step)
        return moved, LookAheadState(server, moved - params)


class AverageState(NamedTuple):
    """What the server inside keeps, and what the mean is made of."""

    server: Any
    sums: np.ndarray  # (BLOCKS, M') sums over successive rounds; or (1, M') the mean over a pass
    rounds: np.ndarray  # (1,) how many rounds were done
    longest: np.ndarray  # (1,) K / L, the rounds of a pass


@dataclass(frozen=True)
class Average(ServerAround):
    """A server that shows an average of its models; agents still start from the current one.

    Only the trained part is averaged: buffers, such as running means, are those of the current
    model. The last half is kept as 8 sums over blocks of rounds and begins where a block does: it
    is between a half and two thirds of all rounds. A pass is kept as one mean.

    Args:
        server: any server; one that adds the step unless given.
        window: over which rounds: "half", the last half of those done so far, or "pass", an
            exponential mean over about K / L rounds, or over 1 + t / 4 rounds while that is less.

    Examples:
        >>> from isfed import FedAdam
        >>> Average(LookAhead(FedAdam()), window="pass").name
        'look-ahead FedAdam, averaged'
    """

    server: Any = field(default_factory=Add)
    window: Literal["half", "pass"] = "half"

    @property
    def name(self) -> str:
        return f"{name_of(self.server)}, averaged".removeprefix(", ")

    def init(self, params: np.ndarray, rounds_per_pass: float = np.inf) -> AverageState:
        rows = BLOCKS if self.window == "half" else 1
        return AverageState(
            self.server.init(params, rounds_per_pass),
            np.zeros((rows, params.size)),
            np.zeros(1, np.int64),
            np.array([max(rounds_per_pass, 1.0)]),
        )

    def move(self, state, params, step) -> tuple[np.ndarray, AverageState]:
        moved, server = self.server.move(state.server, params, step)
        add_model(state.sums, int(state.rounds[0]), float(state.longest[0]), moved)
        return moved, AverageState(server, state.sums, state.rounds + 1, state.longest)

    def show(self, state: AverageState, params: np.ndarray) -> np.ndarray:
        shown = params.copy()
        if state.rounds[0]:
            write_mean(state.sums, int(state.rounds[0]), shown)
        return shown


def averaging(window: Any) -> Any:
    """The server for the `average` of a record: False, True or "half", or "pass"."""
    return Average(window="pass" if window == "pass" else "half") if window else Add()


def name_of(server: Any) -> str:
    """The name of a server in tables and figures; that which adds the step needs none."""
    return "" if type(server) is Add else getattr(server, "name", type(server).__name__)


def adds_steps(server: Any) -> bool:
    """Whether a server only adds the step of a round to its model, whatever it shows."""
    if isinstance(server, Average):
        return adds_steps(server.server)
    return type(server) is Add


@lru_cache
def _memory_type(names: tuple[str, ...]) -> Any:
    """A state with the names of what an optimiser of version 0.1 remembers."""
    return namedtuple("Memory", names)


@dataclass(frozen=True)
class AdaptedServer(Add):
    """An optimiser of version 0.1, with `start` and `step`, as a server, until version 0.4."""

    server: Any

    @property
    def name(self) -> str:
        return getattr(self.server, "name", type(self.server).__name__)

    def _state(self, memory: dict[str, np.ndarray]) -> Any:
        return _memory_type(tuple(memory))(**memory)

    def init(self, params: np.ndarray, rounds_per_pass: float = np.inf) -> Any:
        return self._state(self.server.start(params.size))

    def move(self, state: Any, params: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, Any]:
        moved, memory = self.server.step(state._asdict(), params, step)
        return moved, self._state(memory)


def as_server(server: Any) -> Any:
    """A server, also of an optimiser of version 0.1; a TypeError for anything else."""
    can = {name for name in (*SERVER, "start", "step") if callable(getattr(server, name, None))}
    if not isinstance(server, type):
        if can >= set(SERVER):
            return server
        if can >= {"start", "step"}:
            warnings.warn(
                f"{type(server).__name__} has start and step; from isfed 0.3 on a server has init, "
                "send, move and show, see docs/extend.md",
                DeprecationWarning,
                stacklevel=4,  # where the record is made that holds it
            )
            return AdaptedServer(server)
        if "move" in can:
            lacks = ", ".join(name for name in SERVER if name not in can)
            raise TypeError(f"server={server!r} lacks {lacks}; derive it from isfed.Add")
    raise TypeError(f"server={server!r} must be an optimiser of the cloud, e.g. FedAdam()")
