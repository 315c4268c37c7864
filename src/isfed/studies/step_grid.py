"""`[step_sizes]`: every method at its best step of a grid, by the loss on held-out rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isfed.base.argument_checks import check_whole
from isfed.methods.method_wrappers import at_step_size
from isfed.problems import Problem
from isfed.problems.losses import LinearLoss
from isfed.simulate import Measure
from isfed.studies.config_schema import ConfigError
from isfed.studies.executors import Executor
from isfed.studies.held_out_error import Kept, Split, split
from isfed.studies.problem_sources import ProblemSource
from isfed.studies.results_reader import StepSearch
from isfed.studies.study_engine import Search, search_step_size
from isfed.studies.test_measures import HeldOutLoss
from isfed.studies.work_cells import problem_of

MEASUREMENTS = 20  # of the loss, along a trial
LAST_SHARE = 0.25  # of the measurements, whose mean decides on a step size


@dataclass(frozen=True)
class StepGrid:
    """Which step sizes are tried for algorithms that give none, and how.

    Args:
        grid: step sizes above 0, in rising order.
        rounds: of every trial; half of those of the experiment unless given.
        repetitions: independent runs of every trial.
        widen: how often the grid may grow by a factor of two at each end, while the best is there.
        seed: added to that of the experiment, so that trials have draws of their own.
        again: whether algorithms with a step size run at that and again at the best of the grid.
    """

    grid: tuple[float, ...]
    rounds: int | None = None
    repetitions: int = 4
    widen: int = 2
    seed: int | None = None
    again: bool | None = None

    def __post_init__(self) -> None:
        steps = self.grid
        rising = all(a < b for a, b in itertools.pairwise(steps))
        if not (steps and rising and steps[0] > 0.0 and math.isfinite(steps[-1])):
            raise ValueError(f"grid={list(steps)} must be step sizes above 0, in rising order")
        if self.rounds is not None:
            check_whole(self.rounds, name="rounds", least=1)
        check_whole(self.repetitions, name="repetitions", least=1)
        check_whole(self.widen, name="widen", least=0)

    def check(self, problem: Problem, *, source: Any, seed: int) -> None:
        """Refuse a problem on which nothing can be held out."""
        if hasattr(source, "held_out"):
            return
        if not isinstance(problem.loss, LinearLoss):
            raise ConfigError(
                f"[step_sizes] needs a built-in loss, which {type(problem.loss).__name__} is not; "
                "give every [[algorithm]] its step_size"
            )
        if not len(HeldRows(source, seed, 1).rows[1]):
            raise ConfigError(
                "[step_sizes] holds out rows of agents with 7 or more rows, and there are none; "
                "give every [[algorithm]] its step_size"
            )

    def choose(
        self, executor: Executor, methods: Mapping[str, Any], *, source: Any, rounds: int, seed: int
    ) -> tuple[dict[str, Any], dict[str, StepSearch]]:
        """The methods at their best step sizes, and the searches that found these."""
        trial_rounds = self.rounds or max(1, rounds // 2)
        every = max(1, trial_rounds // MEASUREMENTS)
        own = hasattr(source, "held_out")  # the source has test rows, and others to hold out
        held = HeldOut(source) if own else HeldRows(source, seed, every)
        search = Search(
            source=held, grid=self.grid, rounds=trial_rounds, repetitions=self.repetitions,
            seed=seed + (self.seed or 0), share=LAST_SHARE, widen=self.widen,
        )  # fmt: skip
        searches = {
            name: search_step_size(executor, name, method, search)
            for name, method in methods.items()
        }
        best = {name: at_step_size(methods[name], found.best) for name, found in searches.items()}
        return best, searches


@dataclass(frozen=True)
class HeldOut(ProblemSource):
    """The same source with rows held out, and the loss on them."""

    source: Any  # has `held_out` and `held_out_loss`, as `Ijcnn1Source`

    @property
    def holding(self) -> Any:
        """The source that holds rows out."""
        return replace(self.source, held_out=True)

    def make(self) -> Problem:
        """The problem without the rows held out."""
        return self.holding.make()

    def measure(self, problem: Problem) -> Measure:
        """The loss on the rows held out."""
        return self.holding.held_out_loss(problem)


@dataclass(frozen=True)
class HeldRows(ProblemSource):
    """A source without rows held out, and the loss on them.

    The rows are others than those on which the experiment tests its models: these are taken out
    first, for a step size chosen on them would flatter the test.
    """

    source: ProblemSource
    seed: int
    every: int

    def _split(self) -> Split:
        rest, _ = problem_of(Kept(self.source, self.seed, agents=False))
        return split(rest, self.seed + 1, agents=False)

    @property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Features and targets of the rows that decide."""
        return self._split().rows

    def make(self) -> Problem:
        """The problem without all rows that are held out."""
        return self._split().training

    def measure(self, problem: Problem) -> Measure:
        """The loss on the rows that decide."""
        x, y = self.rows
        return HeldOutLoss(problem.loss, x, y, np.ones(len(y)), every=self.every)
