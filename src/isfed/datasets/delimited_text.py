"""Separated text as an Arrow table: encodings, separators, and the line that a row is in."""

from __future__ import annotations

import bisect
import contextlib
import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv

from isfed.datasets.compression import PACKED, unpacked
from isfed.datasets.read_options import BLANKS, Reading

SIGNS = (",", ";", "\t", "|")
USUAL = {".csv": ",", ".tsv": "\t", ".data": ",", ".txt": None}  # .data: what UCI calls a CSV file
HEAD = 1 << 16  # bytes from which encoding and separator are found
PIECE = 1 << 22  # bytes between two places whose line is known
MOST_HEADER = 1 << 26  # bytes of a header that are looked at
ROWS = 6  # lines that a separator has to divide alike
_BOMS = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe\0\0": "utf-32",  # before the next, which it begins with
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
_UNEVEN = (b'"', b"\n\n", b"\n\r")  # where a line may be empty, or go on


class TextFile:
    """A text file with its encoding and its separator, given or found."""

    def __init__(self, path: Path, reading: Reading, usual: str | None) -> None:
        self.path, self.reading = path, reading
        self.plain = path.suffix.lower() not in PACKED
        with path.open("rb") as file:
            head = file.read(HEAD)
        self._content = b"" if self.plain else unpacked(path, reading.most_gigabytes)
        head = head if self.plain else self._content[:HEAD]
        self.encoding = reading.encoding or _encoding(path, head)
        text = head.decode(self.encoding, errors="replace")
        self.sign = reading.sign or _separator(text, usual)
        # As the file is: nothing has to be decoded, and Arrow reads it piece by piece.
        as_it_is = self.encoding in ("utf-8", "utf-8-sig") and self.sign != BLANKS
        self.plain = self.plain and as_it_is
        self._check_width()
        self._marks: list[tuple[int, int, int, bool]] = []

    def _check_width(self) -> None:
        """Refuse a header of too many fields, before a table is made of them."""
        if self.sign != BLANKS:
            with io.BytesIO(self._content) if self._content else self.path.open("rb") as file:
                line = file.readline(MOST_HEADER).decode(self.encoding, errors="replace")
            with contextlib.suppress(csv.Error):  # a name of immense length: Arrow may know better
                fields = next(csv.reader([line], delimiter=self.sign), [])
                self.reading.check_columns(str(self.path), len(fields))

    def content(self) -> bytes:
        """All of it as UTF-8, blanks as tabs."""
        raw = self._content or self.path.read_bytes()
        if self.encoding not in ("utf-8", "utf-8-sig"):
            try:
                raw = raw.decode(self.encoding).encode()
            except (UnicodeDecodeError, UnicodeError) as error:
                raise ValueError(
                    f"{self.path} is not text in encoding={self.encoding!r} ({error})"
                ) from error
        if self.sign == BLANKS:
            raw = re.sub(rb"(?m)^[ \t]+|[ \t]+(?=\r?$)", b"", raw)
            raw = re.sub(rb"[ \t]+", b"\t", raw)
        return raw

    @property
    def delimiter(self) -> str:
        """What is between two fields of the content."""
        return "\t" if self.sign == BLANKS else self.sign

    def table(self) -> pa.Table:
        """With types guessed from the values; as text what defies the guess later in the file."""
        if not (self._content or self.path.stat().st_size):
            raise ValueError(f"{self.path} is empty; expected a header line and rows")
        types: dict[str, pa.DataType] = {}
        header: list[str] | None = None
        while True:
            try:
                found = self._parse(types)
                # What Arrow takes for bytes is text that is not UTF-8.
                if any(pa.types.is_binary(kind) for kind in found.schema.types):
                    raise ValueError(self._not_utf8())
                return found.rename_columns([name.strip() for name in found.column_names])
            except pa.ArrowInvalid as error:
                message = str(error)
                column = re.search(r"In CSV column #(\d+)", message)
                if "invalid UTF8" in message:
                    raise ValueError(self._not_utf8()) from error
                if "Empty CSV" in message:
                    raise ValueError(
                        f"{self.path} has no lines in encoding={self.encoding!r}; name its own"
                    ) from error
                if "conversion error" not in message or column is None:
                    raise ValueError(self._fault() or f"{self.path}: {error}") from error
            if header is None:
                header = next(self.rows())[1]
            name = header[int(column.group(1))]
            if name in types:
                raise ValueError(f"{self.path}: {message}")
            types[name] = pa.string()

    def _parse(self, types: dict[str, pa.DataType]) -> pa.Table:
        # A line break can only be inside a field if there are quotes.
        source = str(self.path) if self.plain else io.BytesIO(self.content())
        return arrow_csv.read_csv(
            source,
            parse_options=arrow_csv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=self._quotes()
            ),
            convert_options=arrow_csv.ConvertOptions(
                strings_can_be_null=True, column_types=types,
                decimal_point="," if self.reading.comma else ".",
            ),
        )  # fmt: skip

    def _quotes(self) -> bool:
        if not self.plain:
            return True
        with self.path.open("rb") as file:
            while piece := file.read(1 << 22):
                if b'"' in piece:
                    return True
        return False

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """(line, fields) of every line that is not empty; a quoted field may span lines."""
        text = self.content().decode("utf-8-sig", errors="replace")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter)
        before = 0
        for fields in reader:
            if fields:
                yield before + 1, fields
            before = reader.line_num

    def line(self, row: int) -> int:
        """The line of a row, counted from 1; the header is a line too."""
        if self.plain and not self._bare_returns():
            return self._plain_line(row)
        lines = (line for line, _ in self.rows())
        next(lines)  # the header
        return next(line for number, line in enumerate(lines) if number == row)

    def _bare_returns(self) -> bool:
        """Whether lines end as they did on old Macs: Arrow knows that, a file of bytes does not."""
        with self.path.open("rb") as file:
            while piece := file.read(PIECE) + file.readline():
                if piece.count(b"\r") != piece.count(b"\r\n"):
                    return True
        return False

    def _plain_line(self, row: int) -> int:
        """The same from the bytes; between odd quotes a line goes on."""
        if not self._marks:
            self._marks = list(self._mark())
        place = bisect.bisect_right(self._marks, row + 1, key=lambda mark: mark[2]) - 1
        start, before, seen, inside = self._marks[place]
        with self.path.open("rb") as file:
            file.seek(start)
            for number, line in enumerate(file, start=before + 1):
                if not inside and line.strip(b"\r\n"):
                    if seen == row + 1:  # the header is the first
                        return number
                    seen += 1
                inside ^= line.count(b'"') % 2 == 1
        raise IndexError(f"{self.path} has no row {row}")

    def _mark(self) -> Iterator[tuple[int, int, int, bool]]:
        """(byte, lines before, filled lines before, inside quotes) every few megabytes."""
        start, number, seen, inside = 0, 0, 0, False
        with self.path.open("rb") as file:
            while piece := file.read(PIECE) + file.readline():
                yield start, number, seen, inside
                start, count = start + len(piece), piece.count(b"\n")
                number += count
                if inside or piece[:1] in b"\r\n" or any(sign in piece for sign in _UNEVEN):
                    for line in io.BytesIO(piece):
                        seen += not inside and bool(line.strip(b"\r\n"))
                        inside ^= line.count(b'"') % 2 == 1
                else:
                    seen += count

    def _fault(self) -> str | None:
        """The first line with another number of fields than the header."""
        rows = self.rows()
        header = next(rows, (0, []))[1]
        if not header:
            return f"{self.path} is empty; expected a header line and rows"
        for line, fields in rows:
            if len(fields) != len(header):
                return (
                    f"{self.path}, line {line}: {len(fields)} fields, but the header has "
                    f"{len(header)}; mend the line, or name the sign between fields (--separator)"
                )
        return None

    def _not_utf8(self) -> str:
        raw = self._content or self.path.read_bytes()
        return _undecodable(self.path, raw)


