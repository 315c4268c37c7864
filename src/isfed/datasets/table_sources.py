"""Where tables come from, files or other libraries: an Arrow table that knows its rows' places."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as arrow_compute
import pyarrow.feather as arrow_feather
import pyarrow.parquet as arrow_parquet

from isfed.base.atomic_files import declared_size
from isfed.base.progress import say
from isfed.base.text_format import typed
from isfed.datasets.dataset_files import PACKED, check_size, inner_name, unpacked
from isfed.datasets.delimited_text import BY_SUFFIX, SEPARATORS, TextFile
from isfed.datasets.excel_reader import read_excel
from isfed.datasets.libsvm_reader import libsvm_line, read_libsvm
from isfed.datasets.number_and_date_parsing import as_dates, parse_number
from isfed.datasets.read_options import FORMATS, Reading

SUFFIXES = {
    "parquet": (".parquet", ".pq"),
    "csv": tuple(BY_SUFFIX),
    "svmlight": (".libsvm", ".svm", ".svmlight", ".trn", ".tst"),
    "feather": (".feather", ".arrow"),
    "excel": (".xlsx", ".xlsm"),
}
pc: Any = arrow_compute  # its functions are made at run time, unknown to a type checker
LABEL, QUERY = "label", "qid"  # what the columns of a LIBSVM file are called, beside 1, 2, ...


@dataclass(frozen=True)
class Spot:
    """A row as the file numbers it: a line of a text, a row of a sheet, else counted from 1."""

    line: Callable[[int], int] | None = None
    counted: str = "line"

    def __call__(self, row: int) -> str:
        return f"row {row + 1}" if self.line is None else f"{self.counted} {self.line(row)}"


@dataclass(eq=False)
class Source:
    """An Arrow table that can say where in the user's file a row is."""

    table: pa.Table
    name: str = "the table"
    spot: Spot = Spot()  # from a row to the words for it; does not hold the table
    reading: Reading = field(default_factory=Reading)
    text: TextFile | None = None  # the file, if it is one of text
    unnamed: int = 0  # how many columns without a name were left out, for there are several
    hint: str = ""  # what to try if the columns are not those that were expected

    def column(self, name: str) -> pa.ChunkedArray:
        """A column by its name; if there is none, the error lists what there is."""
        self.check_columns([name])
        return self.table.column(name)

    def check_columns(self, wanted: Iterable[str]) -> None:
        """Raise a ValueError that names all wanted columns that the table does not have."""
        at = self.table.schema.get_field_index  # a list of names for every column is slow
        absent = [name for name in dict.fromkeys(wanted) if at(name) < 0]
        if not absent:
            return
        names = self.table.column_names
        close = {name: difflib.get_close_matches(name, names, n=1) for name in absent}
        alike = [f"{near[0]!r}" for near in close.values() if near]
        hint = f"; did you mean {' and '.join(alike)}?" if alike else ""
        hint = f"; {self.hint}" if self.hint else hint
        if len(names) == 1 and any(sign in names[0] for sign in SEPARATORS):
            hint = "; is another sign between the fields (--separator)?"
        shown = ", ".join(typed(name) for name in names[:20])
        shown += ", ..." if len(names) > 20 else ""
        missing = " and no column ".join(map(repr, absent))
        raise ValueError(f"{self.name} has no column {missing}{hint} (its columns: {shown})")

    def release(self, name: str) -> None:
        """Forget a column, whose memory is then free if nobody else holds it."""
        self.table = self.table.drop_columns([name])

    def read_dates(self, name: str) -> None:
        """Take a column of text for dates from now on, if that is what its words are."""
        column = self.column(name)
        if pa.types.is_string(column.type) and (dates := as_dates(column)) is not column:
            at = self.table.column_names.index(name)
            self.table = self.table.set_column(at, name, dates)

    def rows(self) -> Iterator[Sequence[Any]]:
        """The names of the columns, then every row: of a text file as they are written there."""
        if self.text is None:
            yield self.table.column_names
            yield from zip(*(column.to_pylist() for column in self.table.columns), strict=True)
            return
        if self.text.numbered:
            yield self.text.numbered
        yield from (fields for _, fields in self.text.rows())

    def place(self, row: int, column: str = "") -> str:
        """Where a row is, for an error."""
        where = f"{self.name}, {self.spot(int(row))}"
        return f"{where}, column {column!r}" if column else where


