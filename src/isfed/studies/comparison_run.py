"""FedAvg against a challenger: the search for their step sizes, their runs, their folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from isfed.studies.executors import Executor, Progress, Workers
from isfed.studies.held_out_error import Kept, qualities
from isfed.studies.name_registry import write_algorithm
from isfed.studies.problem_sources import FileSource, Given, ProblemSource
from isfed.studies.results_reader import StepSearch
from isfed.studies.study_engine import NoStepError, Outcome, Search, Study, search_step_size
from isfed.studies.work_cells import CellStore, Finished, problem_of
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
class WithExcess(ProblemSource):
    """A source whose runs are measured by their excess loss."""

    source: ProblemSource
    every: int

    def make(self) -> Problem:
        """As that of the source."""
        return problem_of(self.source)[0]

    def measure(self, problem: Problem) -> Excess:
        """The excess loss."""
        return Excess(problem, problem.risk(problem.optimum), self.every)


@dataclass(frozen=True, eq=False)
class ComparisonStudy(Study):
    """What is compared: FedAvg and a challenger, each at its best step size."""

    name: str
    source: ProblemSource
    budget: Budget
    challenger: Any = None  # ISFedAvg with memory
    kind: ClassVar[str] = "comparison"

    rounds = property(lambda self: self.budget.rounds)
    repetitions = property(lambda self: self.budget.repetitions)
    seed = property(lambda self: self.budget.seed)

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

    def check(self) -> None:
        """Raise a ValueError for what cannot be run."""
        problem, _ = problem_of(self.source)
        for algorithm in self.algorithms.values():
            check_run(problem, algorithm, self.rounds, self.repetitions)

    def outcome(self, executor: Executor) -> Outcome:
        """Compare, and add what is known of rows held out and of theory."""
        comparison, results = self.compared(executor)
        curves = (comparison.fedavg, comparison.isfedavg)
        problem, _ = problem_of(self.source)
        flat = nothing_to_learn(problem.data.targets)
        models = {name: r.history.params.mean(axis=0).tolist() for name, r in results.items()}
        gains = [gain if np.isfinite(gain) else None for gain in comparison.gain_db]
        outcome = self.summarised(
            results,
            verdict=f"Importance sampling buys nothing here: {flat}"
            if flat
            else comparison.verdict(),
            buys=comparison.buys and not flat,
            optimum_risk=comparison.optimum_risk,
            level=comparison.level,
            step_sizes={c.name: StepSearch(c.step_size, c.tried).as_dict() for c in curves},
            model_bytes=comparison.model_bytes,
            gain_in_loss_db=gains[0],
            gain_in_loss_stderr_db=gains[1],
            held_out=self.held_out(executor, curves),
            predicted=self.predicted(curves),
            models=models,
            **account_of(self.source),
        )
        rows = outcome.summary["algorithms"]
        for row, more, curve in zip(rows, comparison.rows(), curves, strict=True):
            row |= more | curve.change.as_dict()
        return outcome

    def compared(self, executor: Executor) -> tuple[Comparison, dict[str, Finished]]:
        """Tune and run both algorithms."""
        problem, _ = problem_of(self.source)
        pairs = [self._curve(executor, name, a) for name, a in self.algorithms.items()]
        (fedavg, other), results = zip(*pairs, strict=True)
        size = problem.num_params * np.dtype(np.float64).itemsize
        comparison = Comparison(fedavg, other, problem.risk(problem.optimum), size)
        return comparison, dict(zip(self.algorithms, results, strict=True))

    def held_out(self, executor: Executor, curves: Sequence[Curve]) -> dict[str, Any] | None:
        """How well both do on rows and agents that they were not trained on; None if not known."""
        problem, _ = problem_of(self.source)
        if not isinstance(problem.loss, LinearLoss):
            return None
        kept = Kept(self.source, self.seed)
        try:
            num_active = min(self.budget.num_active, problem_of(kept)[0].num_agents)
        except ValueError:  # a class that only agents have that are held out
            return None
        held_out = {}
        for curve in curves:
            title = f"{curve.name}, held out"
            changes = {"step_size": curve.step_size, "num_active": num_active}
            cells = executor.cells(
                curve.name, f"held out {curve.name} {curve.step_size!r}",
                self._tuning_repetitions, 2, source=kept,
                algorithm=replace(self.algorithms[curve.name], **changes), rounds=self.rounds,
                seed=self.seed, details=False,
            )  # fmt: skip
            result = executor.run({title: cells}, title, warn=False)[title]
            if not result.diverged:
                held_out[curve.name] = qualities(problem, result.history.params, self.seed)
        return held_out

    def predicted(self, curves: Sequence[Curve]) -> dict[str, float] | None:
        """The gain in the loss that theory expects: at one small step, and at these steps."""
        problem, _ = problem_of(self.source)
        start = np.zeros(problem.num_params)
        if problem.num_params > MOST_PREDICTED:
            return None
        methods = [replace(self.algorithms[c.name], step_size=c.step_size) for c in curves]
        try:
            # `diagnose` compares with the challenger that draws uniformly, not with FedAvg.
            methods.append(replace(methods[-1], agents=Uniform(), examples=Uniform()))
            predictions = [predict(problem, method) for method in methods]
        except (TheoryError, ValueError, AttributeError, TypeError):
            return None  # a loss or a method of the user's own
        excess = [prediction.excess(self.rounds, start) for prediction in predictions[:2]]
        distance, loss = zip(*(_per_move(prediction) for prediction in predictions), strict=True)
        pairs = {
            "diagnosed_db": [distance[2], distance[1]],
            "distance_db": distance[:2], "loss_db": loss[:2], "these_steps_db": excess,
        }  # fmt: skip
        if not all(np.isfinite(pair).all() and min(pair) > 0.0 for pair in pairs.values()):
            return None
        return {name: 10.0 * float(np.log10(a / b)) for name, (a, b) in pairs.items()}

    @property
    def _tuning_repetitions(self) -> int:
        return max(2, self.budget.tuning_repetitions)

    @property
    def _measured(self) -> WithExcess:
        return WithExcess(self.source, max(1, self.rounds // self.budget.records))

    def _search(self, executor: Executor, name: str, algorithm: Any) -> StepSearch:
        """Factors of 2 around one over the mean curvature, until the best is inside."""
        problem, _ = problem_of(self.source)
        curvature = inner(problem.data.row_weights(), problem.loss.curvature(problem.data.features))
        search = Search(
            source=self._measured, grid=[float(2.0**power / curvature) for power in FIRST_POWERS],
            rounds=self.rounds, repetitions=self._tuning_repetitions,
            seed=self.seed + TUNING_SEED, share=FINAL_SHARE, widen=MOST_WIDER,
        )  # fmt: skip
        return search_step_size(executor, name, algorithm, search)

    def _run(self, executor: Executor, name: str, algorithm: Any, step: float) -> Finished:
        title = f"{name}, step {step:.3g}"
        cells = executor.cells(
            name, f"algorithm {name} {step!r}", self.repetitions, 2, source=self._measured,
            algorithm=replace(algorithm, step_size=step), rounds=self.rounds, seed=self.seed,
        )  # fmt: skip
        return executor.run({title: cells})[title]

    def _curve(self, executor: Executor, name: str, algorithm: Any) -> tuple[Curve, Finished]:
        search = self._search(executor, name, algorithm)
        tried, best = dict(search.losses), search.best
        while (result := self._run(executor, name, algorithm, best)).diverged:
            # Rare, because it did not diverge while tuning: the next smaller step is the best then.
            tried[best] = np.inf
            smaller = [step for step in tried if step < best]
            if not smaller:
                raise NoStepError(result.diverged)
            best = max(smaller)
        history = result.history
        curve = Curve(
            name=name,
            step_size=best,
            tried=tried,
            rounds=history.measured_rounds,
            excess=history.measured["excess"],
            gradients=float(history.gradients.mean() / self.rounds),
            uploads=float(history.uploads.mean() / self.rounds),
        )
        return curve, result


def compare(
    problem: Problem,
    budget: Budget,
    *,
    challenger: Any = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare FedAvg with a challenger, each at its own best step size.

    Args:
        problem: what is learned.
        budget: how long and how often to run.
        challenger: an algorithm; ISFedAvg with memory unless given.
        workers: where to run; in this process unless given.
        progress: is informed of the work as it goes.
    """
    study = ComparisonStudy("comparison", Given(problem), budget, challenger)
    study.check()
    workers = workers or Workers()
    with workers.opened() as jobs:
        return study.compared(Executor(workers, jobs, CellStore(), progress))[0]


def account_of(source: ProblemSource) -> dict[str, Any]:
    """What became of the user's table, if it is one."""
    if not isinstance(source, FileSource):
        return {}
    account = source.table().account
    return {"data": account.lines(), "account": account.as_dict()}


def _per_move(prediction: Prediction) -> tuple[float, float]:
    """What remains at a small step size, in the distance and in the loss, over how far it moves.

    Without 1/E_k a model moves E_k times as far at the same step size, along all directions.
    """
    curved = prediction.curvature > FLAT * prediction.curvature[-1]
    noise, curvature = prediction.noise, prediction.curvature
    each = np.divide(noise, curvature, out=np.zeros_like(noise), where=curved)
    move = prediction.curvature.sum() / np.trace(prediction.risk)
    return float(each.sum() / move), float(np.diag(prediction.risk) @ each / move)
