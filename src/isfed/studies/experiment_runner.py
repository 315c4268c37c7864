"""Run an experiment into a results folder, from where it stopped if it was stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from isfed.problems import Problem
from isfed.simulate.simulate_call import check_run, choose_engine, make_run
from isfed.studies.config_schema import ConfigError
from isfed.studies.executors import Crew, Progress, Workers
from isfed.studies.experiment_config import Experiment
from isfed.studies.results_folder import Configured, Folder
from isfed.studies.results_reader import Results, load_results
from isfed.studies.results_summary import summarise, tables_of, times_of
from isfed.studies.work_cells import Finished, Shelf, cells_of, problem_of


class Outcome(NamedTuple):
    """What a study leaves behind: Parquet files, summary.json and times.json."""

    tables: dict[str, dict[str, Any]]
    summary: dict[str, Any]
    times: dict[str, Any]


def run_study(
    configured: Configured,
    folder: str | Path,
    study: Callable[[Crew], Outcome],
    *,
    resume: bool = False,
    overwrite: bool = False,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Results:
    """Let a crew do a study and put what it found into the folder, unless it is there already."""
    workers = workers or Workers()
    place = Folder(Path(folder), configured)
    with place.opened(resume=resume, overwrite=overwrite) as complete:
        if not complete:
            shelf = Shelf(place.cells, configured.digest)
            with workers.opened() as jobs:
                outcome = study(Crew(workers, jobs, shelf, progress))
            place.refuse_worse(outcome.summary)
            place.replace(*outcome)
    return load_results(folder)


def run_experiment(experiment: Experiment, folder: str | Path, **options: Any) -> Results:
    """Run every algorithm of an experiment, and return what is in the folder then.

    An algorithm that diverges does not stop the others; `Results.diverged` names it. If all of
    them diverge, results that are in the folder already are kept, and a StoreError says so.

    experiment: what to run.
    folder: the results folder.
    options: those of `run_study`: resume, overwrite, workers, progress.
    """
    # Before the folder is touched: what cannot run must not cost anybody their old results.
    checked_problem(experiment)

    def study(crew: Crew) -> Outcome:
        found = run_algorithms(experiment, crew)
        return outcome_of(experiment, found)

    return run_study(experiment, folder, study, **options)


def run_algorithms(experiment: Experiment, crew: Crew) -> dict[str, Finished]:
    """Run every algorithm of an experiment."""
    block = crew.block(experiment.repetitions, len(experiment.algorithms))
    groups = {
        name: cells_of(
            name, f"algorithm {name}", experiment.repetitions, crew.shelf, block,
            source=experiment.source, algorithm=algorithm, rounds=experiment.rounds,
            seed=experiment.seed, engine=experiment.engine, clock=experiment.clock,
        )
        for name, algorithm in experiment.algorithms.items()
    }  # fmt: skip
    return crew.run(groups)


def outcome_of(
    experiment: Experiment, found: dict[str, Finished], more: dict[str, Any] | None = None
) -> Outcome:
    """The files of an experiment; `more` goes into its summary."""
    summary = summarise(
        experiment.name, experiment.source, found,
        rounds=experiment.rounds, repetitions=experiment.repetitions,
    )  # fmt: skip
    return Outcome(tables_of(found), summary | (more or {}), times_of(found))


def checked_problem(experiment: Experiment) -> Problem:
    """The problem, if every algorithm of the experiment can run on it."""
    try:
        problem, _ = problem_of(experiment.source)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error
    for name, algorithm in experiment.algorithms.items():
        try:
            check_run(problem, algorithm, experiment.rounds, experiment.repetitions)
            engine = choose_engine(problem, algorithm, experiment.engine)
            clock = experiment.clock
            if clock is not None and engine == "kernel":
                engine = "agents"  # the kernel keeps no virtual time
            if engine != "kernel":  # a method has its own say on the problem when it starts
                make_run(problem, algorithm, seed=experiment.seed, engine=engine, clock=clock)
        except (TypeError, ValueError) as error:
            weighed = problem.data.weights is not None and "weights" in str(error)
            hint = "; leave it out, or set weights = 'agents' in [problem]" if weighed else ""
            raise ConfigError(f"{name}: {error}{hint}") from error
    return problem
