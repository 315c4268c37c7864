"""Methods at one common step size, and each again at its own best one, found on rows held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from isfed.problems import Problem
from isfed.simulate import Measure
from isfed.studies.executors import Crew
from isfed.studies.experiment_config import Experiment
from isfed.studies.experiment_runner import (
    Outcome,
    checked_problem,
    outcome_of,
    run_algorithms,
    run_study,
)
from isfed.studies.name_registry import write_algorithm
from isfed.studies.results_folder import Configured
from isfed.studies.results_reader import Results, StepSearch
from isfed.studies.step_size_search import Search, search_step_size
from isfed.studies.test_measures import ErrorRates
from isfed.studies.work_cells import Finished, problem_of

LAST_SHARE = 0.25  # of the measurements, whose mean decides on a step size


class HoldingSource(Protocol):
    """A source of a problem that can hold rows out."""

    @property
    def held_out(self) -> bool:
        """Whether rows are held out."""
        ...

    def make(self) -> Problem:
        """The problem, without the rows held out if `held_out`."""
        ...

    def measure(self, problem: Problem) -> ErrorRates:
        """What to measure along the way."""
        ...

    def held_out_loss(self, problem: Problem) -> Measure:
        """The loss on the rows held out."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the configuration says of the problem."""
        ...


@dataclass(frozen=True)
class HeldOut:
    """The same source with rows held out, and the loss on them."""

    source: Any  # a HoldingSource

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

    def describe(self) -> dict[str, Any]:
        """As that of the source."""
        return {**self.source.describe(), "held_out": True}


@dataclass(frozen=True)
class Tuned(Configured):
    """Methods at one common step size, and each again at its own best one from a grid."""

    name: str
    source: HoldingSource
    methods: dict[str, Any]  # at the common step size; the first is the reference
    grid: Sequence[float]
    rounds: int = 3000
    repetitions: int = 20
    seed: int = 0
    grid_rounds: int = 1500
    grid_repetitions: int = 4
    paper: Mapping[str, float] = field(default_factory=dict)  # its test error, by method
    kind: ClassVar[str] = "tuned"

    @property
    def resolved(self) -> dict[str, Any]:
        """All that decides about the results; the step sizes chosen follow from it."""
        return {
            "name": self.name,
            "rounds": self.rounds,
            "repetitions": self.repetitions,
            "seed": self.seed,
            "problem": self.source.describe(),
            "step_sizes": {
                "grid": list(self.grid),
                "rounds": self.grid_rounds,
                "repetitions": self.grid_repetitions,
            },
            "algorithm": [write_algorithm(name, a) for name, a in self.methods.items()],
        }

    def experiment(self, choices: Mapping[str, StepSearch]) -> Experiment:
        """All methods at the common step size, then all at their best."""
        algorithms = dict(self.methods)
        for name, choice in choices.items():
            best = replace(self.methods[name], step_size=choice.best)
            algorithms[f"{name}, best step {choice.best:g}"] = best
        return Experiment(
            self.name, self.source, algorithms, self.rounds, self.repetitions, self.seed,
            self.resolved,
        )  # fmt: skip


def run_tuned(tuned: Tuned, folder: Path, **options: Any) -> Results:
    """Choose the step sizes and run; `options` are those of `run_study`."""
    checked_problem(tuned.experiment({}))

    def study(crew: Crew) -> Outcome:
        choices = {name: _choose(tuned, crew, name) for name in tuned.methods}
        experiment = tuned.experiment(choices)
        known = _landmarks_with_progress(tuned, crew)
        found = run_algorithms(experiment, crew)
        for name in tuned.methods.keys() & tuned.paper.keys():
            first, for_good = passage(found[name], tuned.paper[name])
            known |= {"passage_round": first, "below_for_good_round": for_good}
        more = {
            "common_step_size": next(iter(tuned.methods.values())).step_size,
            "landmarks": known | {"paper_test_error": dict(tuned.paper)},
            "step_sizes": {name: choice.as_dict() for name, choice in choices.items()},
        }
        return outcome_of(experiment, found, more)

    return run_study(tuned, folder, study, **options)


def _choose(tuned: Tuned, crew: Crew, name: str) -> StepSearch:
    search = Search(
        source=HeldOut(tuned.source), grid=tuned.grid, rounds=tuned.grid_rounds,
        repetitions=tuned.grid_repetitions, seed=tuned.seed, share=LAST_SHARE,
    )  # fmt: skip
    return search_step_size(crew, name, tuned.methods[name], search)


def _landmarks_with_progress(tuned: Tuned, crew: Crew) -> dict[str, Any]:
    """Finding w^o may take a while: somebody waits for it."""
    if crew.progress is not None:
        crew.progress.begin("the minimiser w^o", 1, 0)
    problem, measure = problem_of(tuned.source)
    known = landmarks(problem, measure)  # type: ignore[arg-type]  (a HoldingSource has one)
    if crew.progress is not None:
        crew.progress.advance(1)
    return known


def landmarks(problem: Problem, measure: ErrorRates) -> dict[str, Any]:
    """What a good error is: that of w^o itself and that of always naming the majority."""
    error, balanced = measure(problem.optimum[None])[0]
    return {
        "optimum_test_error": float(error),
        "optimum_balanced_error": float(balanced),
        "majority_test_error": measure.majority_error(),
    }


def passage(result: Finished, level: float) -> tuple[int, int] | tuple[None, None]:
    """The measured rounds at which the mean test error first falls to a level, and for good.

    At the start every row is called negative, which errs little where positives are rare: the
    passage is the one after the error's peak, and there is none where the peak is lower.
    """
    errors = result.history.measured[ErrorRates.names[0]].mean(axis=0)
    above = np.flatnonzero(errors > level)
    if not above.size or above[-1] == errors.size - 1:
        return None, None
    peak = int(errors.argmax())
    first = peak + np.flatnonzero(errors[peak:] <= level)[0]
    rounds = result.history.measured_rounds
    return int(rounds[first]), int(rounds[above[-1] + 1])
