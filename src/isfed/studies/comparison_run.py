"""Ways to learn against FedAvg: the search for their step sizes, their runs, their folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from isfed.datasets.read_options import Reading
from isfed.problems import Problem
from isfed.problems.losses import LinearLoss, Logistic, Softmax
from isfed.simulate.simulate_call import check_run
from isfed.studies.comparison import Budget, Comparison, Curve
from isfed.studies.config_schema import write_table
from isfed.studies.executors import Executor, Progress, Workers
from isfed.studies.held_out_error import Kept, qualities, row_errors, split
from isfed.studies.name_registry import write_algorithm
from isfed.studies.paired_step_search import PairedSearch, WithExcess
from isfed.studies.problem_sources import FileSource, Given, ProblemSource
from isfed.studies.results_reader import StepSearch
from isfed.studies.results_summary import level_change
from isfed.studies.study_engine import NoStepError, Outcome, Study, mean_curvature
from isfed.studies.work_cells import CellStore, Finished, problem_of
from isfed.theory.budget_levels import TunedWay
from isfed.theory.diagnosis import nothing_to_learn
from isfed.theory.probabilities import TheoryError
from isfed.theory.tuned_ways import AVERAGED, BASE, predict_ways, ways_to_learn

NO_PREDICTION = 1.0 / 16.0  # of one over the mean curvature: where the search begins then
TUNING_SEED = 1_000_003  # added to the seed: the step size is not chosen on the runs that count


@dataclass(frozen=True, eq=False)
class ComparisonStudy(Study):
    """What is compared: ways to learn, each at its best step size."""

    name: str
    source: ProblemSource
    budget: Budget
    challenger: Any = None  # instead of the ways that are known
    kind: ClassVar[str] = "comparison"

    rounds = property(lambda self: self.budget.rounds)
    repetitions = property(lambda self: self.budget.repetitions)
    seed = property(lambda self: self.budget.seed)

    @cached_property
    def ways(self) -> dict[str, Any]:
        """Those that train differently, at a step size that means nothing yet."""
        problem, _ = problem_of(self.source)
        steps = int(problem.local_steps.max())
        ways = ways_to_learn(self.budget.num_active, local_steps=steps)
        if problem.data.weights is not None:  # with which control variates cannot run
            ways = {name: way for name, way in ways.items() if way.memory is None}
        if self.challenger is not None:
            ways = {BASE: ways[BASE], self.challenger.name: self.challenger}
        return ways

    @cached_property
    def algorithms(self) -> dict[str, Any]:
        """The ways, and each again with an average shown if it can."""
        found = {}
        for name, way in self.ways.items():
            found[name] = way
            if getattr(way, "average", None) is False:
                found[name + AVERAGED] = replace(way, average=True, label=name + AVERAGED)
        return found

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
        """Compare, and add what theory predicted."""
        comparison, results, held_out = self.compared(executor)
        curves, winner = comparison.curves, comparison.winner
        problem, _ = problem_of(self.source)
        flat = nothing_to_learn(problem.data.targets)
        models = {name: r.history.params.mean(axis=0).tolist() for name, r in results.items()}
        gain, low, high = comparison.gain_db(winner)
        method = replace(self.algorithms[winner], step_size=curves[winner].step_size)
        known = "" if flat else winner
        outcome = self.summarised(
            results,
            verdict=f"Keep FedAvg: {flat}" if flat else comparison.verdict(),
            buys=comparison.buys and not flat,
            winner=known or BASE,
            next_steps=next_steps(method, problem, self.source, self.rounds),
            optimum_risk=comparison.optimum_risk,
            level=comparison.level,
            step_sizes={
                name: StepSearch(c.step_size, c.tried).as_dict() for name, c in curves.items()
            },
            model_bytes=comparison.model_bytes,
            gain_in_loss_db=gain if math.isfinite(gain) else None,
            gain_interval_db=[v if math.isfinite(v) else None for v in (low, high)],
            held_out=held_out,
            held_out_alike=bool(comparison.held_out) and not comparison.apart,
            predicted=self.predicted and {n: vars(way) for n, way in self.predicted.items()},
            models=models,
            **account_of(self.source),
        )  # fmt: skip
        rows = outcome.summary["algorithms"]
        for row, more, curve in zip(rows, comparison.rows(), curves.values(), strict=True):
            row |= more | level_change(curve.excess).as_dict()
        return outcome

    def compared(
        self, executor: Executor
    ) -> tuple[Comparison, dict[str, Finished], dict[str, Any] | None]:
        """Tune and run all ways, and train them again without what is held out."""
        problem, _ = problem_of(self.source)
        curves, results = {}, {}
        for name, way in self.ways.items():
            for shown, tried in self._tuned(executor, name, way).items():
                curves[shown], results[shown] = self._curve(executor, shown, tried)
        held_out, rows = self.held_out(executor, curves)
        errors = {
            name: np.array(parts["rows"]["errors"])
            for name, parts in (held_out or {}).items()
            if "rows" in parts
        }
        size = problem.num_params * np.dtype(np.float64).itemsize
        least, number = (
            problem.risk(problem.optimum),
            not isinstance(problem.loss, Logistic | Softmax),
        )
        order = [name for name in self.algorithms if name in curves]
        curves, results = ({n: part[n] for n in order} for part in (curves, results))
        return Comparison(curves, least, size, errors, number, rows), results, held_out

    def held_out(
        self, executor: Executor, curves: Mapping[str, Curve]
    ) -> tuple[dict[str, Any] | None, dict[str, np.ndarray]]:
        """How well all do on rows and agents that they were not trained on; None if not known.

        Beside it, for each way, the mean error of every such row of an agent that was trained on.
        """
        problem, _ = problem_of(self.source)
        if not isinstance(problem.loss, LinearLoss):
            return None, {}
        kept = Kept(self.source, self.seed)
        try:
            num_active = min(self.budget.num_active, problem_of(kept)[0].num_agents)
        except ValueError:  # a class that only agents have that are held out
            return None, {}
        groups = {}
        for name, curve in curves.items():
            changes = {"step_size": curve.step_size, "num_active": num_active}
            groups[name] = executor.cells(
                name, f"held out {name} {curve.step_size!r}",
                self._tuning_repetitions, len(curves), source=kept,
                algorithm=replace(self.algorithms[name], **changes), rounds=self.rounds,
                seed=self.seed, details=False,
            )  # fmt: skip
        found = executor.run(groups, "without what is held out", warn=False)
        models = {name: r.history.params for name, r in found.items() if not r.diverged}
        x, y = split(problem, self.seed).rows
        rows = {
            name: np.mean([row_errors(problem.loss, model, x, y) for model in each], axis=0)
            for name, each in models.items()
            if len(y)
        }
        return {n: qualities(problem, each, self.seed) for n, each in models.items()}, rows

    @cached_property
    def predicted(self) -> dict[str, TunedWay] | None:
        """What theory expects of every way; None where it knows nothing."""
        problem, _ = problem_of(self.source)
        try:
            return predict_ways(problem, num_active=self.budget.num_active, rounds=self.rounds)
        except (TheoryError, ValueError, AttributeError, TypeError, np.linalg.LinAlgError):
            return None  # a loss or a method of the user's own

    @property
    def _tuning_repetitions(self) -> int:
        return max(2, self.budget.tuning_repetitions)

    def _tuned(self, executor: Executor, name: str, way: Any) -> dict[str, dict[float, float]]:
        """The losses of step sizes of a way and of its average."""
        shown = [n for n in (name, name + AVERAGED) if n in self.algorithms]
        known = self.predicted or {}
        if name in known:
            guess = known[name].step_size
        else:
            problem, _ = problem_of(self.source)
            guess = NO_PREDICTION / mean_curvature(problem)
        search = PairedSearch(
            executor, name, replace(way, average=True) if len(shown) > 1 else way, shown,
            source=self.source, rounds=self.rounds, seed=self.seed + TUNING_SEED,
            runs=self._tuning_repetitions,
            # Rounded, so that the last bits of a factorisation do not matter.
            guesses=[
                float(f"{known[n].step_size if n in known else guess:.3g}") for n in shown
            ],
        )  # fmt: skip
        return search.losses()

    def _curve(
        self, executor: Executor, name: str, tried: dict[float, float]
    ) -> tuple[Curve, Finished]:
        algorithm, tried = self.algorithms[name], dict(tried)
        source = WithExcess(self.source, max(1, self.rounds // self.budget.records))
        best = StepSearch.of(tried).best
        while True:
            title = f"{name}, step {best:.3g}"
            cells = executor.cells(
                name, f"algorithm {name} {best!r}", self.repetitions, 2, source=source,
                algorithm=replace(algorithm, step_size=best), rounds=self.rounds, seed=self.seed,
            )  # fmt: skip
            result = executor.run({title: cells}, warn=False)[title]
            if not result.diverged:
                break
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


def next_steps(method: Any, problem: Problem, source: ProblemSource, rounds: int) -> list[str]:
    """The lines of Python that use a method on the same data."""
    words = {"step_size": float(f"{method.step_size:.3g}"), "num_active": method.num_active}
    several = int(problem.local_steps.max()) > 1
    maker = "ISFedAvg"
    if method.agents.equal:
        maker = "FedAvg"
        words |= {"divide_by_steps": True} if several else {}
    elif method.memory is not None:
        words["correction"] = method.memory.kind
    words |= {key: True for key in ("passes", "average") if getattr(method, key)}
    made = f"{maker}({', '.join(f'{key}={value!r}' for key, value in words.items())})"
    if not isinstance(source, FileSource):
        return [f"history = simulate(problem, {made}, rounds={rounds})"]
    reading = ["from isfed.datasets.read_options import Reading"] * (source.reading != Reading())
    return [
        f"from isfed import Columns, {maker}, simulate",
        *reading,
        "from isfed.studies.problem_sources import FileSource",
        f"problem = {_spelled(source)}.make()",
        f"model = simulate(problem, {made}, rounds={rounds}).params[0]",
    ]


def _spelled(record: Any) -> str:
    """A record as it is typed, without what is as usual."""
    words = []
    for part in fields(record):
        value = getattr(record, part.name)
        usual = part.default if part.default_factory is MISSING else part.default_factory()
        if value == usual or part.name == "sha256":
            continue
        text = _spelled(value) if is_dataclass(value) else repr(value)
        words.append(f"{part.name}={repr(str(value)) if isinstance(value, Path) else text}")
    return f"{type(record).__name__}({', '.join(words)})"


def compare(
    problem: Problem,
    budget: Budget,
    *,
    challenger: Any = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare ways to learn with FedAvg, each at its own best step size.

    Args:
        problem: what is learned.
        budget: how long and how often to run.
        challenger: an algorithm instead of the ways that are known.
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
