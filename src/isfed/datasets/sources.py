"""Where tables come from, files or other libraries: an Arrow table that knows its rows' places."""

from __future__ import annotations

import csv
import difflib
import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet

from isfed.datasets.libsvm import read_libsvm, unpacked

PACKED = (".gz", ".bz2")
SEPARATORS = {".csv": ",", ".tsv": "\t", ".data": ","}  # .data: what UCI calls a CSV file
LIBSVM = (".libsvm", ".svm", ".svmlight", ".trn", ".tst")
LABEL, QUERY = "label", "qid"  # what the columns of a LIBSVM file are called, beside 1, 2, ...


@dataclass(frozen=True, eq=False)
class Source:
    """An Arrow table that can say where in the user's file a row is."""

    table: pa.Table
    name: str = "the table"
    path: Path | None = None

    def column(self, name: str) -> pa.ChunkedArray:
        """A column by its name; if there is none, the error lists what there is."""
        names = self.table.column_names
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            raise ValueError(f"{self.name} has no column {name!r}{hint} (its columns: {shown})")
        return self.table.column(name)

    def place(self, row: int, column: str = "") -> str:
        """Where a row is, for an error: a line of a text file, else a row counted from 1."""
        where = f"{self.name}, row {row + 1}"
        kind = _kind(self.path) if self.path else ""
        if self.path and kind in SEPARATORS:
            where = f"{self.name}, line {_csv_line(self.path, row)}"
        elif self.path and kind in LIBSVM:
            where = f"{self.name}, line {_libsvm_line(self.path, row)}"
        return f"{where}, column {column!r}" if column else where


def open_source(source: Any) -> Source:
    """A path (Parquet, CSV, TSV, LIBSVM), or a table of pandas, polars, Arrow or their like."""
    if isinstance(source, Source):
        return source
    if isinstance(source, str | Path):
        opened = _open_file(Path(source))
    elif hasattr(source, "__arrow_c_stream__"):
        table = pa.RecordBatchReader.from_stream(source).read_all()
        # What pandas adds for row labels that are no column of the user's.
        labels = [name for name in table.column_names if name.startswith("__index_level_")]
        opened = Source(table.drop_columns(labels))
    else:
        raise TypeError(
            f"cannot read a table from {type(source).__name__}: expected a path, or a table with "
            "the Arrow interface (pandas 2.2, polars, pyarrow)"
        )
    repeated = [name for name, n in Counter(opened.table.column_names).items() if n > 1]
    if repeated:
        raise ValueError(f"{opened.name} has more than one column {repeated[0]!r}; rename one")
    if opened.table.num_rows == 0:
        raise ValueError(f"{opened.name} has no rows")
    return opened


def _kind(path: Path) -> str:
    """The suffix that says the format, in lower case."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _open_file(path: Path) -> Source:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    kind = _kind(path)
    if kind in SEPARATORS:
        return Source(_guess_csv(path), str(path), path)
    if kind in LIBSVM:
        return Source(_libsvm_table(path), str(path), path)
    if kind in (".parquet", ".pq"):
        try:
            return Source(arrow_parquet.read_table(path), str(path), path)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{path} is not a Parquet file: {error}") from error
    known = ", ".join((".parquet", ".pq", *SEPARATORS, *LIBSVM))
    raise ValueError(f"{path} ends in {path.suffix or 'nothing'!r}; expected one of {known}")


def _guess_csv(path: Path) -> pa.Table:
    """With types guessed from the values, or as text where a later value defies the guess."""
    try:
        return _parse_csv(path, {})
    except pa.ArrowInvalid as error:
        if "conversion error" not in str(error):
            raise ValueError(_csv_fault(path) or f"{path}: {error}") from error
    header = next(_csv_rows(path))[1]
    return _parse_csv(path, dict.fromkeys(header, pa.string()))


def _parse_csv(path: Path, types: dict[str, pa.DataType]) -> pa.Table:
    return arrow_csv.read_csv(
        io.BytesIO(unpacked(path)),
        parse_options=arrow_csv.ParseOptions(
            delimiter=SEPARATORS[_kind(path)], newlines_in_values=True
        ),
        convert_options=arrow_csv.ConvertOptions(strings_can_be_null=True, column_types=types),
    )


def _csv_rows(path: Path):
    """(line, fields) of every line that is not empty; a quoted field may span lines."""
    text = io.StringIO(unpacked(path).decode("utf-8-sig", errors="replace"), newline="")
    reader = csv.reader(text, delimiter=SEPARATORS[_kind(path)])
    before = 0
    for fields in reader:
        if fields:
            yield before + 1, fields
        before = reader.line_num


def _csv_line(path: Path, row: int) -> int:
    lines = (line for line, _ in _csv_rows(path))
    next(lines)  # the header
    return next(line for number, line in enumerate(lines) if number == row)


def _csv_fault(path: Path) -> str | None:
    """The first line with another number of fields than the header."""
    rows = _csv_rows(path)
    header = next(rows, (0, []))[1]
    if not header:
        return f"{path} is empty; expected a header line and rows"
    for line, fields in rows:
        if len(fields) != len(header):
            return f"{path}, line {line}: {len(fields)} fields, but the header has {len(header)}"
    return None


def _libsvm_table(path: Path) -> pa.Table:
    features, labels, queries = read_libsvm(path)
    columns = {LABEL: labels}
    if np.any(queries != 0):
        columns[QUERY] = queries
    columns.update({str(j + 1): features[:, j] for j in range(features.shape[1])})
    return pa.table(columns)


def _libsvm_line(path: Path, row: int) -> int:
    lines = unpacked(path).decode("utf-8", errors="replace").splitlines()
    filled = (n for n, line in enumerate(lines, start=1) if line.split("#", 1)[0].strip())
    return next(line for number, line in enumerate(filled) if number == row)
