"""A study as its file says it: problems, methods, step sizes, seeds, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from isfed.federation.virtual_clock import Clock
from isfed.problems.losses import Logistic, Softmax
from isfed.sampling.policies import Refresh
from isfed.studies.executors import Executor
from isfed.studies.held_out_error import Kept, qualities_on, split
from isfed.studies.problem_sources import ProblemSource
from isfed.studies.results_reader import StepSearch, results_of
from isfed.studies.step_grid import StepGrid
from isfed.studies.study_engine import Outcome, Study
from isfed.studies.study_summaries import SUMMARIES, as_dicts, several_problems
from isfed.studies.test_measures import ErrorRates
from isfed.studies.work_cells import Cell, Finished, problem_of

MOST_TESTED = 10  # repetitions that are trained again without the rows held out
Engine = Literal["auto", "kernel", "agents", "objects"]


@dataclass(frozen=True, eq=False)
class StudyTask:
    """What runs on one problem.

    Args:
        title: before the names of its methods, with what separates them; empty if there is one.
        source: where the problem comes from.
        algorithms: by name.
        rounds: of every repetition.
        repetitions: independent runs of every algorithm.
        place: of a problem of a grid, its values by the keys of the grid.
        seeded: tells apart tasks of one title, whose repetitions are put together.
        clock: how fast the agents are; None counts no virtual time.
        step_sizes: what is tried for `tuned`, the methods that give no step size.
        share: of the rounds, the last ones, whose mean is the level of a run.
        level: of what: "msd", or the name of a measure; the first measure unless given.
        start: the first model, zero or w^o.
    """

    title: str
    source: ProblemSource
    algorithms: dict[str, Any]
    rounds: int
    repetitions: int
    place: Mapping[str, Any] = field(default_factory=dict)
    seeded: str = ""
    clock: Clock | None = None
    step_sizes: StepGrid | None = None
    tuned: tuple[str, ...] = ()
    share: float = 0.25
    level: str = ""
    start: Literal["zero", "optimum"] = "zero"

    @property
    def start_and_clock(self) -> dict[str, Any]:
        """For its cells."""
        return {"clock": self.clock, "from_optimum": self.start == "optimum"}


@dataclass(frozen=True, eq=False)
class Experiment(Study):
    """Problems, some algorithms to compare on them, and how long to run them.

    Args:
        name: the name of the experiment and of its results folder.
        tasks: what runs on every problem.
        seed: the seed of all random draws.
        resolved: the tables of the TOML file that makes this experiment again, with every default.
        kind: what is made of the results, see `isfed.studies.study_summaries`.
        engine: what runs the rounds; "auto" chooses the fastest engine that can run an algorithm.
        looks: at the ledger in a run, in place of what the problem measures; 0 for none.
        details: whether telemetry and probabilities are kept.
        seeds: in place of one seed, several; each runs all repetitions, which are put together.
        options: of what is made of the results, such as the title of a table.
    """

    name: str
    tasks: tuple[StudyTask, ...]
    seed: int
    resolved: dict[str, Any]
    kind: str = "experiment"  # pyright: ignore[reportIncompatibleVariableOverride]
    engine: Engine = "auto"
    looks: int = 0
    details: bool = True
    seeds: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    source = property(lambda self: self.tasks[0].source)
    algorithms = property(lambda self: self.tasks[0].algorithms)
    rounds = property(lambda self: self.tasks[0].rounds)
    repetitions = property(lambda self: self.tasks[0].repetitions * (len(self.seeds) or 1))
    clock = property(lambda self: self.tasks[0].clock)

    def check(self) -> None:
        """Refuse an algorithm that cannot run; of a grid the first problem stands for all."""
        for task in self.tasks:
            if not task.place or task is self.tasks[0]:
                problem = self.checked_problem(task)
                if task.step_sizes is not None:
                    task.step_sizes.check(problem, source=task.source, seed=self.seed)

    def outcome(self, executor: Executor) -> Outcome:
        """Choose step sizes, run every algorithm, and add what belongs to this kind of study."""
        searches: dict[str, StepSearch] = {}
        tasks = tuple(self._at_best_steps(executor, task, searches) for task in self.tasks)
        summary = SUMMARIES.get(self.kind, several_problems if len(self.tasks) > 1 else None)
        if summary is not None:
            return summary(self, tasks, self._run(executor, tasks), executor, searches)
        task = tasks[0]
        results = self._run_slow_last(executor, task)
        more = {"step_sizes": as_dicts(searches)} if task.step_sizes is not None else {}
        tested = self._tested(executor, task, results)
        return self.summarised(results, **more, **({"held_out": tested} if tested else {}))

    def _at_best_steps(
        self, executor: Executor, task: StudyTask, searches: dict[str, StepSearch]
    ) -> StudyTask:
        """A task with the best step sizes of the methods that are tuned; fills `searches`."""
        if task.step_sizes is None:
            return task
        tuned = {name: task.algorithms[name] for name in task.tuned}
        best, found = task.step_sizes.choose(executor, task, tuned, seed=self.seed)
        if task.step_sizes.again:
            best = {f"{name}, best step {found[name].best:g}": best[name] for name in best}
        searches |= {f"{task.title}{name}": search for name, search in found.items()}
        return replace(task, algorithms=task.algorithms | best)

    def _cells(
        self, executor: Executor, task: StudyTask, count: int, names: Mapping[str, Any]
    ) -> dict[str, list[Cell]]:
        """One group for every method of a task."""
        looks = {"costs_every": max(1, task.rounds // self.looks)} if self.looks else {}
        groups = {}
        for name, method in names.items():
            shown = f"{task.title}{name}"
            groups[f"{shown}{task.seeded}"] = [
                cell
                for seed in self.seeds or (self.seed,)
                for cell in executor.cells(
                    shown, f"algorithm {shown}{task.seeded}{f', {seed}' if self.seeds else ''}",
                    task.repetitions, count, source=task.source, algorithm=method,
                    rounds=task.rounds, seed=seed, engine=self.engine, details=self.details,
                    **task.start_and_clock, **looks,
                )
            ]  # fmt: skip
        return groups

    def _run(self, executor: Executor, tasks: tuple[StudyTask, ...]) -> dict[str, Finished]:
        """The results of all tasks, by title, name and what tells tasks of one title apart."""
        count = sum(len(task.algorithms) for task in tasks)
        groups = {}
        for task in tasks:
            groups |= self._cells(executor, task, count, task.algorithms)
        several = len(tasks) > 1
        return executor.run(groups, self.name if several else None, warn=not several)

    def _run_slow_last(self, executor: Executor, task: StudyTask) -> dict[str, Finished]:
        """Run every algorithm, with a preview before those that read all data in every round."""
        methods, count = task.algorithms, len(task.algorithms)
        slow = {name: method for name, method in methods.items() if _reads_all(method)}
        quick = {name: method for name, method in methods.items() if name not in slow}
        if executor.preview is None or not (slow and quick):
            return executor.run(self._cells(executor, task, count, methods))
        results = executor.run(self._cells(executor, task, len(quick), quick))
        tables, summary, times = self.summarised(results)
        summary |= {"kind": self.kind, "digest": self.digest, "made_with": {}}  # nothing is written
        place = executor.store.folder or Path()
        executor.preview(
            results_of(place, self.resolved, summary=summary, tables=tables, times=times)
        )
        results |= executor.run(self._cells(executor, task, len(slow), slow))
        return {name: results[name] for name in methods}

    def _tested(
        self, executor: Executor, task: StudyTask, results: Mapping[str, Finished]
    ) -> dict[str, Any]:
        """Loss and error on the test rows; on held-out rows, after a second training, if none."""
        problem, measure = problem_of(task.source)
        if not isinstance(problem.loss, Logistic | Softmax):
            return {}
        if isinstance(measure, ErrorRates):
            sets, found = {"test": measure.rows}, results
        else:
            sets = {"rows": split(problem, self.seed, agents=False).rows}
            if measure is not None or not len(sets["rows"][1]):
                return {}
            groups = {
                name: executor.cells(
                    name, f"held out {name}", min(task.repetitions, MOST_TESTED),
                    len(task.algorithms), source=Kept(task.source, self.seed, agents=False),
                    algorithm=algorithm, rounds=task.rounds, seed=self.seed, engine=self.engine,
                    clock=task.clock, details=False,
                )
                for name, algorithm in task.algorithms.items()
                if not results[name].diverged
            }  # fmt: skip
            found = executor.run(groups, "without what is held out", warn=False)
        return {
            name: qualities_on(problem.loss, sets, result.history.params)
            for name, result in found.items()
            if not result.diverged
        }


def _reads_all(method: Any) -> bool:
    """Whether a policy of the method computes all scores anew in every round."""
    sides = (getattr(method, side, None) for side in ("agents", "examples"))
    return any(getattr(policy, "refresh", None) == Refresh.ALL for policy in sides)
