"""FedAvg against a challenger: the search for their step sizes, their runs, their folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from isfed.base.portable_arithmetic import inner
from isfed.methods import FedAvg, ISFedAvg
from isfed.problems import Problem
from isfed.problems.losses import LinearLoss
from isfed.sampling.policies import Uniform
from isfed.simulate.simulate_call import check_run
from isfed.studies.comparison import FINAL_SHARE, Budget, Comparison, Curve
from isfed.studies.config_schema import write_table
from isfed.studies.executors import Crew, Progress, Workers
from isfed.studies.experiment_runner import Outcome, run_study
from isfed.studies.held_out_error import Kept, qualities
from isfed.studies.name_registry import write_algorithm
from isfed.studies.problem_sources import FileSource, Given, ProblemSource
from isfed.studies.results_folder import Configured
from isfed.studies.results_reader import Results, StepSearch
from isfed.studies.results_summary import summarise, tables_of, times_of
from isfed.studies.step_size_search import NoStepError, Search, search_step_size
from isfed.studies.work_cells import Finished, Shelf, cells_of, problem_of
from isfed.theory.diagnosis import nothing_to_learn
from isfed.theory.msd_prediction import Prediction, predict
from isfed.theory.probabilities import TheoryError

FIRST_POWERS = range(-6, 1)  # of 2, times one over the mean curvature: the first step sizes
MOST_WIDER = 10  # more step sizes at each end, if the best is there
MOST_PREDICTED = 400  # parameters: beyond, the eigenvectors of the Hessian would take long
FLAT = 1e-12  # of the largest curvature: below, rounding
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
    """Compare FedAvg with a challenger, each at its own best step size.

    problem: what is learned.
    budget: how long and how often to run.
    challenger: an algorithm; ISFedAvg with memory unless given.
    workers: where to run; in this process unless given.
    progress: is told about the work as it goes.
    """
    rivalry = Rivalry("comparison", Given(problem), budget, challenger)
    check(rivalry)
    workers = workers or Workers()
    with workers.opened() as jobs:
        return _Contest(rivalry, Crew(workers, jobs, Shelf(), progress)).comparison()


def run_comparison(rivalry: Rivalry, folder: Path, **options: Any) -> Results:
    """The same into a results folder; `options` are those of `run_study`."""
    check(rivalry)

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
        flat = nothing_to_learn(problem_of(rivalry.source)[0].data.targets)
        summary |= {
            "verdict": f"Importance sampling buys nothing here: {flat}"
            if flat
            else comparison.verdict(),
            "buys": comparison.buys and not flat,
            "optimum_risk": comparison.optimum_risk,
            "level": comparison.level,
            "step_sizes": {c.name: StepSearch(c.step_size, c.tried).as_dict() for c in curves},
            "model_bytes": comparison.model_bytes,
            "gain_in_loss_db": _number(comparison.gain_db[0]),
            "gain_in_loss_stderr_db": _number(comparison.gain_db[1]),
            "held_out": contest.held_out(curves),
            "predicted": contest.predicted(curves),
            "models": {
                name: result.history.params.mean(axis=0).tolist()
                for name, result in contest.found.items()
            },
        } | account_of(rivalry.source)
        return Outcome(tables_of(contest.found), summary, times_of(contest.found))

    return run_study(rivalry, folder, study, **options)


def account_of(source: ProblemSource) -> dict[str, Any]:
    """What became of the user's table, if it is one."""
    if not isinstance(source, FileSource):
        return {}
    account = source.table().account
    return {"data": account.lines(), "account": account.as_dict()}


def _per_move(found: Prediction) -> tuple[float, float]:
    """What remains at a small step size, in the distance and in the loss, over how far it moves.

    Without 1/E_k a model moves E_k times as far at the same step size, along all directions.
    """
    curved = found.curvature > FLAT * found.curvature[-1]
    each = np.divide(found.noise, found.curvature, out=np.zeros_like(found.noise), where=curved)
    move = found.curvature.sum() / np.trace(found.risk)
    return float(each.sum() / move), float(np.diag(found.risk) @ each / move)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def check(rivalry: Rivalry) -> None:
    """Raise a ValueError for what cannot be run."""
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
        size = problem.num_params * np.dtype(np.float64).itemsize
        return Comparison(curves[0], curves[1], problem.risk(problem.optimum), size)

    def held_out(self, curves: Sequence[Curve]) -> dict[str, Any] | None:
        """How well both do on rows and agents that they were not trained on; None if not known."""
        problem, _ = problem_of(self.rivalry.source)
        if not isinstance(problem.loss, LinearLoss):
            return None
        budget, algorithms = self.rivalry.budget, self.rivalry.algorithms
        kept = Kept(self.rivalry.source, budget.seed)
        try:
            num_active = min(budget.num_active, problem_of(kept)[0].num_agents)
        except ValueError:  # a class that only agents have that are held out
            return None
        found = {}
        for curve in curves:
            algorithm = replace(
                algorithms[curve.name], step_size=curve.step_size, num_active=num_active
            )
            repetitions = max(2, budget.tuning_repetitions)
            title = f"{curve.name}, held out"
            cells = cells_of(
                curve.name, f"held out {curve.name} {curve.step_size!r}", repetitions,
                self.crew.shelf, self.crew.block(repetitions, 2), source=kept,
                algorithm=algorithm, rounds=budget.rounds, seed=budget.seed, details=False,
            )  # fmt: skip
            result = self.crew.run({title: cells}, title, warn=False)[title]
            if not result.diverged:
                found[curve.name] = qualities(problem, result.history.params, budget.seed)
        return found

    def predicted(self, curves: Sequence[Curve]) -> dict[str, float] | None:
        """The gain in the loss that theory expects: at one small step, and at these steps."""
        problem, _ = problem_of(self.rivalry.source)
        start = np.zeros(problem.num_params)
        if problem.num_params > MOST_PREDICTED:
            return None
        ways = [replace(self.rivalry.algorithms[c.name], step_size=c.step_size) for c in curves]
        try:
            # `diagnose` compares with the challenger that draws uniformly, not with FedAvg.
            ways.append(replace(ways[-1], agents=Uniform(), examples=Uniform()))
            found = [predict(problem, way) for way in ways]
        except (TheoryError, ValueError, AttributeError, TypeError):
            return None  # a loss or a method of the user's own
        rounds = self.rivalry.budget.rounds
        excess = [prediction.excess(rounds, start) for prediction in found[:2]]
        distance, loss = zip(*(_per_move(prediction) for prediction in found), strict=True)
        pairs = {
            "diagnosed_db": [distance[2], distance[1]],
            "distance_db": distance[:2], "loss_db": loss[:2], "these_steps_db": excess,
        }  # fmt: skip
        if not all(np.isfinite(pair).all() and min(pair) > 0.0 for pair in pairs.values()):
            return None
        return {name: 10.0 * float(np.log10(a / b)) for name, (a, b) in pairs.items()}

    @property
    def _measured(self) -> WithExcess:
        budget = self.rivalry.budget
        return WithExcess(self.rivalry.source, max(1, budget.rounds // budget.records))

    def _search(self, name: str, algorithm: Any) -> StepSearch:
        """Factors of 2 around one over the mean curvature, until the best is inside."""
        problem, _ = problem_of(self.rivalry.source)
        curvature = inner(problem.data.row_weights(), problem.loss.curvature(problem.data.features))
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
