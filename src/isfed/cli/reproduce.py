"""`isfed run` and `isfed reproduce`: experiments of the user's own, and those of the paper."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from isfed.cli.command_helpers import (
    DataDir,
    RunOptions,
    console,
    end_if_diverged,
    one_line_errors,
    print_line,
    with_options,
)
from isfed.cli.report import finish, write_page

if TYPE_CHECKING:
    from isfed.studies import Experiment, Results

app = typer.Typer(help="Reproduce an experiment of the paper.", no_args_is_help=True)


def run_with_progress(
    study: Any, folder: Path, options: RunOptions, preview: Callable[[Results], None] | None = None
) -> Results:
    """Run a study into its folder, with a progress bar."""
    from isfed.report.progress_bar import RunProgress
    from isfed.studies.study_engine import run_study

    with RunProgress(console) as progress:
        return run_study(study, folder, progress=progress, preview=preview, **options.running)


def _run_experiment(
    experiment: Experiment, options: RunOptions, preview: Callable[[Results], None] | None = None
) -> Results:
    """Run into the folder, draw the figure, print the table."""
    from isfed.report.figures import msd_figure
    from isfed.report.terminal_tables import summary_table

    folder = options.out or Path("runs") / experiment.name
    results = run_with_progress(experiment, folder, options, preview)
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
    from isfed.report.terminal_tables import best_step_lines, settling_lines, tested_lines
    from isfed.studies import read_experiment

    if allow_imports:
        sys.path.append(os.getcwd())  # as with `python -m`: a file may name "mine:Sampler"
    with one_line_errors():
        experiment = read_experiment(
            file, allow_imports=allow_imports, trust=trust or (), **options.given
        )
        results = _run_experiment(experiment, options)
        lines = *tested_lines(results), *best_step_lines(results), *settling_lines(results)
        finish(results, lines)
        end_if_diverged(results)


@app.command("regression")
@with_options
def reproduce_regression(
    options: RunOptions,
    engine: Annotated[
        Literal["kernel", "flower"],
        typer.Option(
            help="flower: run a small setting on all engines, including Flower's simulation."
        ),
    ] = "kernel",
    heterogeneity: Annotated[
        bool, typer.Option(help="Also plot the gain against the heterogeneity of the agents.")
    ] = True,
) -> None:
    """The paper's regression (section V-A): 300 agents, 6 per round, 100 repetitions.

    FedAvg and ISFedAvg with oracle, current and running probabilities, and beside them FedAvg with
    the 1/E_k of ISFedAvg and our memory policy.
    """
    with one_line_errors():
        if engine == "flower":
            _on_flower(options)
            return
        from isfed.report.terminal_tables import paper_verdict
        from isfed.studies import paper_regression

        results = _run_experiment(paper_regression(**options.given), options, _first_table)
        finish(results, paper_verdict(results))
        if heterogeneity:  # after the answer, for it takes as long again
            print_line("Now the gain over how unequal the agents are, for the second figure:")
            _heterogeneity(results.path / "heterogeneity", options)
        end_if_diverged(results)


def _first_table(results: Results) -> None:
    from isfed.report.terminal_tables import summary_table

    console.print(summary_table(results))
    print_line("Now the policy that reads all data in every round, which takes longer than these:")


def _on_flower(options: RunOptions) -> None:
    from isfed.cli.federation import print_engines

    _check_numbers(options)
    rounds = 20 if options.rounds is None else options.rounds
    print_engines(rounds=rounds, seed=options.seed or 0)


def _check_numbers(options: RunOptions) -> None:
    """Refuse numbers that cannot be run before anything is loaded."""
    from isfed.studies import ConfigError

    for name, value in options.given.items():
        least = 0 if name == "seed" else 1
        if value < least:
            raise ConfigError(f"{name}={value} must be a whole number >= {least}")


def _heterogeneity(folder: Path, options: RunOptions) -> None:
    """The gain over a grid of problems, and its figure."""
    from isfed.report.figures import heterogeneity_figure

    results = run_with_progress(_study("heterogeneity", options), folder, options)
    heterogeneity_figure(results)
    print_line(f"The gain over heterogeneity is in {write_page(results)}")


@app.command("classification")
@with_options
def reproduce_classification(
    options: RunOptions,
    partition: Annotated[
        Literal["one-class", "natural"],
        typer.Option(help="one-class: every agent holds rows of one class; natural: as they come."),
    ] = "one-class",
    data_dir: DataDir = None,
) -> None:
    """The paper's classification (section V-B) on ijcnn1: 100 agents, 10 per round.

    FedAvg and ISFedAvg with current, running and memory probabilities, all at the paper's step
    size and each again at its own best one, chosen on blocks of training rows held out.
    """
    from isfed.report.terminal_tables import classification_verdict

    with one_line_errors():
        results = _run_tuned("classification", options, data_dir, setting=partition)
        finish(results, classification_verdict(results))
        end_if_diverged(results)


@app.command("writers")
@with_options
def reproduce_writers(options: RunOptions, data_dir: DataDir = None) -> None:
    """MNIST with one agent per writer: softmax regression, tested on other writers."""
    with one_line_errors():
        results = _run_tuned("writers", options, data_dir)
        finish(results)
        end_if_diverged(results)


@app.command("networks")
@with_options
def reproduce_networks(
    options: RunOptions,
    setting: Annotated[
        str,
        typer.Option(help="a, b-dirichlet, b-shards, c, d, e, f, or all (see docs/networks.md)."),
    ] = "all",
    quick: Annotated[
        bool, typer.Option(help="Smaller images, 30 rounds, 2 repetitions: minutes, not hours.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Neural networks: sixteen methods on seven federations, each at its own best step size.

    Needs PyTorch: pip install 'isfed[torch]'.
    """
    with one_line_errors():
        from isfed.studies import ConfigError
        from isfed.studies.experiment_config import study_settings

        _check_numbers(options)
        known = study_settings("networks")
        names = known if setting == "all" else [setting]
        if not set(names) <= set(known):
            raise ConfigError(f"setting={setting!r} must be all or one of {', '.join(known)}")
        size = "quick" if quick else ""
        all_results = [
            _run_network(name, size, options, data_dir, several=len(names) > 1) for name in names
        ]
        for results in all_results:  # only now: a method that diverges does not stop the others
            end_if_diverged(results)


