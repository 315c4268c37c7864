"""How a file is read, where its name and its content do not say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from isfed.base.argument_checks import check_fields

SEPARATOR_NAMES = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " "}
LIMITS = ("most_gigabytes", "most_columns")  # on what is read; they change no result
USUAL_COLUMNS = 10_000
BLANKS = "blanks"  # any number of spaces and tabs
FORMATS = ("csv", "svmlight", "parquet", "feather", "excel")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a file is read, where its name and its content do not say.

    Args:
        format: csv (any separated text), svmlight, parquet, feather or excel; by the suffix unless
            given.
        separator: What separates the fields: one character, a word ("tab", "semicolon", "space"),
            or "blanks" for any number of spaces and tabs. Found from the first lines unless given.
        encoding: Such as "latin-1"; UTF-8, or UTF-16 with a byte order mark, unless given.
        decimal: The sign before the decimals, "point" or "comma".
        na: Values that stand for a missing one, for instance "-999".
        header: Whether the first line, or the first row of a sheet, names the columns. Otherwise
            they are called 1, 2, ...
        most_gigabytes: What a packed file may unpack to; unless given, 1 GB or 20 times the file.
        most_columns: The largest number of columns; unless given, 10 000.
    """

    format: Literal["csv", "svmlight", "parquet", "feather", "excel"] | None = None
    separator: str | None = None
    encoding: str | None = None
    decimal: Literal["point", "comma"] = "point"
    na: Sequence[str] = ()
    header: bool = True
    most_gigabytes: float | None = None
    most_columns: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in LIMITS:
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name}={value!r} must be a number above 0")
        if self.encoding is not None:
            try:
                "".encode(self.encoding)  # not only known, but made for texts: base64 is not
            except (LookupError, ValueError):
                raise ValueError(
                    f"encoding={self.encoding!r} is not known; common ones are utf-8, latin-1, "
                    "cp1252 and utf-16"
                ) from None
        sign = self.delimiter
        if sign not in (None, BLANKS) and (len(sign) != 1 or not sign.isascii() or sign in '"\r\n'):
            raise ValueError(
                f"separator={self.separator!r} must be one character, or one of "
                f"{', '.join(SEPARATOR_NAMES)}, {BLANKS}"
            )

    @property
    def delimiter(self) -> str | None:
        """The separator as a character, "blanks", or None if it is to be found."""
        return SEPARATOR_NAMES.get(self.separator or "", self.separator)

    def check_columns(self, name: str, count: int) -> None:
        """Raise a ValueError if a table has more columns than it may have."""
        most = USUAL_COLUMNS if self.most_columns is None else self.most_columns
        if count > most:
            raise ValueError(
                f"{name} has {count} columns, more than the {most} that a table may have; if it is "
                f"the right table, allow them: most_columns={count}"
            )

    @property
    def comma(self) -> bool:
        """Whether decimals come after a comma."""
        return self.decimal == "comma"
