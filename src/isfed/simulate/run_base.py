"""What the engines share: a run between two chunks of rounds, and the history that it leaves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from isfed.federation.ledger import ENTRIES
from isfed.problems import Problem
from isfed.simulate.run_history import History, Measured
from isfed.theory.stable_step_size import with_step_size

MOST_PROBABILITIES = 20_000_000  # numbers of example probabilities kept in a history


def kept_repetitions(repetitions: int, rows: int) -> int:
    """Of how many repetitions a history keeps the probabilities of all examples."""
    return min(repetitions, max(1, MOST_PROBABILITIES // rows))


class Block(NamedTuple):
    """What some rounds of all repetitions showed.

    Attributes:
        msd: (R, rounds) squared distance to the w^o of the method's objective; from zero where it
            is not known.
        watched: (R, rounds, columns) telemetry.
    """

    msd: np.ndarray
    watched: np.ndarray


class Run:
    """All repetitions of a method between two chunks of rounds: the kernel, or over agents."""

    params: Any  # (R, M) the models as they stand

    def __init__(
        self, problem: Problem, algorithm: Any, repetitions: int | range, initial: np.ndarray
    ) -> None:
        self.problem = problem
        self.objective = problem  # the problem whose w^o the msd is measured from
        self.algorithm: Any = with_step_size(problem, algorithm, initial=initial)
        self.repetitions = repetitions if isinstance(repetitions, range) else range(repetitions)
        self.round_index = 0  # of the next round
        self.diverged = False
        self.whole = True  # false while a chunk runs: then the state must not be saved
        self.trouble = ""  # what the agents say about a model that diverged

    @property
    def step_size(self) -> float:
        """The step size used; nan for a method without one."""
        return float(getattr(self.algorithm, "step_size", np.nan))

    def compile(self) -> None:
        """Compile what the rounds need, or load it, without running one."""

    def advance(self, num_rounds: int) -> Block:
        """Run the next rounds; fewer than asked for if a model diverged."""
        raise NotImplementedError

    def state(self) -> dict[str, np.ndarray]:
        """What the next round needs."""
        raise NotImplementedError

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state; a ValueError or KeyError if it does not fit."""
        raise NotImplementedError

    def ledgers(self) -> np.ndarray:
        """(R, entries) what every repetition has cost so far, see `Ledger`."""
        raise NotImplementedError

    def agent_prob(self, place: int) -> np.ndarray:
        """(K,) p_k of a repetition now; empty for a method without."""
        raise NotImplementedError

    def example_prob(self, place: int) -> np.ndarray:
        """(rows,) p_n of a repetition now."""
        raise NotImplementedError

    def history(self, block: Block, measured: Measured | None = None) -> History:
        """What happened, given the msd and telemetry of all rounds and what was measured."""
        ledgers, count = self.ledgers(), len(self.repetitions)
        kept = kept_repetitions(count, len(self.problem.data.targets))
        return History(
            msd=block.msd,
            params=self.params.copy(),
            agent_prob=np.array([self.agent_prob(place) for place in range(count)]),
            example_prob=np.array([self.example_prob(place) for place in range(kept)]),
            gradients=ledgers[:, ENTRIES.index("gradients")].astype(np.int64),
            uploads=ledgers[:, ENTRIES.index("models_up")].astype(np.int64),
            step_size=self.step_size,
            telemetry=block.watched,
            ledgers=ledgers,
            no_msd=self.objective.no_optimum,
            **({} if measured is None else measured.fields()),
        )
