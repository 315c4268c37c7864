"""`isfed compare` and `isfed diagnose`: what importance sampling does for a table of your own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from isfed.cli.command_helpers import (
    Backend,
    DataDir,
    Jobs,
    Out,
    Overwrite,
    Resume,
    Threads,
    console,
    errors,
    one_line_errors,
    print_line,
    report_long_steps,
    with_options,
)
from isfed.cli.report import finish
from isfed.cli.table_options import RIDGE, TableOptions, spelled

Json = Annotated[
    bool, typer.Option("--json", help="Print the results as JSON instead of tables and sentences.")
]


@contextlib.contextmanager
def _only_json(wanted: bool) -> Iterator[None]:
    """With --json nothing else is written to the standard output."""
    console.quiet = wanted
    try:
        yield
    finally:
        console.quiet = False


def _print_json(results: Any) -> None:
    typer.echo(json.dumps({**results.summary, "folder": str(results.path)}, indent=2))


@with_options
def compare_on_table(
    file: Annotated[
        Path,
        typer.Argument(help="Your table: Parquet, CSV, text, LIBSVM, Feather or Excel."),
    ],
    agent: Annotated[str, typer.Option(help="The column that names the agent of a row.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    table: TableOptions,
    active: Annotated[
        int | None, typer.Option(help="Agents per round (default: one tenth of them).")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Examples per step, at most.")] = 8,
    local_steps: Annotated[int, typer.Option(help="Steps of an agent per round.")] = 1,
    ridge: Annotated[float, typer.Option(help="Weight of |model|^2 in the loss.")] = RIDGE,
    rounds: Annotated[int, typer.Option(help="Rounds per repetition.")] = 2000,
    repetitions: Annotated[int, typer.Option(help="Number of independent repetitions.")] = 12,
    seed: Annotated[int, typer.Option(help="Seed of all random draws.")] = 0,
    threads: Threads = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    backend: Backend = None,
    jobs: Jobs = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Save the better model in this JSON file, for `isfed predict`."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Which way to learn suits your own data, and what does it buy?

    Trains FedAvg, importance sampling, passes and control variates on your table, the last model
    and the average of the last half of the rounds, each at its own best step size. Reports the
    error on rows that were not trained on, how certain the difference is, what each needs to reach
    the loss with which FedAvg ends, and the lines that use the best.
    """
    from isfed.datasets.dataset_files import inner_name, stem
    from isfed.report.comparison_report import (
        agreement_line,
        comparison_table,
        more_work_line,
        next_lines,
        rounds_lines,
    )
    from isfed.report.progress_bar import RunProgress
    from isfed.studies import Budget, Workers
    from isfed.studies.comparison import forecast
    from isfed.studies.comparison_run import ComparisonStudy
    from isfed.studies.model_file import save_best
    from isfed.studies.results_folder import Folder
    from isfed.studies.study_engine import run_study
    from isfed.studies.work_cells import problem_of

    with one_line_errors(spell=spelled), _only_json(as_json):
        folder = out or Path("runs") / f"compare-{stem(file)}"
        workers = Workers(backend=backend, jobs=jobs, threads=threads)
        with report_long_steps():
            source = table.source(
                file, agent, target, ridge=ridge, batch_size=batch_size, local_steps=local_steps
            )
            lines = source.table().account.lines()
            problem, _ = problem_of(source)
        budget = Budget(
            num_active=max(1, problem.num_agents // 10) if active is None else active,
            rounds=rounds, repetitions=repetitions, seed=seed,
        )  # fmt: skip
        study = ComparisonStudy(stem(file), source, budget)
        Folder(folder, study).check(resume=resume, overwrite=overwrite)
        _print_account(file.name, problem, lines)
        study.check()
        with report_long_steps():
            _ = study.predicted  # which takes time too, and is done then
        algorithms = list(study.ways.values())
        expected = forecast(problem, algorithms, budget, threads=workers.threads)
        print_line(expected.line())
        with RunProgress(errors if as_json else console) as progress, report_long_steps():
            progress.expect(expected.seconds, expected.rates)
            results = run_study(
                study, folder, resume=resume, overwrite=overwrite, workers=workers,
                progress=progress,
            )  # fmt: skip
        print_line(results.summary["verdict"])
        console.print(comparison_table(results))
        next_steps = next_lines(results, saved=save is not None)
        further = more_work_line(results), agreement_line(results)
        for line in filter(None, (*next_steps, *rounds_lines(results), *further)):
            print_line(line)
        if save is not None:
            model = save_best(results, source, save)
            name = model.trained["algorithm"]
            suffix = Path(inner_name(file)).suffix
            print_line(f"The model of {name} is in {save}: isfed predict {save} NEW{suffix}")
        finish(results)
    if as_json:
        _print_json(results)


def _print_account(name: str, problem: Any, lines: list[str]) -> None:
    loss, count = type(problem.loss).__name__, problem.data.num_features
    print_line(f"{name}: {lines[0]} {count} features, {loss}.")
    for line in lines[1:]:
        print_line(f"- {line}")


@with_options
def diagnose_problem(
    what: Annotated[
        str, typer.Argument(help="A table (Parquet, CSV, text, LIBSVM ...), or a name: see above.")
    ],
    table: TableOptions,
    agent: Annotated[
        str | None, typer.Option(help="Only for a table: the column that names the agent of a row.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Only for a table: the column to predict.")
    ] = None,
    active: Annotated[
        int | None,
        typer.Option(help="L, agents per round (default: one tenth, or the data set's)."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="B, examples per step, at most (default: 8, or the data set's)."),
    ] = None,
    local_steps: Annotated[
        int | None,
        typer.Option(help="E, steps per agent and round (default: 1, or the data set's)."),
    ] = None,
    ridge: Annotated[
        float | None,
        typer.Option(help=f"Only for a table: weight of |model|^2 in the loss (default: {RIDGE})."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of a run, for which steps are best.")] = 2000,
    theory: Annotated[
        bool, typer.Option("--theory", help="Also print the constants of the paper's lemmas.")
    ] = False,
    data_dir: DataDir = None,
    out: Out = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Would importance sampling help, and by how much? Predicted.

    Fits the model once, on the whole table, and computes there exactly how noisy a round's gradient
    estimate is under uniform sampling and under importance sampling of agents, of examples and of
    both. From this it predicts what every way of `isfed compare` would end with after --rounds at
    its best step size, the largest stable step sizes, and who would be drawn most. For numbers all
    of it is computed. For classes, a few runs of each way find the step size and the loss.

    WHAT is a table (Parquet, CSV, text, LIBSVM, Feather, Excel; give --agent and --target), or a
    name: paper, equal, outliers (the paper's regression), ijcnn1, ijcnn1-natural, parkinsons,
    digits, breast-cancer.
    """
    from isfed.datasets.dataset_files import stem
    from isfed.report.diagnosis_report import (
        answer_lines,
        constant_lines,
        diagnosis_table,
        setting_line,
        strategies_line,
        tuned_table,
    )
    from isfed.studies import ConfigError
    from isfed.studies.diagnosis_folder import check_folder, write_diagnosis
    from isfed.studies.short_runs import ways_by_short_runs
    from isfed.theory import diagnose

    with one_line_errors(stopped="nothing was written", spell=spelled), _only_json(as_json):
        folder = out or Path("runs") / f"diagnose-{stem(Path(what))}"
        if theory and table.weights == "rows":
            raise ConfigError(
                "--theory needs agents of equal weight: leave out --theory or --weights rows"
            )
        with report_long_steps():
            problem, usual, read = _problem_of(what, table, (agent, target), ridge, data_dir)
            problem = _with_work(problem, batch_size, local_steps)
            check_folder(folder, overwrite=overwrite)
            if read is not None:
                _print_account(Path(what).name, problem, read.account.lines())
            result = diagnose(
                problem, num_active=usual if active is None else active, theory=theory,
                rounds=rounds, predict=ways_by_short_runs,
            )  # fmt: skip
            results = write_diagnosis(folder, problem, result, table=read, overwrite=overwrite)
        for line in answer_lines(results):
            print_line(line)
        print_line(setting_line(results))
        if result.tuned:
            console.print(tuned_table(results))
        console.print(diagnosis_table(results))
        if not result.degenerate and not result.tuned:
            print_line(strategies_line(results))
        if theory:
            print_line(
                "Constants of the paper's lemmas and theorem; their limits are bounds, far more "
                "careful than what is stable (docs/theory.md):"
            )
            for line in constant_lines(results):
                print_line(f"  {line}")
        finish(results)
    if as_json:
        _print_json(results)


def _problem_of(
    what: str,
    options: TableOptions,
    columns: tuple[str | None, str | None],
    ridge: float | None,
    data_dir: Path | None,
) -> tuple[Any, int, Any]:
    """The problem of a table or of a name, the usual number of agents per round, and the table."""
    from isfed.studies import ConfigError
    from isfed.studies.dataset_config import NAMED

    agent, target = columns
    if what in NAMED:
        if agent or target or options.given or ridge is not None:
            own = {"--agent": agent, "--target": target, "--ridge": ridge}
            given = [*options.given, *(flag for flag, value in own.items() if value is not None)]
            raise ConfigError(f"{what} is not a table, so it takes no {', '.join(given)}")
        return *NAMED[what](data_dir), None
    if not Path(what).exists():
        raise ConfigError(
            f"{what} is neither a file nor the name of a data set; the names are {', '.join(NAMED)}"
        )
    if agent is None or target is None:
        raise ConfigError(f"{what} is a table: give --agent COLUMN and --target COLUMN")
    source = options.source(Path(what), agent, target, ridge=RIDGE if ridge is None else ridge)
    table = source.table()
    problem = source.problem_of(table)
    return problem, max(1, problem.num_agents // 10), table


def _with_work(problem: Any, batch_size: int | None, local_steps: int | None) -> Any:
    """The problem with other B_k (no larger than an agent) and E_k, where they are given."""
    import numpy as np

    from isfed.studies import ConfigError

    changes: dict[str, Any] = {}
    if batch_size is not None:
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size} must be at least 1")
        changes["batch_size"] = np.minimum(batch_size, problem.data.num_examples)
    if local_steps is not None:
        changes["local_steps"] = local_steps
    return replace(problem, **changes) if changes else problem
