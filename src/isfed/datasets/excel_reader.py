"""The sheet that an Excel file opens with, as an Arrow table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa


def read_excel(path: Path, content: Any, *, header: bool) -> tuple[pa.Table, list[int]]:
    """The sheet that the file opens with, and the number that Excel shows beside each row.

    Rows and nameless columns without a value are left out. The first row that is not empty names
    the columns if there is a `header`. `content` is the path, or the file if it was unpacked.
    """
    filled = [
        (number, row)
        for number, row in enumerate(_rows(path, content), start=1)
        if any(value is not None for value in row)
    ]
    if not filled:
        raise ValueError(f"{path} has no rows")
    width = max(len(row) for _, row in filled)
    first, titles = filled[0] if header else (0, range(1, width + 1))
    rows = filled[1:] if header else filled
    names, arrays = [], []
    for place in range(width):
        name = titles[place] if place < len(titles) else None
        values = [row[place] if place < len(row) else None for _, row in rows]
        if name is None and all(value is None for value in values):
            continue
        if name is None:
            raise ValueError(
                f"{path}: row {first} of the sheet does not name all columns (column {place + 1} "
                "has no name); the first filled row must name the columns: delete what is above it"
            )
        names.append(str(name).strip())
        arrays.append(_cells(values))
    return pa.Table.from_arrays(arrays, names=names), [number for number, _ in rows]


def _rows(path: Path, content: Any) -> list[tuple]:
    try:
        import openpyxl  # type: ignore[import-not-found]
    except ImportError:
        raise ValueError(
            f"{path} is an Excel file, which needs openpyxl: pip install 'isfed[excel]', or save "
            "it as CSV"
        ) from None
    try:
        workbook = openpyxl.load_workbook(content, read_only=True, data_only=True)
    except Exception as error:  # of its own kinds, and of zip's and XML's
        raise ValueError(f"{path} is not an Excel file: {error}") from error
    sheet: Any = workbook.active
    rows = list(sheet.iter_rows(values_only=True))
    workbook.close()  # which reads from the file until then
    return rows


def _cells(values: list) -> pa.Array:
    """A column of a sheet; a mixture of kinds as text."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values])