def open_source(source: Any, reading: Reading | None = None) -> Source:
    """A path, or a table of pandas, polars, Arrow or their like.

    Of a path the suffix says the format (Parquet, CSV, TSV, text, LIBSVM, Feather, Excel; packed as
    .gz, .bz2, .xz, .zst or .zip), unless `reading` does.
    """
    if isinstance(source, Source):
        return source
    reading = reading or Reading()
    if isinstance(source, str | Path):
        opened = _open_file(Path(source), reading)
    elif hasattr(source, "__arrow_c_stream__"):
        table = pa.RecordBatchReader.from_stream(source).read_all()
        # What pandas adds for row labels that are no column of the user's.
        labels = [name for name in table.column_names if name.startswith("__index_level_")]
        opened = Source(table.drop_columns(labels), reading=reading)
    else:
        raise TypeError(
            f"cannot read a table from {type(source).__name__}: expected a path, or a table with "
            "the Arrow interface (pandas 2.2, polars, pyarrow)"
        )
    reading.check_columns(opened.name, opened.table.num_columns)
    opened.hint = _header_hint(opened)
    _check_names(opened)
    if opened.table.num_rows == 0:
        raise ValueError(f"{opened.name} has no rows{opened.hint and '; ' + opened.hint}")
    opened.table = _plain_columns(opened.table)
    if reading.na:
        opened.table = _mark_missing(opened.table, reading)
    return opened


def _header_hint(source: Source) -> str:
    """What to try where the names of the columns look like a row of values."""
    by_name = source.text is not None or source.spot.counted == "row"  # the first line names them
    if not (source.reading.header and by_name):
        return ""
    numbers = {
        part.name: parse_number(part.name, comma=source.reading.comma) is not None
        for part in source.table.schema
        if pa.types.is_integer(part.type) or pa.types.is_floating(part.type)
        if part.name
    }
    if not numbers or not all(numbers.values()):
        return ""
    return "the first line looks like values, not like names: if so, use --no-header"


def _check_names(source: Source) -> None:
    """Leave out columns without a name if there are several; other names may occur once."""
    counts = Counter(source.table.column_names)
    if counts[""] > 1:
        source.unnamed = counts.pop("")
        kept = [at for at, name in enumerate(source.table.column_names) if name]
        source.table = source.table.select(kept)
    repeated = [repr(name) for name, n in counts.items() if n > 1]
    if repeated:
        otherwise = source.hint or "rename all but one"
        raise ValueError(
            f"{source.name} has more than one column {' and '.join(repeated[:5])}; {otherwise}"
        )


def _plain_columns(table: pa.Table) -> pa.Table:
    """Text of every kind as plain text, without blanks around it; blank cells are missing.

    Dictionaries are written out: that is all that others have to know.
    """
    for place, part in enumerate(table.schema):
        chunks, kind = table.column(place).chunks, part.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
            chunks = [_as_text(chunk.dictionary).take(chunk.indices) for chunk in chunks]
        kind = pa.string() if _is_text(kind) else kind
        if kind != part.type:
            column = pa.chunked_array([_as_text(chunk) for chunk in chunks], kind)
            table = table.set_column(place, part.name, column)
        if pa.types.is_string(kind):
            words = pc.utf8_trim_whitespace(table.column(place))
            words = pc.if_else(pc.equal(words, ""), None, words)
            table = table.set_column(place, part.name, words)
    return table


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _as_text(values: pa.Array) -> pa.Array:
    """Words as plain text; anything else as it is."""
    if not _is_text(values.type):
        return values
    try:
        return values.cast(pa.string())
    except pa.ArrowNotImplementedError:  # pyarrow 16
        return pa.array(values.to_pylist(), pa.string())


