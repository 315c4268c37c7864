"""`isfed report`: a results folder, or two, as a page."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isfed.cli.common import one_line_errors, print_line

if TYPE_CHECKING:
    from isfed.experiments import Results

PAGE = "report.html"
NOT_AGAIN = ("--resume", "--overwrite")  # what to do with old results is not part of the run


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
) -> None:
    """Write one HTML page that shows the results: verdict, figures, tables, configuration.

    The page needs no network and no other file. Two folders are put side by side: the settings in
    which they differ, and the curves of both in one figure.
    """
    from isfed.base.files import write_whole
    from isfed.experiments import load_results
    from isfed.report.from_results import page_data
    from isfed.report.page import page
    from isfed.report.pair import pair_data

    with one_line_errors(stopped="nothing was written"):
        one = load_results(folder)
        if other is None:
            data, usual = page_data(one), folder / PAGE
        else:
            data = pair_data(one, load_results(other))
            usual = Path(f"report-{folder.resolve().name}-{other.resolve().name}.html")
        path = out or usual
        write_whole(path, page(data).encode())
        print_line(f"The report is in {path}")


def finish(results: Results) -> None:
    """Leave the command and the page beside the results, and say where they are."""
    from isfed.base.files import write_whole
    from isfed.report.from_results import COMMAND, page_data
    from isfed.report.page import page

    words = [word for word in sys.argv[1:] if word not in NOT_AGAIN]
    write_whole(results.path / COMMAND, f"{shlex.join(['isfed', *words])}\n".encode())
    write_whole(results.path / PAGE, page(page_data(results)).encode())
    print_line(f"Results are in {results.path}; open {results.path / PAGE} to see them")
