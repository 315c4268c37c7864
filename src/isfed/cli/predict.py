"""`isfed predict`: what a saved model says of a new table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from isfed.cli.command_helpers import errors, one_line_errors, with_options
from isfed.cli.table_options import ReadingOptions, spelled


@with_options
def predict_table(
    model: Annotated[Path, typer.Argument(help="A file that `isfed compare --save` wrote.")],
    file: Annotated[Path, typer.Argument(help="The new table; it needs no agents and no target.")],
    *,
    out: Annotated[
        Path | None, typer.Option(help="File for the predictions, as CSV (default: print them).")
    ] = None,
    append: Annotated[
        bool,
        typer.Option("--append", help="Write the rows of the new table too, each as it is there."),
    ] = False,
    options: ReadingOptions,
) -> None:
    """Predict the target of every row of a new table.

    The table needs the columns that the model was trained with, under the same names; others are
    ignored. One line is written per row, in the order of the table: the predicted target and, if it
    is a class, the probabilities of all classes. With --append they come after the columns that the
    table has. The file is read as that of the training was, unless options say otherwise.
    """
    import csv
    import io

    from isfed.base.atomic_files import write_whole
    from isfed.datasets.read_options import Reading
    from isfed.datasets.table_sources import open_source
    from isfed.studies.model_file import load_model

    with one_line_errors(stopped="nothing was written", spell=spelled):
        saved = load_model(model)
        # The format is that of the new file, whatever that of the training was.
        reading = replace(saved.reading, **{"format": None, **options.fields_of(Reading)})
        source = open_source(file, reading)
        # The rows first: encoding turns words into dates where it finds some.
        given_rows = list(source.rows()) if append else [()] * (source.table.num_rows + 1)
        columns = saved.columns(source)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*given_rows[0], *saved.names(given_rows[0], file)])
        predicted = zip(*columns.values(), strict=True)
        pairs = zip(given_rows[1:], predicted, strict=True)
        writer.writerows([*row, *values] for row, values in pairs)
        if out is None:
            typer.echo(text.getvalue(), nl=False)
        else:
            write_whole(out, text.getvalue().encode())
            rows = source.table.num_rows
            errors.print(f"{rows} predictions are in {out}", highlight=False, markup=False)
