"""The command line."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isfed import __version__
from isfed.designs import ALL_DESIGNS
from isfed.experiments import (
    ConfigError,
    Experiment,
    StoreError,
    read_experiment,
    run_experiment,
)
from isfed.experiments.config import DESIGNS
from isfed.experiments.heterogeneity import Grid, run_grid
from isfed.experiments.steps import NoStepError
from isfed.flower.commands import app as federation
from isfed.flower.commands import print_engines
from isfed.report.progress import RunProgress
from isfed.simulate import DivergenceError

RUN_FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    help="Federated learning under importance sampling.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
reproduce = typer.Typer(help="Run an experiment of the paper again.", no_args_is_help=True)
app.add_typer(reproduce, name="reproduce")
app.add_typer(federation, name="federation")
# A pipe has no width of its own; tables then take what they need instead of being cut at 80.
WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140
console = Console(width=WIDTH)
errors = Console(stderr=True)

Out = Annotated[
    Path | None, typer.Option(help="Folder for the results (default: a folder below runs/).")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue what is in the folder; start if nothing is.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the results in the folder.")]
Rounds = Annotated[int | None, typer.Option(help="Rounds of every repetition.")]
Repetitions = Annotated[int | None, typer.Option(help="Independent repetitions.")]
Seed = Annotated[int | None, typer.Option(help="Seed of all draws.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Cores to use (default: all).")]


def _version(value: bool) -> None:
    if value:
        console.print(f"isfed {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@contextlib.contextmanager
def _one_line_errors(stopped: str = "--resume continues from here") -> Iterator[None]:
    """A user's mistake or a full disk ends in one line and a code, not in a traceback."""
    try:
        yield
    except ConfigError as error:
        _fail(str(error), BAD_USAGE)
    except (StoreError, DivergenceError, NoStepError) as error:
        _fail(str(error), RUN_FAILED)
    except FileNotFoundError as error:
        _fail(str(error), RUN_FAILED)
    except MemoryError:
        _fail("not enough memory for so many rounds and repetitions", RUN_FAILED)
    except ValueError as error:
        _fail(str(error), BAD_USAGE)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _fail(f"{error.strerror or error}{where}; what was saved before is whole", RUN_FAILED)
    except KeyboardInterrupt:
        _fail(f"stopped; {stopped}", INTERRUPTED)


def _fail(message: str, code: int) -> None:
    errors.print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def _run(experiment: Experiment, out: Path | None, options: dict[str, Any]) -> tuple[Path, dict]:
    """Run into the folder, draw the figure, print the table."""
    from isfed.report.figures import msd_figure  # Matplotlib takes a while to import
    from isfed.report.tables import print_summary

    folder = out or Path("runs") / experiment.name
    with RunProgress(console) as progress:
        summary = run_experiment(experiment, folder, progress=progress, **options)
    msd_figure(folder)
    print_summary(summary, console)
    return folder, summary


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    rounds: Rounds = None,
    repetitions: Repetitions = None,
    seed: Seed = None,
    threads: Threads = None,
) -> None:
    """Run an experiment of your own and write its results folder.

    docs/experiments.md explains the file; `isfed reproduce regression` writes one to start from.
    """
    with _one_line_errors():
        experiment = read_experiment(file, rounds=rounds, repetitions=repetitions, seed=seed)
        options = {"resume": resume, "overwrite": overwrite, "threads": threads}
        folder, _ = _run(experiment, out, options)
        console.print(f"Results are in {folder}", highlight=False, markup=False)


