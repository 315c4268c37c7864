"""The agents of a federation as one object: what an algorithm asks them, and what it costs.

An algorithm talks to `Agents` and does not know where they are: compiled or as objects in this
process, as PyTorch models, or on other machines. What crosses is counted here, never by the method.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from isfed.base.streams import NO_AGENT, Purpose, Stream, stream_key
from isfed.federation.clock import Clock, Speeds, Times
from isfed.federation.turn import StepRule
from isfed.problems import Problem


class Turns(NamedTuple):
    """Who works in a round, from which model, and with which step size.

    agents: (n,) whole numbers, each agent at most once.
    params: (M,) one model for all, or (n, M) one for each.
    step: (n,) the step size of each turn, weights and divisions included.
    """

    agents: np.ndarray
    params: np.ndarray
    step: np.ndarray


class Uploads(NamedTuple):
    """What comes back, in the order of the turns.

    changes: (n, M) local model minus the one it was sent.
    scores: (n,) what the agents report for the cloud's policy; zero if it asks for nothing.
    gradients: (n,) example gradients computed.
    watch: (n, 4) telemetry of the turns, see `isfed.sampling.telemetry`.
    velocity: (n, M) momentum at the end of the turn; (n, 0) without momentum.
    """

    changes: np.ndarray
    scores: np.ndarray
    gradients: np.ndarray
    watch: np.ndarray
    velocity: np.ndarray


@dataclass(frozen=True, eq=False)
class Local:
    """How an agent steps; everything off is a plain step of mini-batch gradient descent.

    steps: (n,) local steps of every turn; None for the problem's `local_steps`.
    prox: weight of the pull (x - w) towards the model that was sent.
    momentum: of the heavy ball, or of Nesterov's form with `nesterov`.
    full_batch: all examples in every step.
    correction: (n, M) vectors added to every gradient of a turn.
    velocity: (n, M) momentum at the start of the turn; zero unless given.
    shift: (M,) how far the true model has drifted.
    timed: whether these turns make one synchronous round of the virtual clock; a method with a
        schedule of its own says no and calls `elapse`.
    silent: whether the agents go on from where they are, so that nothing is sent down or up.
    """

    steps: np.ndarray | None = None
    prox: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    full_batch: bool = False
    correction: np.ndarray | None = None
    velocity: np.ndarray | None = None
    shift: np.ndarray | None = None
    timed: bool = True
    silent: bool = False

    @cached_property
    def rule(self) -> StepRule:
        """The same as numbers, for compiled code."""
        corrected = self.correction is not None
        return StepRule(
            float(self.prox), float(self.momentum), self.nesterov, corrected, self.full_batch
        )


PLAIN_LOCAL = Local()


@dataclass
class Ledger:
    """What a run has cost so far.

    Models, scalars and bytes cross between cloud and agents; gradients and forward passes are
    counted in examples; seconds are those of the virtual clock.
    """

    models_down: int = 0
    models_up: int = 0
    scalars_down: int = 0
    scalars_up: int = 0
    gradients: int = 0
    forwards: int = 0
    seconds: float = 0.0

    def bytes_up(self, num_params: int) -> int:
        """Eight bytes for every number sent up."""
        return 8 * (self.models_up * num_params + self.scalars_up)

    def bytes_down(self, num_params: int) -> int:
        """Eight bytes for every number sent down."""
        return 8 * (self.models_down * num_params + self.scalars_down)

    def as_array(self) -> np.ndarray:
        """All entries, in the order of the fields."""
        return np.array([getattr(self, field.name) for field in fields(self)], np.float64)

    @classmethod
    def from_array(cls, values: np.ndarray) -> Ledger:
        """What `as_array` wrote."""
        ledger = cls()
        for field, value in zip(fields(cls), values.tolist(), strict=True):
            setattr(ledger, field.name, type(field.default)(value))
        return ledger


class Agents(Protocol):
    """All the agents of one repetition, wherever they are."""

    ledger: Ledger

    @property
    def num_agents(self) -> int:
        """K."""
        ...

    @property
    def num_params(self) -> int:
        """M."""
        ...

    @property
    def sizes(self) -> np.ndarray:
        """(K,) N_k."""
        ...

    @property
    def local_steps(self) -> np.ndarray:
        """(K,) E_k."""
        ...

    @property
    def batch_size(self) -> np.ndarray:
        """(K,) B_k."""
        ...

    @property
    def optimum(self) -> np.ndarray:
        """(M,) w^o, for the oracle; an error where it is not known."""
        ...

    def key(self, purpose: Purpose) -> np.uint64:
        """The key of this repetition's random numbers for a purpose."""
        ...

    def stream(self, purpose: Purpose, round_index: int, agent: int = NO_AGENT) -> Stream:
        """Random numbers by address: the same whatever else was drawn."""
        ...

    def work(self, turns: Turns, round_index: int, local: Local = PLAIN_LOCAL) -> Uploads:
        """One turn of every agent named."""
        ...

    def losses(self, which: np.ndarray, params: np.ndarray) -> np.ndarray:
        """(n,) the risk of each of these agents at a model, (M,) or (n, M), from all its data."""
        ...

    def gradients(self, which: np.ndarray, params: np.ndarray) -> np.ndarray:
        """(n, M) the gradients of their risks, from all their data."""
        ...

    def scores_at(
        self, params: np.ndarray, shift: np.ndarray | None = None, *, charge: bool = True
    ) -> np.ndarray:
        """(K,) every agent's score of eq. (48) at a model, from all its data."""
        ...

    def example_prob(self, params: np.ndarray, shift: np.ndarray | None = None) -> np.ndarray:
        """(rows,) p_n of every example, agent by agent, as the next turn would start from."""
        ...

    @property
    def clock(self) -> Clock:
        """How fast the agents are."""
        ...

    def use_clock(self, clock: Clock) -> None:
        """Charge virtual seconds from now on."""
        ...

    def times(self, which: np.ndarray, examples: np.ndarray, round_index: int | None) -> Times:
        """What turns of that many example gradients take: in a round, or as expected for None."""
        ...

    def answers(self, which: np.ndarray, round_index: int) -> np.ndarray:
        """(n,) whether each of these agents answers in a round."""
        ...

    def elapse(self, seconds: float) -> None:
        """Let time pass, for a method with a schedule of its own."""
        ...

    def cross(
        self,
        *,
        models_down: int = 0,
        models_up: int = 0,
        scalars_down: int = 0,
        scalars_up: int = 0,
    ) -> None:
        """Messages beyond one model down and one change up for every turn."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """What the next round needs."""
        ...

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state."""
        ...