def _study(name: str, options: RunOptions, data_dir: Path | None = None, **chosen: Any) -> Any:
    """A study that comes with isfed, with what was asked for."""
    from isfed.studies.experiment_config import read_study

    _check_numbers(options)
    where = {} if data_dir is None else {"problem": {"data_dir": str(data_dir.absolute())}}
    numbers: dict[str, Any] = options.given
    return read_study(name, changes=where, **chosen, **numbers)


def _run_network(
    setting: str, size: str, options: RunOptions, data_dir: Path | None, *, several: bool
) -> Results:
    """One set-up: run, draw, print."""
    from isfed.report.networks_report import networks_figure, networks_table, networks_verdict

    study = _study("networks", options, data_dir, setting=setting, size=size)
    folder = options.out or Path("runs") / (f"networks-{size}" if size else "networks")
    folder = folder / setting if options.out is None or several else folder
    results = run_with_progress(study, folder, options)
    networks_figure(results)
    console.print(networks_table(results))
    finish(results, networks_verdict(results))
    return results


def _run_tuned(name: str, options: RunOptions, data_dir: Path | None, setting: str = "") -> Results:
    """Choose the step sizes, run, draw, print."""
    from isfed.report.figures import measures_figure
    from isfed.report.terminal_tables import best_step_lines, measures_table, settling_lines

    study = _study(name, options, data_dir, setting=setting)
    results = run_with_progress(study, options.out or Path("runs") / study.name, options)
    measures_figure(results)
    console.print(measures_table(results))
    for line in (*best_step_lines(results), *settling_lines(results)):
        print_line(f"- {line}")
    return results


@app.command("systems")
@with_options
def reproduce_systems(
    options: RunOptions,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version, to see whether it runs.")
    ] = False,
) -> None:
    """Every system that the paper names, on its regression and on synthetic(1,1) of FedProx.

    Measures the distance to the minimiser against rounds, bytes, gradients and virtual seconds.
    --rounds and --repetitions apply to the regression. By default parts of the work run in
    parallel, in one process per core; --backend changes this.
    """
    from isfed.report.systems_report import systems_figures, systems_table

    with one_line_errors():
        study = _study("systems", options, size="quick" if quick else "")
        options = replace(options, backend=options.backend or "loky")
        folder = options.out or Path("runs") / ("systems-quick" if quick else "systems")
        results = run_with_progress(study, folder, options)
        systems_figures(results)
        for problem in dict.fromkeys(a.summary["problem"] for a in results.algorithms):
            console.print(systems_table(results, problem))
        finish(results)
        end_if_diverged(results)
