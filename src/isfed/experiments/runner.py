"""Run an experiment into a results folder, from where it stopped if it was stopped."""

from __future__ import annotations

import time
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
from isfed.sampling.telemetry import COLUMNS
from isfed.simulate.history import DivergenceError, History, Measure, Measured
from isfed.simulate.run import KernelRun, check_run
from isfed.simulate.setup import kernel_runs
from isfed.theory.stability import explain_divergence, warn_if_growing

LEAST_BETWEEN = 2.0  # seconds between checkpoints, at least ...
MOST_SHARE = 0.05  # ... and no more than this share of the time goes into them


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
    return run.history(np.empty((1, 0)), run.watched)


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
        self.rounds = experiment.rounds
        self.kernel = KernelRun(
            problem,
            algorithm,
            repetitions=experiment.repetitions,
            seed=experiment.seed,
            initial=np.zeros(problem.num_params),
            threads=threads,
        )
        shape = (experiment.repetitions, experiment.rounds)
        self.msd = np.full(shape, np.nan)
        self.watched = np.zeros((*shape, len(COLUMNS)), np.float32)
        self.measured = None
        if measure is not None:
            self.measured = Measured(measure, experiment.repetitions, experiment.rounds)
        self.seconds = 0.0
        self.booked = 0
        arrays = store.load(index)
        if arrays is not None:
            try:
                self._restore(arrays)
            except (KeyError, ValueError) as error:
                raise StoreError(
                    f"the checkpoint of {algorithm.name} does not fit ({error}); --overwrite "
                    "starts again"
                ) from error
        elif self.measured is not None:
            self.measured.look(self.kernel.state.params, 0)

    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        if float(arrays["step_size"]) != self.kernel.algorithm.step_size:
            raise ValueError(f"it ran at step_size={float(arrays['step_size'])}")
        self.kernel.round_index = self.booked = int(arrays["round_index"])
        self.kernel.diverged = bool(arrays["diverged"])
        self.seconds = float(arrays["seconds"])
        self.msd[:, : self.kernel.round_index] = arrays["msd"]
        self.watched[:, : self.kernel.round_index] = arrays["telemetry"]
        for name, values in self.kernel.state._asdict().items():
            values[...] = arrays[name]
        if self.measured is not None:
            self.measured.values[...] = arrays["measured"]

    def _save(self) -> None:
        done = self.kernel.round_index
        arrays = {
            "round_index": np.array(done),
            "diverged": np.array(self.kernel.diverged),
            "step_size": np.array(self.kernel.algorithm.step_size),
            "seconds": np.array(self.seconds),
            "msd": self.msd[:, :done],
            "telemetry": self.watched[:, :done],
            **self.kernel.state._asdict(),
        }
        if self.measured is not None:
            arrays["measured"] = self.measured.values
        self.store.save(self.index, arrays)

    def run(self, name: str, progress: Progress | None, chunk_seconds: float | None) -> Finished:
        """Run to the end; a checkpoint is written now and then, at Ctrl-C, and at the end."""
        kernel = self.kernel
        complete = kernel.round_index == self.rounds or kernel.diverged
        if progress is not None:
            repetitions = len(self.msd)
            progress.begin(name, self.rounds, kernel.round_index, repetitions=repetitions)
        options: dict[str, Any] = {} if chunk_seconds is None else {"seconds": chunk_seconds}
        if self.measured is not None:
            options["every"] = self.measured.measure.every
        kernel.compile()
        saved = started = time.perf_counter()
        least = LEAST_BETWEEN
        try:
            for begin, block in kernel.chunks(self.rounds, **options):
                now = time.perf_counter()
                self.seconds, started = self.seconds + now - started, now
                self.msd[:, begin : begin + block.shape[1]] = block
                self.watched[:, begin : begin + block.shape[1]] = kernel.watched
                if self.measured is not None:
                    self.measured.look(kernel.state.params, kernel.round_index)
                self.booked = kernel.round_index
                if progress is not None:
                    progress.advance(block.shape[1])
                if now - saved > least:
                    self._save()
                    saved = time.perf_counter()
                    least = max(LEAST_BETWEEN, (saved - now) / MOST_SHARE)
        except KeyboardInterrupt:
            # Only if the chunk is whole and everything about it is written down here.
            if kernel.whole and self.booked == kernel.round_index:
                self._save()
            raise
        if not complete:
            self._save()
        done = kernel.round_index
        history = kernel.history(self.msd[:, :done], self.watched[:, :done], self.measured)
        if kernel.diverged:
            reason = explain_divergence(kernel.problem, kernel.algorithm)
            raise DivergenceError(kernel.round_index, history, reason, name=name)
        warn_if_growing(kernel.problem, kernel.algorithm, history.msd, name=name)
        return Finished(history, self.seconds)