def _format(path: Path, reading: Reading) -> str:
    if reading.format is not None:
        return reading.format
    suffix = Path(inner_name(path)).suffix.lower()
    for name, suffixes in SUFFIXES.items():
        if suffix in suffixes:
            return name
    known = ", ".join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
    likely = _likely_format(path, reading)
    hint = f"; it looks like {likely}, so use" if likely else "; or use"
    raise ValueError(
        f"{path} ends in {suffix or 'nothing'!r}; expected one of {known} (packed: "
        f"{', '.join(PACKED)}){hint} format={likely or FORMATS[0]!r}"
    )


def _likely_format(path: Path, reading: Reading) -> str | None:
    head = unpacked(path, reading.most_gigabytes)[:4096]
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"ARROW1"):
        return "feather"
    first = head.decode("utf-8", errors="replace").split("\n", 1)[0].strip()
    if re.fullmatch(r"[-+\d.eE]+(\s+(qid|\d+):\S+)+(\s*#.*)?", first):
        return "svmlight"
    return "csv" if re.search(r"[,;\t|]", first) else None


def _open_file(path: Path, reading: Reading) -> Source:
    if not path.is_file():
        what = "is a folder" if path.exists() else "does not exist"
        raise FileNotFoundError(f"there is no file {path}: it {what}")
    say(f"reading {path}")
    name, kind = str(path), _format(path, reading)
    if kind == "csv":
        text = TextFile(path, reading, BY_SUFFIX.get(Path(inner_name(path)).suffix.lower()))
        return Source(text.table(), name, Spot(text.line), reading, text)
    if kind == "svmlight":
        content = unpacked(path, reading.most_gigabytes)
        table = _libsvm_table(path, content, reading)
        return Source(table, name, Spot(partial(libsvm_line, content)), reading)
    # Readers of whole files take the path, or what is inside a packed file.
    packed = path.suffix.lower() in PACKED
    whole: Any = io.BytesIO(unpacked(path, reading.most_gigabytes)) if packed else name
    if kind == "excel":
        if zipfile.is_zipfile(whole):  # as a workbook is; its reader refuses everything else
            with zipfile.ZipFile(whole) as archive:
                check_size(path, declared_size(archive), reading.most_gigabytes)
        table, numbers = read_excel(path, whole, header=reading.header)
        return Source(table, name, Spot(numbers.__getitem__, "row"), reading)
    try:
        if kind == "feather":
            return Source(arrow_feather.read_table(whole), name, reading=reading)
        with arrow_parquet.ParquetFile(whole) as file:
            shape = file.metadata
            reading.check_columns(name, shape.num_columns)
            # Equal values take next to no place in a file, and their own in memory.
            check_size(path, 8 * shape.num_rows * shape.num_columns, reading.most_gigabytes)
            return Source(file.read(), name, reading=reading)
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"{path} is not a {kind.title()} file, or it is damaged; fetch it again, or name the "
            "format that it has (--format)"
        ) from error


def _libsvm_table(path: Path, content: bytes, reading: Reading) -> pa.Table:
    features, labels, queries = read_libsvm(path, content=content)
    reading.check_columns(str(path), features.shape[1] + 1)
    columns = {LABEL: labels}
    if np.any(queries != 0):
        columns[QUERY] = queries
    columns.update({str(j + 1): features[:, j] for j in range(features.shape[1])})
    return pa.table(columns)


def _mark_missing(table: pa.Table, reading: Reading) -> pa.Table:
    """The table with nulls in place of the values that stand for a missing one."""
    words = [str(value).strip() for value in reading.na]
    numeric = []
    for word in words:
        with contextlib.suppress(ValueError):
            numeric.append(float(word.replace(",", ".") if reading.comma else word))
    for place, name in enumerate(table.column_names):
        column = table.column(name)
        kind = column.type
        if pa.types.is_string(kind):
            values: pa.Array = pa.array(words, kind)
            missing = pc.is_in(pc.utf8_trim_whitespace(column), value_set=values)
        elif numeric and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            values = pa.array(numeric, pa.float64())
            missing = pc.is_in(column.cast(pa.float64(), safe=False), value_set=values)
        else:
            continue
        if pc.any(missing).as_py():
            empty = pc.if_else(missing, pa.scalar(None, kind), column)
            table = table.set_column(place, name, empty)
    return table