class AddressedAgents:
    """What all agents in this process share: keys, and the book-keeping of what crosses."""

    def __init__(self, problem: Problem, *, seed: int, repetition: int) -> None:
        self.problem = problem
        self.ledger = Ledger()
        self.num_agents = problem.num_agents
        self.num_params = problem.num_params
        self.sizes = problem.data.num_examples
        self.local_steps, self.batch_size = problem.local_steps, problem.batch_size
        self.keys = {p: stream_key(seed, repetition=repetition, purpose=p) for p in Purpose}
        self.clock = Clock()
        self.timed = False  # whether turns are charged in virtual seconds

    def use_clock(self, clock: Clock) -> None:
        """Charge virtual seconds from now on."""
        self.clock, self.timed = clock, True
        self.__dict__.pop("speeds", None)

    @cached_property
    def speeds(self) -> Speeds:
        """How fast every agent is."""
        return self.clock.speeds(self.keys[Purpose.SPEEDS], self.num_agents)

    def times(self, which: np.ndarray, examples: np.ndarray, round_index: int | None) -> Times:
        """What turns of that many example gradients take: in a round, or as expected for None."""
        times = self.clock.times(self.speeds, which, examples, self.num_params)
        if round_index is None:
            return times
        return self.clock.delayed(times, which, self.keys[Purpose.DELAYS], round_index)

    def answers(self, which: np.ndarray, round_index: int) -> np.ndarray:
        """(n,) whether each of these agents answers in a round."""
        return self.clock.answers(which, self.keys[Purpose.DELAYS], round_index)

    def elapse(self, seconds: float) -> None:
        """Let time pass, for a method with a schedule of its own."""
        if self.timed:
            self.ledger.seconds += seconds

    def cross(
        self,
        *,
        models_down: int = 0,
        models_up: int = 0,
        scalars_down: int = 0,
        scalars_up: int = 0,
    ) -> None:
        """Messages beyond one model down and one change up for every turn."""
        ledger = self.ledger
        ledger.models_down += models_down
        ledger.models_up += models_up
        ledger.scalars_down += scalars_down
        ledger.scalars_up += scalars_up

    def tick(
        self, which: np.ndarray, gradients: np.ndarray, round_index: int, local: Local
    ) -> None:
        """A synchronous round lasts as long as its slowest turn."""
        if self.timed and local.timed and which.size:
            times = self.times(which, gradients, round_index)
            self.ledger.seconds += float((times.compute if local.silent else times.total).max())

    def charge_asked(self, which: np.ndarray, *, gradients: bool) -> None:
        """All examples of these agents: gradients, one vector up each, or risks, one number up."""
        ledger, examples = self.ledger, self.sizes[which]
        if gradients:
            ledger.gradients += int(examples.sum())
            ledger.models_up += which.size
        else:
            ledger.forwards += int(examples.sum())
            ledger.scalars_up += which.size
        if self.timed and which.size:
            # A forward pass is about a third of a gradient.
            times = self.times(which, examples if gradients else examples / 3.0, None)
            ledger.seconds += float(times.total.max())

    @property
    def optimum(self) -> np.ndarray:
        """(M,) w^o."""
        return self.problem.optimum

    def key(self, purpose: Purpose) -> np.uint64:
        """The key of this repetition's random numbers for a purpose."""
        return self.keys[purpose]

    def stream(self, purpose: Purpose, round_index: int, agent: int = NO_AGENT) -> Stream:
        """Random numbers by address: the same whatever else was drawn."""
        return Stream.at(self.keys[purpose], round_index=round_index, agent=agent)

    def charge_turns(
        self, count: int, gradients: int, *, scored: bool, silent: bool = False
    ) -> None:
        """A model and a probability down, a change and perhaps a score up, for every turn."""
        ledger = self.ledger
        ledger.gradients += gradients
        if silent:
            return
        ledger.models_down += count
        ledger.models_up += count
        ledger.scalars_down += count
        ledger.scalars_up += count if scored else 0

    def charge_everybody(self) -> None:
        """A model down to every agent, all its gradients, and one number up."""
        ledger = self.ledger
        ledger.models_down += self.num_agents
        ledger.scalars_up += self.num_agents
        ledger.gradients += int(self.sizes.sum())