@reproduce.command("regression")
def reproduce_regression(
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    rounds: Rounds = None,
    repetitions: Repetitions = None,
    seed: Seed = None,
    threads: Threads = None,
    engine: Annotated[
        Literal["kernel", "flower"],
        typer.Option(help="flower: a small setting on all engines, Flower's simulation included."),
    ] = "kernel",
    heterogeneity: Annotated[
        bool, typer.Option(help="Also draw the gain against the heterogeneity of the agents.")
    ] = True,
) -> None:
    """The paper's regression (section V-A): 300 agents, 6 a round, 100 repetitions.

    FedAvg and ISFedAvg with oracle, current and running probabilities, and beside them FedAvg with
    the 1/E_k of ISFedAvg and our memory policy.
    """
    from isfed.report.figures import heterogeneity_figure
    from isfed.report.tables import paper_verdict

    if engine == "flower":
        with _one_line_errors():
            for name, value, least in (("rounds", rounds, 1), ("seed", seed, 0)):
                if value is not None and value < least:
                    raise ConfigError(f"{name}={value} must be a whole number >= {least}")
            print_engines(rounds=20 if rounds is None else rounds, seed=seed or 0)
        return
    with _one_line_errors():
        with resources.as_file(resources.files("isfed.experiments") / "regression.toml") as path:
            experiment = read_experiment(path, rounds=rounds, repetitions=repetitions, seed=seed)
        options = {"resume": resume, "overwrite": overwrite, "threads": threads}
        folder, summary = _run(experiment, out, options)
        if heterogeneity:
            given = {"rounds": rounds, "repetitions": repetitions, "seed": seed}
            grid = replace(Grid(), **{k: v for k, v in given.items() if v is not None})
            with RunProgress(console) as progress:
                study = run_grid(grid, folder, threads=threads, progress=progress)
            heterogeneity_figure(folder, study)
        for line in paper_verdict(summary):
            console.print(f"- {line}", highlight=False)
        console.print(f"Results are in {folder}", highlight=False, markup=False)


DataDir = Annotated[
    Path | None, typer.Option(help="Folder with the data files (default: $ISFED_DATA).")
]


def _reproduce_tuned(tuned: Any, out: Path | None, options: dict[str, Any]) -> tuple[dict, Path]:
    """Choose the step sizes, run, draw, print."""
    from isfed.experiments.tuned import run_tuned
    from isfed.report.figures import measures_figure
    from isfed.report.tables import measures_table, step_lines

    folder = out or Path("runs") / tuned.name
    with RunProgress(console) as progress:
        summary = run_tuned(tuned, folder, progress=progress, **options)
    measures_figure(folder, summary)
    console.print(measures_table(summary))
    for line in step_lines(summary):
        console.print(f"- {line}", highlight=False)
    return summary, folder


@reproduce.command("classification")
def reproduce_classification(
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    partition: Annotated[
        Literal["one-class", "natural"],
        typer.Option(help="one-class: half of the agents hold positive rows only."),
    ] = "one-class",
    rounds: Rounds = None,
    repetitions: Repetitions = None,
    seed: Seed = None,
    threads: Threads = None,
    data_dir: DataDir = None,
) -> None:
    """The paper's classification (section V-B) on ijcnn1: 100 agents, 10 a round, one example each.

    FedAvg and ISFedAvg with current, running and memory probabilities, all at the paper's step
    size and each again at its own best one, chosen on blocks of training rows held out.
    """
    from isfed.experiments.classification import Ijcnn1Source, paper_classification
    from isfed.report.tables import classification_verdict

    with _one_line_errors():
        source = Ijcnn1Source(partition=partition, data_dir=data_dir)
        tuned = _shortened(paper_classification(source), rounds, repetitions, seed)
        options = {"resume": resume, "overwrite": overwrite, "threads": threads}
        summary, folder = _reproduce_tuned(tuned, out, options)
        for line in classification_verdict(summary):
            console.print(f"- {line}", highlight=False)
        console.print(f"Results are in {folder}", highlight=False, markup=False)


@reproduce.command("writers")
def reproduce_writers(
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    rounds: Rounds = None,
    repetitions: Repetitions = None,
    seed: Seed = None,
    threads: Threads = None,
    data_dir: DataDir = None,
) -> None:
    """MNIST with one agent per writer: softmax regression, tested on writers never seen."""
    from isfed.experiments.classification import WritersSource, writers

    with _one_line_errors():
        tuned = _shortened(writers(WritersSource(data_dir=data_dir)), rounds, repetitions, seed)
        options = {"resume": resume, "overwrite": overwrite, "threads": threads}
        _, folder = _reproduce_tuned(tuned, out, options)
        console.print(f"Results are in {folder}", highlight=False, markup=False)


