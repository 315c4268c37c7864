"""Servers around any server: agents start ahead of its model, or an average of its models is shown.

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
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from isfed.methods.federated import PARTS, Add, Server
from isfed.methods.method_protocol import BelowOne, check_record

NEEDED = PARTS["server"]  # what a server can do
BLOCKS = 8  # how many sums of models the average of the last half is made of


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
        sums, done = state.sums, int(state.rounds[0])
        if self.window == "pass":
            horizon = min(float(state.longest[0]), 1.0 + done / 4.0)
            sums[0] += (moved - sums[0]) / horizon
        else:
            length = block_length(done + 1)
            if done and length > block_length(done):  # all blocks are full: two become one
                sums[: BLOCKS // 2] = sums[0::2] + sums[1::2]
                sums[BLOCKS // 2 :] = 0.0
            sums[done // length] += moved
        return moved, AverageState(server, sums, state.rounds + 1, state.longest)

    def show(self, state: AverageState, params: np.ndarray) -> np.ndarray:
        done = int(state.rounds[0])
        if done == 0:
            return params.copy()
        mean = state.sums[0]
        if self.window == "half":
            length = block_length(done)
            first = done // (2 * length)  # the block in which the last half begins
            mean = state.sums[first:].sum(axis=0) / (done - first * length)
        return np.concatenate([mean, params[mean.size :]])


def block_length(rounds: int) -> int:
    """The rounds of a block: the least power of two with which `BLOCKS` blocks hold so many."""
    return 1 << (-(-rounds // BLOCKS) - 1).bit_length()


def name_of(server: Any) -> str:
    """The name of a server in tables and figures; that which adds the step needs none."""
    return "" if adds_steps(server) else getattr(server, "name", type(server).__name__)


def adds_steps(server: Any) -> bool:
    """Whether a server only adds the step of a round to its model, whatever it shows."""
    if isinstance(server, Average):
        return adds_steps(server.server)
    return type(server) is Add


class ServerOptimizer(Protocol):
    """What servers looked like in version 0.1; they are taken until version 0.3."""

    def start(self, size: int) -> dict[str, np.ndarray]:
        """What it remembers before the first round, of a model of that size."""
        ...

    def step(
        self, memory: dict[str, np.ndarray], params: np.ndarray, update: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The next model and memory, from the model and the update that was to be added to it."""
        ...


@lru_cache
def _memory_type(names: tuple[str, ...]) -> Any:
    """A state with the names of what an optimiser of version 0.1 remembers."""
    return namedtuple("Memory", names)


@dataclass(frozen=True)
class AdaptedServer(Add):
    """An optimiser of version 0.1, with `start` and `step`, as a server."""

    server: ServerOptimizer

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
    can = {name for name in (*NEEDED, "start", "step") if callable(getattr(server, name, None))}
    if not isinstance(server, type):
        if can >= set(NEEDED):
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
            lacks = ", ".join(name for name in NEEDED if name not in can)
            raise TypeError(f"server={server!r} lacks {lacks}; derive it from isfed.Add")
    raise TypeError(f"server={server!r} must be an optimiser of the cloud, e.g. FedAdam()")
