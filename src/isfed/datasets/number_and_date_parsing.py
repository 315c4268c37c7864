"""Numbers and dates as people write them: "$ 1,234.5", "7 %", "n/a", 31.12.2024, 12/31/2024 8:30.

Arrow's `strptime` is no help with dates: it takes the 30th of February for the 1st of March. Nor
is dateutil: of 3/4/2024 it does not say that day and month may be either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

import pyarrow as pa

UNKNOWN = frozenset(
    ("?", "-", "--", ".", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "missing", "unknown")
)  # in a column of numbers: a value that is not known
_CURRENCY = r"(?:[$€£¥₹]|US\$|USD|EUR|GBP|CHF|JPY|INR|CNY)"
_NUMBER = re.compile(
    rf"(?P<open>\()?\s*(?P<sign>[-+\u2212])?\s*{_CURRENCY}?\s*(?P<inner>[-+\u2212])?\s*"
    rf"(?P<body>[\d.,'\u2019 \u00a0\u202f]*\d[\d.,]*(?:[eE][-+]?\d+)?)\s*(?:{_CURRENCY}|%)?\s*"
    rf"(?P<close>\))?"
)
_GROUPED = re.compile(r"\d{1,3}(?:G\d{3})+".replace("G", r"[,'\u2019 \u00a0\u202f]"))
_DATE = re.compile(
    r"(?P<a>\d{1,2}|\d{4})(?P<sign>[./-])(?P<b>\d{1,2})(?P=sign)(?P<c>\d{1,2}|\d{4})"
    r"(?:[ T]+(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?)?"
)


def is_unknown(word: str) -> bool:
    """Whether a word among numbers means that the value is not known."""
    return word.strip().lower() in UNKNOWN


def parse_number(word: str, *, comma: bool = False) -> float | None:
    """The number that a word is, or None; `comma` if decimals come after a comma.

    >>> [parse_number(word) for word in ("1,234.5", "$ 7", "(12)", "3 %", "1e3", "1,5", "red")]
    [1234.5, 7.0, -12.0, 3.0, 1000.0, None, None]
    >>> [parse_number(word, comma=True) for word in ("1.234,5", "1,5", "7 €")]
    [1234.5, 1.5, 7.0]
    """
    if not comma:
        try:
            return float(word)
        except ValueError:
            pass
    parts = _NUMBER.fullmatch(word.strip())
    if parts is None or bool(parts["open"]) != bool(parts["close"]):
        return None
    body = parts["body"].strip()
    if comma:
        body = body.translate(str.maketrans(".,", ",."))
    whole, point, decimals = body.partition(".")
    if not whole.isdecimal() and whole:
        if _GROUPED.fullmatch(whole) is None or len(set(re.findall(r"\D", whole))) > 1:
            return None
        whole = re.sub(r"\D", "", whole)
    try:
        value = float(whole + point + decimals)
    except ValueError:
        return None
    negative = (parts["sign"] or parts["inner"]) in ("-", "\u2212")
    return -value if negative != bool(parts["open"]) else value


def looks_like_date(word: str) -> bool:
    """Whether a word is written as a date is.

    >>> [looks_like_date(word) for word in ("31.12.2024", "3/4/2024 8:30", "3.4", "1.2.3")]
    [True, True, False, False]
    """
    parts = _DATE.fullmatch(word.strip())
    return parts is not None and (len(parts["a"]) == 4) != (len(parts["c"]) == 4)


def _read(words: Iterable[str], order: str) -> list[datetime] | None:
    """The words as dates, if all are; `order` says which parts are year, month and day."""
    dates = []
    for word in words:
        parts = _DATE.fullmatch(word.strip())
        if parts is None or len(parts[order[0]]) != 4:
            return None
        numbers = [int(parts[part] or 0) for part in (*order, "hour", "minute", "second")]
        try:
            dates.append(datetime(*numbers))  # type: ignore[arg-type]
        except ValueError:
            return None
    return dates


def dates_of(words: Sequence[str]) -> list[datetime] | None:
    """The dates that all the words are; None if they are none, or if day and month may be either.

    After dots the day comes first, as in all countries that write dots.

    >>> dates_of(["31.12.2024", "1.2.2025"])[1].isoformat()
    '2025-02-01T00:00:00'
    >>> dates_of(["12/31/2024", "1/2/2025"])[1].isoformat()
    '2025-01-02T00:00:00'
    >>> dates_of(["3/4/2024"]) is None  # the third of April, or the fourth of March
    True
    """
    if not words or not looks_like_date(words[0]):
        return None
    orders = ("abc", "cba") if "." in words[0] else ("abc", "cba", "cab")
    readings = [dates for order in orders if (dates := _read(words, order)) is not None]
    return readings[0] if readings and readings[0] == readings[-1] else None


def as_dates(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of text as dates, if that is what its words are; as it is otherwise."""
    first = next((w.as_py() for w in column if w.is_valid and not is_unknown(w.as_py())), "")
    if not looks_like_date(first):  # most columns are seen to be something else by one word
        return column
    encoded = column.dictionary_encode().unify_dictionaries()
    words = encoded.chunk(0).dictionary.to_pylist()
    known = [word for word in words if not is_unknown(word)]
    dates = dates_of(known)
    if dates is None:
        return column
    timed = any(date.time() != datetime.min.time() for date in dates)
    at = dict(zip(known, dates, strict=True))
    values = pa.array([at.get(word) for word in words], pa.timestamp("s"))
    values = values if timed else values.cast(pa.date32())
    return pa.chunked_array([values.take(chunk.indices) for chunk in encoded.chunks])