def _undecodable(path: Path, raw: bytes) -> str:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        sample = raw[error.start : error.start + HEAD]
        return (
            f"{path}, line {line}: the text is not UTF-8 but likely {_likely(sample)}; use "
            f"encoding={_likely(sample)!r}"
        )
    return f"{path}: the text is not UTF-8"


def _likely(raw: bytes) -> str:
    """The likeliest encoding of bytes that are no UTF-8."""
    if any(0x80 <= byte < 0xA0 for byte in raw):
        try:
            raw.decode("cp1252")
        except UnicodeDecodeError:
            return "latin-1"
        return "cp1252"  # Windows: letters where latin-1 has control characters
    return "latin-1"


def _encoding(path: Path, head: bytes) -> str:
    for mark, name in _BOMS.items():
        if head.startswith(mark):
            return name
    if b"\0" in head:
        name = "utf-16-be" if head.startswith(b"\0") else "utf-16-le"
        raise ValueError(
            f"{path} has zero bytes: it is not text, or it is {name}; use encoding={name!r}"
        )
    first = head.partition(b"\n")[0]
    try:
        first.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(_undecodable(path, head)) from error
    return "utf-8"


def _separator(text: str, usual: str | None) -> str:
    """The usual one if it divides the first lines alike, else the one that does."""
    lines = [line for line in text.lstrip("\ufeff").splitlines() if line.strip()][:ROWS]
    if len(text) >= HEAD // 4 and len(lines) < ROWS:
        lines = lines[:-1] or lines  # the last one may be cut

    def fields(sign: str) -> int:
        counts = {len(row) for row in csv.reader(lines, delimiter=sign) if row}
        return counts.pop() if len(counts) == 1 else 0

    if usual is not None and fields(usual) > 1:
        return usual
    best = max(SIGNS, key=fields) if lines else ","
    if fields(best) > 1:
        return best
    blanks = {len(line.split()) for line in lines}
    if usual is None and len(blanks) == 1 and blanks.pop() > 1:
        return BLANKS
    # None divides all lines alike: the one that the header has shows which line is wrong.
    if usual is not None and lines and usual in lines[0]:
        return usual
    in_header = max(SIGNS, key=lambda sign: lines[0].count(sign) if lines else 0)
    return in_header if lines and in_header in lines[0] else usual or ","
