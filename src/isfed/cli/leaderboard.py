"""`isfed leaderboard`: every method under one protocol, and `verify`, which runs parts again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from isfed.cli.command_helpers import (
    RUN_FAILED,
    RunOptions,
    console,
    fail,
    one_line_errors,
    print_line,
    with_options,
)
from isfed.cli.report import finish
from isfed.cli.reproduce import run_with_progress

app = typer.Typer(invoke_without_command=True)


@app.callback()
@with_options
def leaderboard(
    context: typer.Context,
    options: RunOptions,
    file: Annotated[
        Path | None, typer.Option(help="The protocol as TOML (default: that of isfed).")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version: minutes, to see how it works.")
    ] = False,
    size: Annotated[
        str, typer.Option(help="A smaller version that the protocol names: quick or first.")
    ] = "",
    methods: Annotated[
        str, typer.Option(help="Methods that take part, separated by semicolons (default: all).")
    ] = "",
    problems: Annotated[
        str, typer.Option(help="Problems to run on, separated by semicolons (default: all).")
    ] = "",
    trials: Annotated[
        int | None, typer.Option(help="Trials of every method on every problem.")
    ] = None,
    factorial: Annotated[
        bool, typer.Option(help="Whether every combination of parts runs too.")
    ] = True,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            help="A Python file with methods of your own, which is run, or the name of an entry "
            "point in the group isfed.methods; may be repeated."
        ),
    ] = None,
) -> None:
    """Rank methods under one protocol: equal tuning, other seeds, costs counted by us.

    docs/leaderboard.md explains it. By default parts of the work run in parallel, in one process
    per core; --backend changes this.
    """
    if context.invoked_subcommand is not None:
        return
    from isfed.report.leaderboard_report import leaderboard_tables
    from isfed.studies.leaderboard_config import read_protocol
    from isfed.studies.leaderboard_study import Leaderboard

    size = "quick" if quick else size
    with one_line_errors():
        protocol = read_protocol(
            file, size=size, methods=_names(methods), problems=_names(problems),
            plugins=plugin or (), factorial=factorial, trials=trials, **options.given,
        )  # fmt: skip
        if options.backend is None and options.jobs != 1:
            options = replace(options, backend="loky")
        folder = options.out or Path("runs") / f"{protocol.name}{size and f'-{size}'}"
        results = run_with_progress(Leaderboard(protocol), folder, options)
        for table in leaderboard_tables(results, short=True):
            console.print(table)
        sentences = results.summary["factorial"].get("sentences", ())[:-1]  # the verdict has it
        finish(results, (results.summary["verdict"], *sentences))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(";") if name.strip())


@app.command("verify")
def verify_leaderboard(
    folder: Annotated[Path, typer.Argument(help="The results folder of a leaderboard.")],
    cells: Annotated[int, typer.Option(min=1, help="How many runs to repeat.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of runs.")] = 0,
    plugin: Annotated[
        list[str] | None, typer.Option(help="As given to `isfed leaderboard`; may be repeated.")
    ] = None,
) -> None:
    """Run random parts of a leaderboard again and compare them bit for bit."""
    from isfed.studies import load_results
    from isfed.studies.leaderboard_entries import plugin_methods
    from isfed.studies.leaderboard_study import verify

    with one_line_errors(stopped="nothing was written"):
        plugin_methods(plugin or ())
        different = []
        for name, repetition, same in verify(load_results(folder), cells, seed):
            print_line(f"{'same     ' if same else 'DIFFERENT'}  {name}, run {repetition}")
            different += [] if same else [name]
        if different:
            fail(f"{len(different)} of {cells} runs differ: {', '.join(different)}", RUN_FAILED)
        print_line("All of them are the same bit for bit.")
