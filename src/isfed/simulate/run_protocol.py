"""What every engine offers the driver."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from isfed.problems import Problem
from isfed.simulate.run_history import History, Measured


class Block(NamedTuple):
    """What some rounds of all repetitions showed.

    msd: (R, rounds) squared distance to the w^o of the method's objective; from zero where it is
        not known.
    watched: (R, rounds, columns) telemetry.
    """

    msd: np.ndarray
    watched: np.ndarray


class Run(Protocol):
    """A run between two chunks of rounds: the fused kernel, or rounds over agents."""

    problem: Problem
    algorithm: Any
    round_index: int  # of the next round
    diverged: bool
    whole: bool  # false while a chunk runs: then the state must not be saved

    @property
    def params(self) -> np.ndarray:
        """(R, M) the models as they stand."""
        ...

    @property
    def step_size(self) -> float:
        """The step size used."""
        ...

    def compile(self) -> None:
        """Compile what the rounds need, or load it, without running one."""
        ...

    def advance(self, num_rounds: int) -> Block:
        """Run the next rounds; fewer than asked for if a model diverged."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """What the next round needs."""
        ...

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state; a ValueError or KeyError if it does not fit."""
        ...

    def ledgers(self) -> np.ndarray:
        """(R, entries) what every repetition has cost so far, see `Ledger`."""
        ...

    def history(self, block: Block, measured: Measured | None = None) -> History:
        """What happened, given the msd and telemetry of all rounds and what was measured."""
        ...
