"""A study as its file says it: problems, methods, step sizes, seeds, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from isfed.federation.virtual_clock import Clock
from isfed.problems.losses import Logistic, Softmax
from isfed.sampling.policies import Refresh
from isfed.studies.executors import Executor
from isfed.studies.held_out_error import Kept, qualities_on, split
from isfed.studies.problem_sources import ProblemSource
from isfed.studies.results_reader import results_of
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
    """

    title: str
    source: ProblemSource
    algorithms: dict[str, Any]
    rounds: int
    repetitions: int
    place: Mapping[str, Any] = field(default_factory=dict)
    seeded: str = ""


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
        clock: how fast the agents are and how often they do not answer; None counts no virtual
            time.
        step_sizes: what is tried for algorithms that give no step size; None if all give one.
        tuned: the names of those algorithms.
        looks: at the ledger in a run, in place of what the problem measures; 0 for none.
        details: whether telemetry and probabilities are kept.
        options: of what is made of the results, such as the title of a table.
    """

    name: str
    tasks: tuple[StudyTask, ...]
    seed: int
    resolved: dict[str, Any]
    kind: str = "experiment"  # pyright: ignore[reportIncompatibleVariableOverride]
    engine: Engine = "auto"
    clock: Clock | None = None
    step_sizes: StepGrid | None = None
    tuned: tuple[str, ...] = ()
    looks: int = 0
    details: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    source = property(lambda self: self.tasks[0].source)
    algorithms = property(lambda self: self.tasks[0].algorithms)
    rounds = property(lambda self: self.tasks[0].rounds)
    repetitions = property(lambda self: self.tasks[0].repetitions)

    def check(self) -> None:
        """Refuse an algorithm that cannot run; of a grid the first problem stands for all."""
        for task in self.tasks:
            if not task.place or task is self.tasks[0]:
                self.checked_problem(task)
        if self.step_sizes is not None:
            problem, _ = problem_of(self.source)
            self.step_sizes.check(problem, source=self.source, seed=self.seed)

    def outcome(self, executor: Executor) -> Outcome:
        """Choose step sizes, run every algorithm, and add what belongs to this kind of study."""
        tasks, searches = self.tasks, {}
        if self.step_sizes is not None:
            (task,) = tasks
            best, searches = self.step_sizes.choose(
                executor, {name: task.algorithms[name] for name in self.tuned},
                source=task.source, rounds=task.rounds, seed=self.seed,
            )  # fmt: skip
            if self.step_sizes.again:
                best = {f"{n}, best step {searches[n].best:g}": best[n] for n in best}
            methods = task.algorithms | best
            tasks = (StudyTask("", task.source, methods, task.rounds, task.repetitions),)
        summary = SUMMARIES.get(self.kind, several_problems if len(self.tasks) > 1 else None)
        if summary is not None:
            return summary(self, tasks, self._run(executor, tasks), executor, searches)
        task = tasks[0]
        results = self._run_slow_last(executor, task)
        more = {"step_sizes": as_dicts(searches)} if self.step_sizes is not None else {}
        tested = self._tested(executor, task, results)
        return self.summarised(results, **more, **({"held_out": tested} if tested else {}))

    def _cells(
        self, executor: Executor, task: StudyTask, count: int, names: Mapping[str, Any]
    ) -> dict[str, list[Cell]]:
        """One group for every method of a task."""
        looks = {"costs_every": max(1, task.rounds // self.looks)} if self.looks else {}
        groups = {}
        for name, method in names.items():
            shown = f"{task.title}{name}"
            groups[f"{shown}{task.seeded}"] = executor.cells(
                shown, f"algorithm {shown}{task.seeded}", task.repetitions, count,
                source=task.source, algorithm=method, rounds=task.rounds, seed=self.seed,
                engine=self.engine, clock=self.clock, details=self.details, **looks,
            )  # fmt: skip
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
                    clock=self.clock, details=False,
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
