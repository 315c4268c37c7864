"""Dates as people write them: 31.12.2024, 12/31/2024, 2024-12-31 08:30."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

import pyarrow as pa

from isfed.datasets.number_parsing import unknown

_DATE = re.compile(
    r"(?P<a>\d{1,2}|\d{4})(?P<sign>[./-])(?P<b>\d{1,2})(?P=sign)(?P<c>\d{1,2}|\d{4})"
    r"(?:[ T]+(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?)?"
)
_PLACES = {"year first": "abc", "day first": "cba", "month first": "cab"}  # year, month, day


def looks_like_date(word: str) -> bool:
    """Whether a word is written as a date is.

    >>> [looks_like_date(word) for word in ("31.12.2024", "3/4/2024 8:30", "3.4", "1.2.3")]
    [True, True, False, False]
    """
    found = _DATE.fullmatch(word.strip())
    return found is not None and (len(found["a"]) == 4) != (len(found["c"]) == 4)


def _read(words: Iterable[str], places: str) -> list[datetime] | None:
    """The words as dates, if all of them are such in this order of year, month and day."""
    dates = []
    for word in words:
        found = _DATE.fullmatch(word.strip())
        if found is None or len(found[places[0]]) != 4:
            return None
        clock = [int(found[part] or 0) for part in ("hour", "minute", "second")]
        try:
            dates.append(datetime(*(int(found[place]) for place in places), *clock))  # type: ignore[arg-type]
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
    orders = ["year first", "day first"]
    if "." not in words[0]:
        orders.append("month first")
    found = [dates for order in orders if (dates := _read(words, _PLACES[order])) is not None]
    return found[0] if len(found) == 1 or (found and found[0] == found[-1]) else None


def as_dates(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of text as dates, if that is what its words are; as it is otherwise."""
    first = next((w.as_py() for w in column if w.is_valid and not unknown(w.as_py())), "")
    if not looks_like_date(first):  # most columns are seen to be something else by one word
        return column
    encoded = column.dictionary_encode().unify_dictionaries()
    words = encoded.chunk(0).dictionary.to_pylist()
    known = [word for word in words if not unknown(word)]
    dates = dates_of(known)
    if dates is None:
        return column
    timed = any(date.time() != datetime.min.time() for date in dates)
    at = dict(zip(known, dates, strict=True))
    values = pa.array([at.get(word) for word in words], pa.timestamp("s"))
    values = values if timed else values.cast(pa.date32())
    return pa.chunked_array([values.take(chunk.indices) for chunk in encoded.chunks])
