"""`isfed report`: a results folder, or two, as a page."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isfed.cli.command_helpers import one_line_errors, print_line

if TYPE_CHECKING:
    from isfed.studies import Results

# Where results go, who computes them and what is printed: nothing of that changes them.
NOT_AGAIN = ("out", "resume", "overwrite", "backend", "jobs", "threads", "as_json")


def report(
    folder: Annotated[Path, typer.Argument(help="A results folder.")],
    other: Annotated[
        Path | None, typer.Argument(help="A second results folder, to compare the first with.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file to write (default: report.html in FOLDER, or "
            "report-FOLDER-OTHER.html here)."
        ),
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also draw FOLDER's figures as PNG and SVG, into it.")
    ] = False,
) -> None:
    """Write one HTML page that shows the results: verdict, figures, tables, configuration.

    The page needs no network and no other file. Two folders are put side by side: the settings in
    which they differ, and the curves of both in one figure.
    """
    from isfed.base.atomic_files import write_whole
    from isfed.report.html_page import page
    from isfed.report.page_from_results import page_data
    from isfed.report.two_runs import pair_data
    from isfed.studies import load_results
    from isfed.studies.results_folder import REPORT, check_name

    with one_line_errors(stopped="nothing was written"):
        check_name(out or folder)
        one = load_results(folder)
        if other is None:
            data, usual = page_data(one), folder / REPORT
        else:
            data = pair_data(one, load_results(other))
            usual = Path(f"report-{folder.resolve().name}-{other.resolve().name}.html")
        path = out or usual
        write_whole(path, page(data).encode())
        print_line(f"The report is in {path}")
        if figures:
            from isfed.report.figures import BY_KIND  # loads Matplotlib

            drawn = BY_KIND[one.kind](one) if one.kind in BY_KIND else []
            print_line(f"Figures: {', '.join(map(str, drawn)) or 'none for this kind of folder'}")


def finish(results: Results, lines: Iterable[str] = ()) -> None:
    """Print what there is to say, leave the page beside the results, and say where they are."""
    for line in lines:
        print_line(f"- {line}")
    page = write_page(results)
    print_line(f"Results are in {results.path}; open {page} to see them")


def write_page(results: Results) -> Path:
    """Leave the command that made them, and the page, beside the results; returns the page."""
    from isfed.base.atomic_files import write_whole
    from isfed.report.html_page import page
    from isfed.report.page_from_results import page_data
    from isfed.studies.results_folder import COMMAND, REPORT

    write_whole(results.path / COMMAND, f"{shlex.join(command_again())}\n".encode())
    write_whole(results.path / REPORT, page(page_data(results)).encode())
    return results.path / REPORT


def command_again() -> list[str]:
    """The command that is running, without what has no say in the results."""
    context = _current_context()
    words, options = _names(context), []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name)
        if source is None or source.name != "COMMANDLINE" or parameter.name in NOT_AGAIN:
            continue
        value = context.params[parameter.name]
        if parameter.param_type_name == "argument":
            words.append(str(value))
        elif isinstance(value, bool):
            options.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            for one in value if parameter.multiple else (value,):
                options += [parameter.opts[0], str(one)]
    return ["isfed", *words, *options]


def _names(context: Any) -> list[str]:
    """Of the command and its groups; without the program's own, which may be `python -m isfed`."""
    return [] if context.parent is None else [*_names(context.parent), context.info_name]


def _current_context() -> Any:
    """The context of the running command, from the copy of Click that Typer uses."""
    try:
        module = importlib.import_module("typer._click.globals")  # newer versions bring their own
    except ModuleNotFoundError:
        module = importlib.import_module("click")
    return module.get_current_context()
