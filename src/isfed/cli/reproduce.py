"""`isfed reproduce`: the paper's experiments."""

from __future__ import annotations

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
from isfed.cli.run import run_and_report

if TYPE_CHECKING:
    from isfed.studies import Results
    from isfed.studies.tuned_step_sizes import Tuned

app = typer.Typer(help="Reproduce an experiment of the paper.", no_args_is_help=True)


@app.command("regression")
@with_options
def regression(
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

        results = run_and_report(paper_regression(**options.given), options)
        if heterogeneity:
            _heterogeneity(results.path / "heterogeneity", options)
        for line in paper_verdict(results):
            print_line(f"- {line}")
        finish(results)
        end_if_diverged(results)


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
    from isfed.report.progress_bar import RunProgress
    from isfed.studies.heterogeneity_study import Grid
    from isfed.studies.study_engine import run_study

    grid = replace(Grid(), **options.given)
    with RunProgress(console) as progress:
        results = run_study(grid, folder, progress=progress, **options.running)
    heterogeneity_figure(results)
    write_page(results)


@app.command("classification")
@with_options
def classification(
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
    from isfed.studies.tuned_step_sizes import Ijcnn1Source, paper_classification

    with one_line_errors():
        source = Ijcnn1Source(partition=partition, data_dir=data_dir)
        results = _run_tuned(paper_classification(source), options)
        for line in classification_verdict(results):
            print_line(f"- {line}")
        finish(results)
        end_if_diverged(results)


@app.command("writers")
@with_options
def writers(options: RunOptions, data_dir: DataDir = None) -> None:
    """MNIST with one agent per writer: softmax regression, tested on other writers."""
    from isfed.studies.tuned_step_sizes import WritersSource, tuned_writers

    with one_line_errors():
        results = _run_tuned(tuned_writers(WritersSource(data_dir=data_dir)), options)
        finish(results)
        end_if_diverged(results)


@app.command("networks")
@with_options
def networks(
    options: RunOptions,
    setting: Annotated[
        str,
        typer.Option(help="a, b-dirichlet, b-shards, c, d, e, or all (see docs/networks.md)."),
    ] = "all",
    quick: Annotated[
        bool, typer.Option(help="Smaller images, 30 rounds, 2 repetitions: minutes, not hours.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Neural networks: eleven methods on six federations, each at its own best step size.

    Needs PyTorch: pip install 'isfed[torch]'.
    """
    with one_line_errors():
        from isfed.studies import ConfigError
        from isfed.studies.networks_study import SETTINGS, NetworkStudy

        _check_numbers(options)
        names = list(SETTINGS) if setting == "all" else [setting]
        if not set(names) <= set(SETTINGS):
            raise ConfigError(f"setting={setting!r} must be all or one of {', '.join(SETTINGS)}")
        found = []
        for name in names:
            chosen = SETTINGS[name]
            source = replace(chosen.source, data_dir=data_dir)
            study = NetworkStudy(replace(chosen, source=source))
            found.append(_run_network(study, options, quick, len(names)))
        for results in found:  # only now: a method that diverges does not stop the others
            end_if_diverged(results)


def _run_network(study: Any, options: RunOptions, short: bool, count: int) -> Results:
    """One set-up: run, draw, print."""
    from isfed.report.networks_report import networks_figure, networks_table, networks_verdict
    from isfed.report.progress_bar import RunProgress
    from isfed.studies.networks_study import quick
    from isfed.studies.study_engine import run_study

    study = quick(study) if short else study
    given = dict(options.given)
    rounds = given.pop("rounds", None)
    if rounds is not None:
        study = replace(study, setting=replace(study.setting, rounds=rounds))
        study = replace(study, grid_rounds=min(rounds, study.grid_rounds))
    study = replace(study, **given)
    folder = options.out or Path("runs") / ("networks-quick" if short else "networks")
    folder = folder / study.setting.name if options.out is None or count > 1 else folder
    with RunProgress(console) as progress:
        results = run_study(study, folder, progress=progress, **options.running)
    networks_figure(results)
    console.print(networks_table(results))
    for line in networks_verdict(results):
        print_line(f"- {line}")
    finish(results)
    return results


def _run_tuned(tuned: Tuned, options: RunOptions) -> Results:
    """Choose the step sizes, run, draw, print."""
    from isfed.report.figures import measures_figure
    from isfed.report.progress_bar import RunProgress
    from isfed.report.terminal_tables import best_step_lines, measures_table, settling_lines
    from isfed.studies.study_engine import run_study

    _check_numbers(options)
    tuned = replace(tuned, **options.given)
    if options.rounds is not None:
        tuned = replace(tuned, grid_rounds=min(options.rounds, tuned.grid_rounds))
    folder = options.out or Path("runs") / tuned.name
    with RunProgress(console) as progress:
        results = run_study(tuned, folder, progress=progress, **options.running)
    measures_figure(results)
    console.print(measures_table(results))
    for line in (*best_step_lines(results), *settling_lines(results)):
        print_line(f"- {line}")
    return results


@app.command("systems")
@with_options
def systems(
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
    from isfed.report.progress_bar import RunProgress
    from isfed.report.systems_report import systems_figures, systems_table
    from isfed.studies.study_engine import run_study
    from isfed.studies.systems_study import QUICK, Systems

    with one_line_errors():
        _check_numbers(options)
        study = replace(Systems(), **((QUICK if quick else {}) | options.given))
        running = replace(options, backend=options.backend or "loky").running
        folder = options.out or Path("runs") / ("systems-quick" if quick else "systems")
        with RunProgress(console) as progress:
            results = run_study(study, folder, progress=progress, **running)
        systems_figures(results)
        for problem in dict.fromkeys(a.summary["problem"] for a in results.algorithms):
            console.print(systems_table(results, problem))
        finish(results)
        end_if_diverged(results)
