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
    from isfed.studies import Results

app = typer.Typer(help="Reproduce an experiment of the paper.", no_args_is_help=True)
RUNS = Path("runs")  # where results go by default
QUICK, SMALL = "quick", "-quick"  # the size of a study, and the end of its folder's name


def run_with_progress(
    study: Any, folder: Path, options: RunOptions, preview: Callable[[Results], None] | None = None
) -> Results:
    """Run a study into its folder, with a progress bar."""
    from isfed.report.progress_bar import RunProgress
    from isfed.studies.study_engine import run_study

    with RunProgress(console) as progress:
        return run_study(study, folder, progress=progress, preview=preview, **options.running)


def _show(results: Results, kind: str) -> list[str]:
    """Draw the figure of a kind of study and print its tables; returns what is left to say."""
    from isfed.report import figures, networks_report, systems_report
    from isfed.report import terminal_tables as text
    from isfed.report.page_sentences import by_problem

    if kind == "networks":
        networks_report.networks_figure(results)
        tables = [networks_report.networks_table(results)]
        lines = networks_report.networks_verdict(results)
    elif kind == "systems":
        systems_report.systems_figures(results)
        problems = dict.fromkeys(a.summary["problem"] for a in results.algorithms)
        tables = [systems_report.systems_table(results, problem) for problem in problems]
        lines = []
    elif kind == "tuned":
        figures.measures_figure(results)
        tables = [text.measures_table(results)]
        lines = [*text.best_step_lines(results), *text.settling_lines(results)]
        if results.summary["landmarks"]["paper_test_error"]:
            lines += text.classification_verdict(results)
    else:
        if results.kind in figures.BY_KIND:
            figures.BY_KIND[results.kind](results)
        tables = [text.summary_table(part) for _, part in by_problem(results)]
        lines = [*text.tested_lines(results), *text.best_step_lines(results)]
        lines += text.settling_lines(results)
    for table in tables:
        console.print(table)
    return lines


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
    from isfed.studies import read_experiment

    if allow_imports:
        sys.path.append(os.getcwd())  # as with `python -m`: a file may name "mine:Sampler"
    with one_line_errors():
        experiment = read_experiment(
            file, allow_imports=allow_imports, trust=trust or (), **options.given
        )
        results = run_with_progress(experiment, options.out or RUNS / experiment.name, options)
        finish(results, _show(results, "experiment"))
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

        study = _study("regression", options)
        results = run_with_progress(study, options.out or RUNS / study.name, options, _first_table)
        _show(results, "experiment")
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
    with one_line_errors():
        end_if_diverged(_reproduce("classification", options, data_dir, setting=partition))


@app.command("writers")
@with_options
def reproduce_writers(options: RunOptions, data_dir: DataDir = None) -> None:
    """MNIST with one agent per writer: softmax regression, tested on other writers."""
    with one_line_errors():
        end_if_diverged(_reproduce("writers", options, data_dir))


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

        known = study_settings("networks")
        names = known if setting == "all" else [setting]
        if not set(names) <= set(known):
            raise ConfigError(f"setting={setting!r} must be all or one of {', '.join(known)}")
        chosen = [(name, options) for name in names]
        if options.out is None or len(names) > 1:
            parent = options.out or RUNS / f"networks{SMALL * quick}"
            chosen = [(name, replace(options, out=parent / name)) for name in names]
        all_results = [
            _reproduce("networks", where, data_dir, setting=name, size=QUICK * quick)
            for name, where in chosen
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


def _reproduce(
    name: str, options: RunOptions, data_dir: Path | None = None, **chosen: Any
) -> Results:
    """Run a study that comes with isfed, and show what came out."""
    study = _study(name, options, data_dir, **chosen)
    results = run_with_progress(study, options.out or RUNS / study.name, options)
    finish(results, _show(results, study.kind))
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
    folder = options.out or RUNS / f"systems{SMALL * quick}"
    options = replace(options, out=folder, backend=options.backend or "loky")
    with one_line_errors():
        end_if_diverged(_reproduce("systems", options, size=QUICK * quick))
