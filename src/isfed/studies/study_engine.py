"""The engine of every study: tune step sizes, run methods on a problem, write a results folder.

A study says what differs: the problem, the methods, how they are tuned and what is summarised. The
engine runs it from where it stopped if it was stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isfed.base.portable_arithmetic import inner
from isfed.problems import Problem
from isfed.simulate.simulate_call import check_run, choose_engine, make_run
from isfed.studies.config_schema import ConfigError
from isfed.studies.executors import Executor, Progress, Workers
from isfed.studies.results_folder import Configured, Folder
from isfed.studies.results_reader import Results, load_results
from isfed.studies.results_summary import summarise, tables_of, times_of
from isfed.studies.work_cells import CellStore, Finished, problem_of


class Outcome(NamedTuple):
    """What a study leaves behind: Parquet files, summary.json and times.json."""

    tables: dict[str, dict[str, Any]]
    summary: dict[str, Any]
    times: dict[str, Any]


class Study(Configured):
    """What is run on a problem, and what is made of it; subclasses are records with these fields.

    Attributes:
        name: of the results.
        source: where the problem comes from.
        rounds: of every repetition.
        repetitions: independent runs of every method.
        seed: of all random draws.
        engine: what runs the rounds.
    """

    name: Any
    source: Any
    rounds: Any
    repetitions: Any
    seed: Any
    engine: Any = "auto"

    def check(self) -> None:
        """Refuse what cannot run: it must not cost anybody the results in the folder."""

    def outcome(self, executor: Executor) -> Outcome:
        """Run all cells and summarise them."""
        raise NotImplementedError

    def checked_problem(self, task: Any) -> Problem:
        """The problem of a task, if every method of it can run there."""
        try:
            problem, _ = problem_of(task.source)
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error)) from error
        for name, method in task.algorithms.items():
            try:
                check_run(problem, method, task.rounds, task.repetitions)
                engine = choose_engine(problem, method, self.engine)
                if task.clock is not None and engine == "kernel":
                    engine = "agents"  # the kernel keeps no virtual time
                if engine != "kernel":  # a method has its own say on the problem when it starts
                    make_run(problem, method, seed=self.seed, engine=engine, clock=task.clock)
            except (TypeError, ValueError) as error:
                weighed = problem.data.weights is not None and "weights" in str(error)
                hint = "; leave it out, or set weights = 'agents' in [problem]" if weighed else ""
                raise ConfigError(f"{task.title}{name}: {error}{hint}") from error
        return problem

    def summarised(self, results: Mapping[str, Finished], **more: Any) -> Outcome:
        """The files of the study; `more` goes into its summary."""
        summary = summarise(
            self.name, self.source, results, rounds=self.rounds, repetitions=self.repetitions
        )
        return Outcome(tables_of(results), summary | more, times_of(results))


def run_study(
    study: Study,
    folder: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    workers: Workers | None = None,
    progress: Progress | None = None,
    preview: Callable[[Results], None] | None = None,
) -> Results:
    """Run a study into a folder, unless its results are there already; returns what is there then.

    An algorithm that diverges does not stop the others; `Results.diverged` names it. If all of
    them diverge, results that are in the folder already are kept, and a StoreError says so.

    Args:
        study: what to run.
        folder: the results folder.
        resume: whether to continue what is in the folder.
        overwrite: whether to replace what is in the folder.
        workers: where to run; in this process unless given.
        progress: is informed of the work as it goes.
        preview: is shown the results of all but the slow methods, before these run.
    """
    study.check()
    workers = workers or Workers()
    place = Folder(Path(folder), study)
    with place.opened(resume=resume, overwrite=overwrite) as complete:
        if not complete:
            store = CellStore(place.cells, study.digest)
            with workers.opened() as jobs:
                outcome = study.outcome(Executor(workers, jobs, store, progress, preview))
            place.refuse_worse(outcome.summary)
            place.replace(*outcome)
    return load_results(folder)


class NoStepError(RuntimeError):
    """An algorithm diverged at every step size that was tried."""


def last_part(values: np.ndarray, share: float) -> np.ndarray:
    """(R, points) the last columns, such a share of them."""
    return values[:, -max(1, round(share * values.shape[1])) :]


def mean_curvature(problem: Problem) -> float:
    """Of the loss over the rows: one over it is a step size to begin with."""
    curvature = problem.loss.curvature(problem.data.features)
    return float(inner(problem.data.row_weights(), curvature))


def ending(result: Finished, share: float, level: str = "") -> np.ndarray:
    """(R, points) the last part of a level: what is measured first, or the msd."""
    known = {**result.history.measured, "msd": result.history.msd}
    return last_part(known[level] if level else next(iter(known.values())), share)