def _shortened(tuned: Any, rounds: Any, repetitions: Any, seed: Any) -> Any:
    """The same comparison with what the user asked for."""
    given = {"rounds": rounds, "repetitions": repetitions, "seed": seed}
    changes = {name: value for name, value in given.items() if value is not None}
    for name, value in changes.items():
        if value < (0 if name == "seed" else 1):
            raise ConfigError(f"{name}={value} must be at least {0 if name == 'seed' else 1}")
    if rounds is not None:
        changes["grid_rounds"] = min(rounds, tuned.grid_rounds)
    return replace(tuned, **changes)


@app.command()
def compare(
    file: Annotated[Path, typer.Argument(help="Your table: Parquet, CSV or LIBSVM.")],
    agent: Annotated[str, typer.Option(help="The column that says whose row it is.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    task: Annotated[
        str, typer.Option(help="regression (a measured target) or classification.")
    ] = "regression",
    drop: Annotated[
        list[str] | None, typer.Option(help="A column that is no feature; may be repeated.")
    ] = None,
    missing: Annotated[
        str, typer.Option(help="What a missing value is: error, mean, or a number to put there.")
    ] = "error",
    active: Annotated[int | None, typer.Option(help="Agents a round (default: a tenth).")] = None,
    batch_size: Annotated[int, typer.Option(help="Examples a step, at most.")] = 8,
    ridge: Annotated[float, typer.Option(help="Weight of the squared length of the model.")] = 1e-3,
    rounds: Annotated[int, typer.Option(help="Rounds of every repetition.")] = 2000,
    repetitions: Annotated[int, typer.Option(help="Independent repetitions.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 0,
    threads: Threads = None,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Would importance sampling help on your own data, and by how much?

    FedAvg against ISFedAvg on your table, each at its own best step size: how many rounds, uploads
    and gradient evaluations each needs to reach the loss that FedAvg ends with.
    """
    from isfed.experiments.comparison import Budget, problem_of
    from isfed.experiments.comparison import compare as run_comparison
    from isfed.report.comparison import check_free, comparison_table, save_comparison

    with _one_line_errors(stopped="nothing was written"):
        folder = out or Path("runs") / f"compare-{file.stem}"
        check_free(folder, overwrite=overwrite)
        table = _read_own_table(file, agent, target, task, drop or [], missing)
        problem = problem_of(table, ridge=ridge, batch_size=batch_size)
        budget = Budget(
            num_active=max(1, problem.num_agents // 10) if active is None else active,
            rounds=rounds, repetitions=repetitions, seed=seed, threads=threads,
        )  # fmt: skip
        console.print(
            f"{file.name}: {problem.num_agents} agents, {len(problem.data.targets)} rows, "
            f"{problem.data.num_features} features, {type(problem.loss).__name__}",
            highlight=False,
        )
        with RunProgress(console) as progress:
            found = run_comparison(problem, budget, progress=progress)
        save_comparison(folder, found, overwrite=overwrite)
        console.print(comparison_table(found))
        console.print(found.verdict(), highlight=False)
        console.print(f"Results are in {folder}", highlight=False, markup=False)


def _read_own_table(
    file: Path, agent: str, target: str, task: Any, drop: list[str], missing: str
) -> Any:
    """The user's table, without the columns that are no features."""
    from isfed.problems.sources import open_source
    from isfed.problems.tables import Columns, read_table

    if not file.exists():
        raise ConfigError(f"{file} does not exist")
    source = open_source(file)
    names = source.table.column_names
    for name in (agent, target, *drop):
        source.column(name)  # an error that lists the columns if it is not there
    features = [name for name in names if name not in (agent, target, *drop)]
    try:
        filling: Any = missing if missing in ("error", "mean") else float(missing)
    except ValueError:
        raise ConfigError(f"missing={missing!r} must be error, mean or a number") from None
    columns = Columns(agent=agent, target=target, features=features, task=task, missing=filling)
    return read_table(source, columns)


@app.command()
def designs() -> None:
    """List the designs: how n of N units are drawn, and what each guarantees."""
    names = {make: name for name, make in DESIGNS.items()}
    table = Table("design", "guarantees", show_lines=True)
    for design in ALL_DESIGNS:
        table.add_row(names[design], design.guarantee)
    console.print(table)


def main() -> None:
    """Entry point of the console script."""
    app()
