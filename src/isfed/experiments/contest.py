"""FedAvg against a challenger: the search for their step sizes, their runs, their folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from isfed.algorithms import FedAvg, ISFedAvg
from isfed.experiments.cells import Finished, Shelf, cells_of, problem_of
from isfed.experiments.comparison import FINAL_SHARE, Budget, Comparison, Curve
from isfed.experiments.folder import Configured
from isfed.experiments.keys import write_table
from isfed.experiments.registry import write_algorithm
from isfed.experiments.results import Results, StepSearch
from isfed.experiments.runner import Outcome, run_study
from isfed.experiments.sources import Given, ProblemSource
from isfed.experiments.steps import NoStepError, Search, search_step_size
from isfed.experiments.summary import summarise, tables_of, times_of
from isfed.experiments.workers import Crew, Progress, Workers
from isfed.problems import Problem
from isfed.simulate.run import check_run

FIRST_POWERS = range(-6, 1)  # of 2, times one over the mean curvature: the first step sizes
MOST_WIDER = 10  # more step sizes at each end, if the best is there
TUNING_SEED = 1_000_003  # added to the seed: the step size is not chosen on the runs that count


@dataclass
class Excess:
    """P(w_i) - P(w^o), measured along a run."""

    problem: Problem
    least: float
    every: int
    names: tuple[str, ...] = ("excess",)

    def __call__(self, params: np.ndarray) -> np.ndarray:
        """The excess of every model, (R, 1)."""
        with np.errstate(over="ignore"):  # on the way to divergence
            return np.array([[self.problem.risk(model) - self.least] for model in params])


@dataclass(frozen=True)
class WithExcess:
    """A source whose runs are measured by their excess loss."""

    source: ProblemSource
    every: int

    def make(self) -> Problem:
        """As that of the source."""
        return problem_of(self.source)[0]

    def measure(self, problem: Problem) -> Excess:
        """The excess loss."""
        return Excess(problem, problem.risk(problem.optimum), self.every)

    def describe(self) -> dict[str, Any]:
        """As that of the source."""
        return self.source.describe()


@dataclass(frozen=True, eq=False)
class Rivalry(Configured):
    """What is compared: FedAvg and a challenger, each at its best step size."""

    name: str
    source: ProblemSource
    budget: Budget
    challenger: Any = None  # ISFedAvg with memory
    kind: ClassVar[str] = "comparison"

    @property
    def algorithms(self) -> dict[str, Any]:
        """Both, at a step size that means nothing yet."""
        fedavg = FedAvg(step_size=1.0, num_active=self.budget.num_active)
        other = self.challenger or ISFedAvg(step_size=1.0, num_active=self.budget.num_active)
        return {fedavg.name: fedavg, other.name: other}

    @property
    def resolved(self) -> dict[str, Any]:
        """All that decides about the results."""
        tables = [write_algorithm(name, a) for name, a in self.algorithms.items()]
        for table in tables:
            table.pop("step_size", None)  # it is searched for
        budget = write_table(vars(self.budget))
        return {
            "name": self.name, **budget, "problem": self.source.describe(), "algorithm": tables,
        }  # fmt: skip


def compare(
    problem: Problem,
    budget: Budget,
    *,
    challenger: Any = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """FedAvg against `challenger` (ISFedAvg with memory), each at its own best step size."""
    rivalry = Rivalry("comparison", Given(problem), budget, challenger)
    _check(rivalry)
    workers = workers or Workers()
    with workers.opened() as jobs:
        return _Contest(rivalry, Crew(workers, jobs, Shelf(), progress)).comparison()


def run_comparison(rivalry: Rivalry, folder: Path, **options: Any) -> Results:
    """The same into a results folder; `options` are those of `run_study`."""
    _check(rivalry)

    def study(crew: Crew) -> Outcome:
        contest = _Contest(rivalry, crew)
        comparison = contest.comparison()
        budget = rivalry.budget
        summary = summarise(
            rivalry.name, rivalry.source, contest.found,
            rounds=budget.rounds, repetitions=budget.repetitions,
        )  # fmt: skip
        curves = (comparison.fedavg, comparison.isfedavg)
        for row, more, curve in zip(summary["algorithms"], comparison.rows(), curves, strict=True):
            found = curve.settling
            row |= {
                **more, "settled": found.settled, "change_db": found.change_db,
                "change_stderr_db": found.stderr_db,
            }  # fmt: skip
        summary |= {
            "verdict": comparison.verdict(),
            "buys": comparison.buys,
            "optimum_risk": comparison.optimum_risk,
            "level": comparison.level,
            "step_sizes": {c.name: StepSearch(c.step_size, c.tried).as_dict() for c in curves},
        }
        return Outcome(tables_of(contest.found), summary, times_of(contest.found))

    return run_study(rivalry, folder, study, **options)


def _check(rivalry: Rivalry) -> None:
    problem, _ = problem_of(rivalry.source)
    for algorithm in rivalry.algorithms.values():
        check_run(problem, algorithm, rivalry.budget.rounds, rivalry.budget.repetitions)


@dataclass
class _Contest:
    """Tunes both algorithms and runs them."""

    rivalry: Rivalry
    crew: Crew
    found: dict[str, Finished] = field(default_factory=dict)

    def comparison(self) -> Comparison:
        problem, _ = problem_of(self.rivalry.source)
        curves = [self._curve(name, a) for name, a in self.rivalry.algorithms.items()]
        return Comparison(curves[0], curves[1], problem.risk(problem.optimum))

    @property
    def _measured(self) -> WithExcess:
        budget = self.rivalry.budget
        return WithExcess(self.rivalry.source, max(1, budget.rounds // budget.records))

    def _search(self, name: str, algorithm: Any) -> StepSearch:
        """Factors of 2 around one over the mean curvature, until the best is inside."""
        problem, _ = problem_of(self.rivalry.source)
        curvature = problem.data.row_weights() @ problem.loss.curvature(problem.data.features)
        budget = self.rivalry.budget
        search = Search(
            source=self._measured, grid=[float(2.0**power / curvature) for power in FIRST_POWERS],
            rounds=budget.rounds, repetitions=max(2, budget.tuning_repetitions),
            seed=budget.seed + TUNING_SEED, share=FINAL_SHARE, widen=MOST_WIDER,
        )  # fmt: skip
        return search_step_size(self.crew, name, algorithm, search)

    def _run(self, name: str, algorithm: Any, step: float) -> Finished:
        budget = self.rivalry.budget
        title = f"{name}, step {step:.3g}"
        cells = cells_of(
            name, f"algorithm {name} {step!r}", budget.repetitions, self.crew.shelf,
            self.crew.block(budget.repetitions, 2), source=self._measured,
            algorithm=replace(algorithm, step_size=step), rounds=budget.rounds, seed=budget.seed,
        )  # fmt: skip
        return self.crew.run({title: cells})[title]

    def _curve(self, name: str, algorithm: Any) -> Curve:
        budget = self.rivalry.budget
        search = self._search(name, algorithm)
        tried, best = dict(search.losses), search.best
        while (result := self._run(name, algorithm, best)).diverged:
            # Rare, because it did not diverge while tuning: the next smaller step is the best then.
            tried[best] = np.inf
            smaller = [step for step in tried if step < best]
            if not smaller:
                raise NoStepError(result.diverged)
            best = max(smaller)
        self.found[name] = result
        history = result.history
        return Curve(
            name=name,
            step_size=best,
            tried=tried,
            rounds=history.measured_rounds,
            excess=history.measured["excess"],
            gradients=float(history.gradients.mean() / budget.rounds),
            uploads=float(history.uploads.mean() / budget.rounds),
        )
