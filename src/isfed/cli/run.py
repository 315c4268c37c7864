"""`isfed run`: an experiment of the user's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isfed.cli.command_helpers import (
    RunOptions,
    console,
    end_if_diverged,
    one_line_errors,
    print_line,
    with_options,
)
from isfed.cli.report import finish

if TYPE_CHECKING:
    from isfed.studies import Experiment, Results


def run_and_report(experiment: Experiment, options: RunOptions) -> Results:
    """Run into the folder, draw the figure, print the table."""
    from isfed.report.figures import msd_figure
    from isfed.report.progress_bar import RunProgress
    from isfed.report.terminal_tables import summary_table
    from isfed.studies import run_experiment

    folder = options.out or Path("runs") / experiment.name
    with RunProgress(console) as progress:
        results = run_experiment(experiment, folder, progress=progress, **options.running)
    msd_figure(results)
    console.print(summary_table(results))
    return results


@with_options
def run(
    file: Annotated[Path, typer.Argument(help="A TOML file that describes the experiment.")],
    options: RunOptions,
    trust: Annotated[
        list[Path] | None,
        typer.Option(
            help="A folder with Python modules that the file may name and run; may be repeated."
        ),
    ] = None,
    allow_imports: Annotated[
        bool,
        typer.Option(
            "--allow-imports",
            help="Let the file name and run any module, of the current folder or installed.",
        ),
    ] = False,
) -> None:
    """Run an experiment of your own and write its results folder.

    docs/experiments.md explains the file; `isfed reproduce regression` writes one to start from.
    The file can name methods, policies and designs of your own as "module:Class". Their modules are
    run, so that you have to say which you trust: those of a folder (--trust), or all.
    """
    from isfed.report.terminal_tables import settling_lines
    from isfed.studies import read_experiment

    if allow_imports:
        sys.path.append(os.getcwd())  # as with `python -m`: a file may name "mine:Sampler"
    with one_line_errors():
        experiment = read_experiment(
            file, allow_imports=allow_imports, trust=trust or (), **options.given
        )
        results = run_and_report(experiment, options)
        for line in settling_lines(results):
            print_line(f"- {line}")
        finish(results)
        end_if_diverged(results)
