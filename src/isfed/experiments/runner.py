"""Run an experiment into a results folder, from where it stopped if it was stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from isfed.algorithms import ISFedAvg
from isfed.experiments.config import ConfigError, Experiment
from isfed.experiments.store import HISTORY, MEASURES, Store, StoreError
from isfed.experiments.summary import history_columns, measure_columns, summarise
from isfed.problems import Problem
from isfed.sampling.policies import Oracle
from isfed.simulate.driver import CHUNK_SECONDS, Recording, drive
from isfed.simulate.history import History, Measure
from isfed.simulate.kernel_run import KernelRun
from isfed.simulate.run import check_run, kernel_runs, make_run


class Progress(Protocol):
    """Told about the work as it goes; see `isfed.report.progress`."""

    def begin(self, name: str, rounds: int, done: int, *, repetitions: int) -> None:
        """Work begins, with `done` of its rounds already there."""
        ...

    def advance(self, rounds: int) -> None:
        """That many more rounds of all repetitions are done."""
        ...


@dataclass(frozen=True)
class Finished:
    """One algorithm's history and the time it took."""

    history: History
    seconds: float


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    chunk_seconds: float | None = None,
) -> dict[str, Any]:
    """Run every algorithm of an experiment; returns the summary, which is also in the folder."""
    # Before the folder is touched: what cannot run must not cost anybody their old results.
    problem = checked_problem(experiment)
    measure = experiment.source.measure(problem)
    store = Store(folder, experiment)
    with store.opened(resume=resume, overwrite=overwrite):
        options: dict[str, Any] = {"progress": progress, "chunk_seconds": chunk_seconds}
        results = run_all(experiment, store, problem, measure, threads=threads, **options)
        return write_results(experiment, store, problem, results)


def run_all(
    experiment: Experiment,
    store: Store,
    problem: Problem,
    measure: Measure | None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    chunk_seconds: float | None = None,
) -> dict[str, Finished]:
    """Run every algorithm of an experiment, from its checkpoint if there is one."""
    results: dict[str, Finished] = {}
    for index, (name, algorithm) in enumerate(experiment.algorithms.items()):
        job = _Job(experiment, store, index, problem, algorithm, measure, threads)
        results[name] = job.run(name, progress, chunk_seconds)
    return results


def write_results(
    experiment: Experiment,
    store: Store,
    problem: Problem,
    results: dict[str, Finished],
    more: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the numbers; returns the summary, with what is to be said `more`."""
    store.write_table(HISTORY, history_columns(results))
    if any(result.history.measured for result in results.values()):
        store.write_table(MEASURES, measure_columns(results))
    summary = summarise(experiment, problem, results, optimal_probabilities(problem))
    summary |= more or {}
    store.write_summary(summary)
    return summary


def checked_problem(experiment: Experiment) -> Problem:
    """The problem, if every algorithm of the experiment can run on it."""
    try:
        problem = experiment.source.make()
        for name, algorithm in experiment.algorithms.items():
            check_run(problem, algorithm, experiment.rounds, experiment.repetitions)
            if not kernel_runs(problem, algorithm):
                raise ValueError(
                    f"{name}: this design runs in isfed.simulate(engine='objects') only"
                )
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error
    return problem


def optimal_probabilities(problem: Problem) -> History:
    """The oracle's probabilities, p_k^o and p_n^o of eq. (48) and (44)."""
    oracle = ISFedAvg(step_size=1.0, num_active=1, agents=Oracle(), examples=Oracle())
    run = KernelRun(
        problem, oracle, repetitions=1, seed=0, initial=np.zeros(problem.num_params), threads=1
    )
    return run.history(run.advance(0))


class _Job:
    """One algorithm of an experiment, with its checkpoint."""

    def __init__(
        self,
        experiment: Experiment,
        store: Store,
        index: int,
        problem: Problem,
        algorithm: ISFedAvg,
        measure: Measure | None,
        threads: int | None,
    ) -> None:
        self.store = store
        self.index = index
        self.run_ = make_run(
            problem, algorithm, repetitions=experiment.repetitions, seed=experiment.seed,
            threads=threads,
        )  # fmt: skip
        arrays = store.load(index)
        self.recording = Recording(self.run_, experiment.rounds, measure)
        if arrays is not None:
            try:
                self.recording.resume(self.run_, arrays)
            except (KeyError, ValueError) as error:
                raise StoreError(
                    f"the checkpoint of {algorithm.name} does not fit ({error}); --overwrite "
                    "starts again"
                ) from error

    def run(self, name: str, progress: Progress | None, chunk_seconds: float | None) -> Finished:
        """Run to the end; a checkpoint is written now and then, at Ctrl-C, and at the end."""
        recording = self.recording
        if progress is not None:
            repetitions = len(recording.msd)
            progress.begin(name, recording.rounds, recording.done, repetitions=repetitions)
        history = drive(
            self.run_,
            recording,
            progress=None if progress is None else progress.advance,
            save=lambda arrays: self.store.save(self.index, arrays),
            chunk_seconds=CHUNK_SECONDS if chunk_seconds is None else chunk_seconds,
            name=name,
        )
        return Finished(history, recording.seconds)
