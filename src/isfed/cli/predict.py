"""`isfed predict`: what a saved model says of a new table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from isfed.cli.command_helpers import errors, one_line_errors
from isfed.cli.table_options import MostColumns, MostGigabytes, spelled


def predict_table(
    model: Annotated[Path, typer.Argument(help="A file that `isfed compare --save` wrote.")],
    file: Annotated[Path, typer.Argument(help="The new table; it needs no agents and no target.")],
    out: Annotated[
        Path | None, typer.Option(help="File for the predictions, as CSV (default: print them).")
    ] = None,
    separator: Annotated[
        str | None, typer.Option(help="What separates the fields (default: as in the training).")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of a text (default: as in the training).")
    ] = None,
    decimal: Annotated[
        Literal["point", "comma"] | None,
        typer.Option(help="The sign before decimals (default: as in the training)."),
    ] = None,
    format: Annotated[
        Literal["csv", "svmlight", "parquet", "feather", "excel"] | None,
        typer.Option(help="Format of the file (default: by its suffix)."),
    ] = None,
    most_gigabytes: MostGigabytes = None,
    most_columns: MostColumns = None,
) -> None:
    """Predict the target of every row of a new table.

    The table needs the columns that the model was trained with, under the same names; others are
    ignored. One line is written per row, in the order of the table: the predicted target and, if it
    is a class, the probabilities of all classes.
    """
    import csv
    import io

    from isfed.base.atomic_files import write_whole
    from isfed.datasets.table_sources import open_source
    from isfed.studies.model_file import load_model

    with one_line_errors(stopped="nothing was written", spell=spelled):
        saved = load_model(model)
        given: dict[str, Any] = {"separator": separator, "encoding": encoding, "decimal": decimal}
        given |= {"most_gigabytes": most_gigabytes, "most_columns": most_columns}
        changes = {name: value for name, value in given.items() if value is not None}
        # The format is that of the new file, whatever that of the training was.
        reading = replace(saved.reading, format=format, **changes)
        source = open_source(file, reading)
        columns = saved.columns(source)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        if out is None:
            typer.echo(text.getvalue(), nl=False)
        else:
            write_whole(out, text.getvalue().encode())
            rows = source.table.num_rows
            errors.print(f"{rows} predictions are in {out}", highlight=False, markup=False)
