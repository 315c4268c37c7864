"""Separated text as an Arrow table: encodings, separators, and the line that a row is in."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.compute as arrow_compute
import pyarrow.csv as arrow_csv

from isfed.base.text_format import problem_list
from isfed.datasets.dataset_files import PACKED, unpacked
from isfed.datasets.read_options import BLANKS, Reading

pc: Any = arrow_compute  # its functions are made at run time, unknown to a type checker
SEPARATORS = (",", ";", "\t", "|")
# The usual one; UCI calls its CSV files .data.
BY_SUFFIX = {".csv": ",", ".tsv": "\t", ".data": ",", ".txt": None}
HEAD = 1 << 16  # bytes from which encoding and separator are found
MOST_HEADER = 1 << 26  # characters of a header that are looked at
ROWS = 6  # lines that a separator has to divide alike
CODE = r"^\s*0\d"  # a number that is written with a leading zero
_BOMS = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe\0\0": "utf-32",  # before the next, which it begins with
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}


class TextFile:
    """A text file with its encoding and its separator, given or found."""

    def __init__(self, path: Path, reading: Reading, usual: str | None) -> None:
        self.path, self.reading = path, reading
        packed = path.suffix.lower() in PACKED
        raw = unpacked(path, reading.most_gigabytes) if packed else None
        with path.open("rb") as file:
            head = file.read(HEAD) if raw is None else raw[:HEAD]
        self.encoding = reading.encoding or _encoding(path, head)
        utf8 = self.encoding in ("utf-8", "utf-8-sig")
        separator = reading.delimiter or _separator(
            head.decode(self.encoding, errors="replace"), usual
        )
        self.delimiter = "\t" if separator == BLANKS else separator
        # None if nothing has to be decoded: then Arrow reads the file piece by piece.
        self._content: bytes | None = raw
        if not utf8 or separator == BLANKS:
            self._content = self._as_utf8(path.read_bytes() if raw is None else raw, separator)
        first: list[str] = []
        with self._open() as text, contextlib.suppress(csv.Error):  # Arrow takes longer names
            line = text.readline(MOST_HEADER)
            first = next(csv.reader([line], delimiter=self.delimiter), [])
        reading.check_columns(str(path), len(first))
        self.numbered = None if reading.header else [str(j + 1) for j in range(len(first))]

    def _as_utf8(self, raw: bytes, separator: str) -> bytes:
        try:
            raw = raw if self.encoding == "utf-8" else raw.decode(self.encoding).encode()
        except UnicodeError as error:
            raise ValueError(
                f"{self.path} is not text in encoding={self.encoding!r} ({error})"
            ) from error
        if separator == BLANKS:
            raw = re.sub(rb"(?m)^[ \t]+|[ \t]+(?=\r?$)", b"", raw)
            raw = re.sub(rb"[ \t]+", b"\t", raw)
        return raw

    def _open(self) -> TextIO:
        raw = self.path.open("rb") if self._content is None else io.BytesIO(self._content)
        return io.TextIOWrapper(raw, "utf-8-sig", errors="replace", newline="")

    def table(self) -> pa.Table:
        """With types guessed from the values; as text what defies the guess later in the file."""
        with self._open() as text:
            if not text.read(1):
                raise ValueError(f"{self.path} is empty; expected a header line and rows")
        types: dict[str, pa.DataType] = {}
        while True:
            try:
                table = self._parse(types)
            except pa.ArrowInvalid as error:
                name = self._misread(error)
                if name in types:
                    raise ValueError(f"{self.path}: {error}") from error
                types[name] = pa.string()
                continue
            # What Arrow takes for bytes is text that is not UTF-8.
            if any(pa.types.is_binary(kind) for kind in table.schema.types):
                raise ValueError(_not_utf8(self.path, self._content or self.path.read_bytes()))
            table = self._with_codes(table)
            return table.rename_columns([name.strip() for name in table.column_names])

    def _with_codes(self, table: pa.Table) -> pa.Table:
        """Columns of whole numbers as text if one has a leading zero: 0042 is a code."""
        whole = {f.name: pa.string() for f in table.schema if pa.types.is_integer(f.type)}
        written = self._parse(whole, only=list(whole)) if whole else table.select([])
        for name, column in zip(written.column_names, written.columns, strict=True):
            if pc.any(pc.match_substring_regex(column, CODE)).as_py():
                table = table.set_column(table.column_names.index(name), name, column)
        return table

    def _parse(self, types: dict[str, pa.DataType], only: Sequence[str] = ()) -> pa.Table:
        return arrow_csv.read_csv(
            str(self.path) if self._content is None else io.BytesIO(self._content),
            read_options=arrow_csv.ReadOptions(column_names=self.numbered),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=self._quoted
            ),
            convert_options=arrow_csv.ConvertOptions(
                strings_can_be_null=True, column_types=types, include_columns=only,
                decimal_point="," if self.reading.comma else ".",
            ),
        )  # fmt: skip

    def _misread(self, error: pa.ArrowInvalid) -> str:
        """The column whose type was guessed wrong; a ValueError if that is not what failed."""
        message = str(error)
        column = re.search(r"In CSV column #(\d+)", message)
        if "invalid UTF8" in message:
            fault = _not_utf8(self.path, self._content or self.path.read_bytes())
        elif "Empty CSV" in message:
            fault = f"{self.path} has no lines in encoding={self.encoding!r}; name its own"
        elif "conversion error" in message and column is not None:
            names = self.numbered or next(self.rows())[1]
            return names[int(column.group(1))]
        else:
            fault = problem_list(list(self.uneven_lines())) or f"{self.path}: {error}"
        raise ValueError(fault) from error

    @cached_property
    def _quoted(self) -> bool:
        """Whether there are quotes: only then can a line break be inside a field."""
        with self._open() as text:
            return any(b'"' in piece for piece in iter(partial(text.buffer.read, 1 << 22), b""))

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """(line, fields) of every line that is not empty; a quoted field may span lines."""
        with self._open() as text:
            reader, before = csv.reader(text, delimiter=self.delimiter), 0
            for fields in reader:
                if fields:
                    yield before + 1, fields
                before = reader.line_num

    def line(self, row: int) -> int:
        """The line of a row, counted from 1; the header is a line too."""
        return self._first_lines[row + self.reading.header]

    @cached_property
    def _first_lines(self) -> list[int]:
        """The line in which every row begins, the header first if there is one."""
        if self._quoted:
            return [line for line, _ in self.rows()]
        with self._open() as text:  # every line that is not empty is a row
            return [line for line, row in enumerate(text, start=1) if row.strip("\r\n")]

    def uneven_lines(self) -> Iterator[str]:
        """What is wrong with every line that has another number of fields than the first."""
        rows = self.rows()
        first = next(rows, (0, []))[1]
        if not first:
            yield f"{self.path} is empty; expected a header line and rows"
        for line, fields in rows:
            if len(fields) != len(first):
                yield (
                    f"{self.path}, line {line}: {len(fields)} fields, but the first line has "
                    f"{len(first)}; mend the line, or name the sign between fields (--separator)"
                )


def _not_utf8(path: Path, raw: bytes) -> str:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        sample = raw[error.start : error.start + HEAD]
        likely = "latin-1"
        if any(0x80 <= byte < 0xA0 for byte in sample):  # control characters in latin-1
            with contextlib.suppress(UnicodeDecodeError):
                sample.decode("cp1252")
                likely = "cp1252"  # Windows has letters there
        return (
            f"{path}, line {line}: the text is not UTF-8 but likely {likely}; use "
            f"encoding={likely!r}"
        )
    return f"{path}: the text is not UTF-8"


def _encoding(path: Path, head: bytes) -> str:
    for mark, name in _BOMS.items():
        if head.startswith(mark):
            return name
    if b"\0" in head:
        name = "utf-16-be" if head.startswith(b"\0") else "utf-16-le"
        raise ValueError(
            f"{path} has zero bytes: it is not text, or it is {name}; use encoding={name!r}"
        )
    try:
        head.partition(b"\n")[0].decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(_not_utf8(path, head)) from error
    return "utf-8"


def _separator(text: str, usual: str | None) -> str:
    """The usual one if it divides the first lines alike, else the one that does.

    Python's `csv.Sniffer` takes the blank between date and time for one, if it may be a blank.
    """
    lines = [line for line in text.lstrip("\ufeff").splitlines() if line.strip()][:ROWS]
    if len(text) >= HEAD // 4 and len(lines) < ROWS:
        lines = lines[:-1] or lines  # the last one may be cut

    def fields(sign: str) -> int:
        counts = {len(row) for row in csv.reader(lines, delimiter=sign) if row}
        return counts.pop() if len(counts) == 1 else 0

    for sign in (usual, max(SEPARATORS, key=fields)):
        if sign is not None and fields(sign) > 1:
            return sign
    blanks = {len(line.split()) for line in lines}
    if usual is None and len(blanks) == 1 and blanks.pop() > 1:
        return BLANKS
    # None divides all lines alike: the one that the header has shows which line is wrong.
    header = lines[0] if lines else ""
    likely = (usual, max(SEPARATORS, key=header.count))
    return next((sign for sign in likely if sign and sign in header), usual or ",")
