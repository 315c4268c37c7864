"""`[step_sizes]`: every method at its best step of a grid, by the loss on held-out rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
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
from isfed.studies.study_engine import NoStepError, ending
from isfed.studies.test_measures import HeldOutLoss
from isfed.studies.work_cells import problem_of

MEASUREMENTS = 20  # of the loss, along a trial
FACTOR = 2.0  # between a step size beyond the edge and the edge
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
        own: whether what the study measures itself decides, on all rows, in place of a loss on
            held-out rows.
        close: seeds with which the best two step sizes run again, where it is hard to tell.
    """

    grid: tuple[float, ...]
    rounds: int | None = None
    repetitions: int = 4
    widen: int = 2
    seed: int | None = None
    again: bool | None = None
    own: bool | None = None
    close: tuple[int, ...] | None = None

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
        if self.own or hasattr(source, "held_out"):
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
        self, executor: Executor, task: Any, methods: Mapping[str, Any], *, seed: int
    ) -> tuple[dict[str, Any], dict[str, StepSearch]]:
        """Methods of a task at their best step sizes, and the searches that found these."""
        source, rounds = task.source, self.rounds or max(1, task.rounds // 2)
        held: Any = HeldRows(source, seed, max(1, rounds // MEASUREMENTS))
        if hasattr(source, "held_out"):  # it has test rows, and others to hold out
            held = replace(source, held_out=True)
        run: dict[str, Any] = {"source": held, "share": LAST_SHARE}
        if self.own:
            run = {"source": source, "share": task.share, "level": task.level}
            run |= task.start_and_clock
        run |= {"rounds": rounds, "seed": seed + (self.seed or 0)}
        searches = {
            name: search_step_size(executor, f"{task.title}{name}", method, self, **run)
            for name, method in methods.items()
        }
        best = {name: at_step_size(methods[name], found.best) for name, found in searches.items()}
        return best, searches


def search_step_size(
    executor: Executor, name: str, algorithm: Any, grid: StepGrid, *, share: float, level: str = "",
    **run: Any,
) -> StepSearch:  # fmt: skip
    """Run every step size of the grid and keep the one of least loss at the end.

    Args:
        executor: where to run.
        name: of the algorithm.
        algorithm: what runs.
        grid: the step sizes, and how often each runs.
        share: of the measurements, the last ones, whose mean is the loss.
        level: the measurement that decides; the first unless given.
        run: what the cells are given: source, rounds, seed and others.
    """

    def tried(steps: Sequence[float], seed: int | None = None) -> dict[float, float]:
        """The loss at every step size, with the seed of the search or another; inf: it diverged."""
        other = {} if seed is None else {"seed": seed}
        groups = {
            f"{name}, step {step!r}": executor.cells(
                name, f"steps {name} {step!r}{f', seed {seed}' if other else ''}",
                grid.repetitions, len(steps), algorithm=at_step_size(algorithm, step),
                details=False, **{**run, **other},
            )
            for step in steps
        }  # fmt: skip
        results = executor.run(groups, f"{name}, step sizes", warn=False)
        return {
            step: math.inf if result.diverged else float(ending(result, share, level).mean())
            for step, result in zip(steps, results.values(), strict=True)
        }

    losses = tried(grid.grid)
    for grow, edge in ((1.0 / FACTOR, min(losses)), (FACTOR, max(losses))):
        for _ in range(grid.widen):
            if StepSearch.of(losses).best != edge:
                break
            edge *= grow
            losses |= tried([edge])
    if grid.close:
        best = sorted(losses, key=lambda step: losses[step])[:2]
        runs = [losses, *(tried(best, seed) for seed in grid.close)]
        losses = {step: float(np.mean([run[step] for run in runs])) for step in best}
    choice = StepSearch.of(losses)
    if not math.isfinite(losses[choice.best]):
        raise NoStepError(
            f"{name} diverged at every step size from {min(losses):.2g} to {max(losses):.2g}; are "
            "the features standardised?"
        )
    return choice


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
