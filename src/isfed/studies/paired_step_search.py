"""The best step size of a way and of its average, found from the same runs.

Runs end alike in chance (paired seeds), only their last tenth is measured, and most runs go to
the step sizes between which it is hard to tell (successive halving).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from isfed.problems import Problem
from isfed.studies.comparison import FINAL_SHARE, TAIL_LOOKS, Budget, Curve
from isfed.studies.executors import Executor
from isfed.studies.problem_sources import ProblemSource
from isfed.studies.study_engine import NoStepError, last_part
from isfed.studies.work_cells import problem_of
from isfed.theory.budget_levels import FACTOR

MOST_WIDER = 12  # more step sizes at each end, a factor 2 apart, if the best is there
RECORDS = Budget(num_active=1).records  # of a run that is measured all along
CLOSE = 1.25  # times the least loss: step sizes nearer than that are tried again


@dataclass
class Excess:
    """P(w_i) - P(w^o), measured along a run."""

    problem: Problem
    every: int
    begin: int = 0
    names: tuple[str, ...] = ("excess",)

    def __call__(self, params: np.ndarray) -> np.ndarray:
        """The excess of every model, (R, 1)."""
        with np.errstate(over="ignore", invalid="ignore"):  # on the way to divergence
            return (self.problem.risks(params) - self._least)[:, None]

    @cached_property
    def _least(self) -> float:
        return self.problem.risk(self.problem.optimum)


@dataclass
class ExcessOfBoth(Excess):
    """The same of the average that a run shows and of the model that it sends."""

    names: tuple[str, ...] = ("averaged", "last")

    def of_both(self, shown: np.ndarray, current: np.ndarray) -> np.ndarray:
        """(R, 2)."""
        return np.hstack([self(shown), self(current)])


@dataclass(frozen=True)
class WithExcess(ProblemSource):
    """A source whose runs are measured by their excess loss: all along, or at the end only."""

    source: ProblemSource
    every: int
    begin: int | None = None

    def make(self) -> Problem:
        """As that of the source."""
        return problem_of(self.source)[0]

    def measure(self, problem: Problem) -> Excess:
        """The excess loss."""
        if self.begin is None:
            return Excess(problem, self.every)
        return ExcessOfBoth(problem, self.every, self.begin)


@dataclass(frozen=True, eq=False)
class PairedSearch:
    """The search for the step sizes of one way.

    Args:
        executor: where to run.
        name: of the way.
        algorithm: what runs; it shows its average if that is looked for too.
        shown: the names of what is looked for: the last model, and perhaps the average.
        source: of the problem.
        rounds: of a run.
        seed: of the runs.
        runs: with step sizes that are close to the best; half as many with the others.
        guesses: where the best step size of each of `shown` is thought to be.
    """

    executor: Executor
    name: str
    algorithm: Any
    shown: Sequence[str]
    source: ProblemSource
    rounds: int
    seed: int
    runs: int
    guesses: Sequence[float]
    known: dict[int, np.ndarray] = field(default_factory=dict)  # (runs, shown) the final losses
    along: dict[int, tuple[np.ndarray, list[np.ndarray]]] = field(default_factory=dict)

    def losses(self) -> dict[str, dict[float, float]]:
        """The mean final loss of every step size that was tried, for each of `shown`."""
        few, columns = max(1, self.runs // 2), range(len(self.shown))
        first = [round(math.log(guess / self.guesses[0], FACTOR)) for guess in self.guesses]
        self._run([place + side for place in first for side in (-2, 0, 2)], few)
        for column in columns:
            for side in (-2, 2):
                self._widen(column, side, few)
        for _ in range(MOST_WIDER):  # what was best by luck is not when it has run more often
            before = [self._best(c) for c in columns]
            self._run([place + side for place in before for side in (-1, 0, 1)], few)
            self._run([place for c in columns for place in self._close(c)], self.runs)
            if before == [self._best(c) for c in columns]:
                break
        if not math.isfinite(self._loss(self._best(0), 0)):
            steps = [self._step(place) for place in (min(self.known), max(self.known))]
            raise NoStepError(
                f"{self.name} diverged at every step size from {steps[0]:.2g} to {steps[1]:.2g}; "
                "are the features standardised?"
            )
        return {
            name: {self._step(place): self._loss(place, column) for place in sorted(self.known)}
            for column, name in enumerate(self.shown)
        }

    def measured(self, runs: int) -> dict[str, Curve]:
        """The best step size for each of `shown`, and the losses along so many runs with it."""
        self.losses()
        found = {}
        for column, name in enumerate(self.shown):
            self._run([self._best(column)], runs, RECORDS)
            best = self._best(column)
            self._run([best], runs, RECORDS)
            rounds, losses = self.along[best]
            found[name] = Curve(name, self._step(best), {}, rounds, losses[column], 0.0, 1.0)
        return found

    def _step(self, place: int) -> float:
        return float(self.guesses[0] * FACTOR**place)

    def _loss(self, place: int, column: int) -> float:
        return float(self.known[place][:, column].mean())

    def _best(self, column: int) -> int:
        return min(sorted(self.known), key=lambda place: self._loss(place, column))

    def _widen(self, column: int, side: int, runs: int) -> None:
        """More step sizes at one end while the best is there."""
        for _ in range(MOST_WIDER):
            edge = min(self.known) if side < 0 else max(self.known)
            if self._best(column) != edge:
                return
            self._run([edge + side], runs)

    def _close(self, column: int) -> list[int]:
        """The best and the next, if it is hard to tell which is better."""
        best = self._best(column)
        near = [p for p in (best - 1, best + 1) if p in self.known]
        other = min(near, key=lambda place: self._loss(place, column), default=best)
        close = self._loss(other, column) <= CLOSE * self._loss(best, column)
        return [best, other] if close and other != best else []

    def _run(self, places: Sequence[int], runs: int, records: int = 0) -> None:
        """Run these step sizes; the loss is measured at the end only, or so often along the run."""
        new = [p for p in dict.fromkeys(places) if p not in self.known or len(self.known[p]) < runs]
        tail = max(1, round((1.0 - FINAL_SHARE) * self.rounds))
        source = WithExcess(self.source, max(1, (self.rounds - tail) // TAIL_LOOKS), tail)
        kind = "steps"
        if records:
            source = WithExcess(self.source, max(1, self.rounds // records), 0)
            kind = "steps, all along,"
        groups = {
            f"{self.name}, step {place}": self.executor.cells(
                self.name, f"{kind} {self.name} {place}", runs, len(new), source=source,
                algorithm=replace(self.algorithm, step_size=self._step(place)), rounds=self.rounds,
                seed=self.seed, details=False,
            )
            for place in new
        }  # fmt: skip
        if not groups:
            return
        found = self.executor.run(groups, f"{self.name}, step sizes", warn=False)
        for place, result in zip(new, found.values(), strict=True):
            measured = result.history.measured
            both = len(self.shown) > 1
            columns = [measured["last"]] * both + [measured["averaged"]]
            self.along[place] = result.history.measured_rounds, columns
            share = FINAL_SHARE if records else 1.0
            last = np.stack([last_part(c, share).mean(axis=1) for c in columns], axis=1)
            bad = result.diverged or not np.isfinite(last).all()
            self.known[place] = np.full((runs, len(self.shown)), np.inf) if bad else last
