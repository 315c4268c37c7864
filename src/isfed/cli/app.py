"""The command line."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from isfed import __version__
from isfed.cli import tables
from isfed.cli.common import (
    DataDir,
    Out,
    Overwrite,
    Repetitions,
    Resume,
    Rounds,
    Seed,
    Threads,
    console,
    one_line_errors,
    print_line,
)
from isfed.cli.federation import app as federation
from isfed.cli.federation import print_engines
from isfed.experiments import (
    ConfigError,
    Experiment,
    read_experiment,
    run_experiment,
)
from isfed.experiments.config import DESIGNS
from isfed.experiments.heterogeneity import Grid, run_grid
from isfed.report.progress import RunProgress
from isfed.sampling.designs import ALL_DESIGNS

app = typer.Typer(
    help="Federated learning under importance sampling.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
reproduce = typer.Typer(help="Run an experiment of the paper again.", no_args_is_help=True)
app.add_typer(reproduce, name="reproduce")
app.add_typer(federation, name="federation")
app.command()(tables.compare)
app.command()(tables.diagnose)


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
    with one_line_errors():
        experiment = read_experiment(file, rounds=rounds, repetitions=repetitions, seed=seed)
        options = {"resume": resume, "overwrite": overwrite, "threads": threads}
        folder, _ = _run(experiment, out, options)
        print_line(f"Results are in {folder}")


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
        with one_line_errors():
            for name, value, least in (("rounds", rounds, 1), ("seed", seed, 0)):
                if value is not None and value < least:
                    raise ConfigError(f"{name}={value} must be a whole number >= {least}")
            print_engines(rounds=20 if rounds is None else rounds, seed=seed or 0)
        return
    with one_line_errors():
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
        print_line(f"Results are in {folder}")


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

    with one_line_errors():
        source = Ijcnn1Source(partition=partition, data_dir=data_dir)
        tuned = _shortened(paper_classification(source), rounds, repetitions, seed)
        options = {"resume": resume, "overwrite": overwrite, "threads": threads}
        summary, folder = _reproduce_tuned(tuned, out, options)
        for line in classification_verdict(summary):
            console.print(f"- {line}", highlight=False)
        print_line(f"Results are in {folder}")


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

    with one_line_errors():
        tuned = _shortened(writers(WritersSource(data_dir=data_dir)), rounds, repetitions, seed)
        options = {"resume": resume, "overwrite": overwrite, "threads": threads}
        _, folder = _reproduce_tuned(tuned, out, options)
        print_line(f"Results are in {folder}")


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
