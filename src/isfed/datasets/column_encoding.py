"""From the columns of a table to numbers: measurements, categories, classes, agents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from isfed.datasets.number_and_date_parsing import is_unknown, looks_like_date, parse_number
from isfed.datasets.table_sources import Source
from isfed.problems.losses import LARGEST

MOST_CATEGORIES = 1000
UNNAMED = re.compile(r"(Unnamed: \d+)?")  # pandas writes a number for the missing name
ROW_NUMBER = "the number of the row"
CODE = re.compile(r"0\d+")
MOST_MEASURED = 1e151  # beyond, the squares that a scale is found from overflow


def _short(kind: pa.DataType) -> str:
    return str(kind).partition("<")[0]  # what is inside is told differently by every release


def _distinct(column: pa.ChunkedArray) -> tuple[list, np.ndarray]:
    """The different values of a column, and every row's place among them, -1 where missing."""
    encoded: Any = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    places = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    return encoded.dictionary.to_pylist(), places


def _words(column: pa.ChunkedArray) -> list[str]:
    """The different words of a column of text; none of any other."""
    return column.drop_null().unique().to_pylist() if pa.types.is_string(column.type) else []


def is_empty(source: Source, name: str) -> bool:
    """Whether a column has no value at all."""
    column = source.column(name)
    return column.null_count == len(column)


def check_filled(source: Source, name: str) -> None:
    """Refuse a column of a table to train on that has no value at all."""
    if is_empty(source, name):
        raise ValueError(
            f"{source.name}: column {name!r} has no values; leave it out (--drop {name!r})"
        )


def why_left_out(source: Source, name: str) -> str:
    """Why a column is no feature unless the user names it; empty if it is one."""
    if UNNAMED.fullmatch(name):
        return "no name"
    if says_nothing(source, name):
        return "no values"
    column = source.column(name)
    if not pa.types.is_integer(column.type) or column.null_count or len(column) < 3:
        return ""
    first, rise = column[0].as_py(), column[-1].as_py() - column[0].as_py()
    if first in (0, 1) and rise == len(column) - 1 and np.all(np.diff(column.to_numpy()) == 1):
        return f"{ROW_NUMBER}; to keep it, use --measured {name!r}"
    return ""


def says_nothing(source: Source, name: str) -> bool:
    """Whether a column has no value but such as stand for a missing number."""
    column = source.column(name)
    text = pa.types.is_string(column.type)
    return is_empty(source, name) or (text and all(map(is_unknown, _words(column))))


def holds_numbers(
    source: Source, name: str, *, target: bool = False, trained: bool = False, codes: bool = False
) -> bool:
    """Whether a column is one of numbers; a mixture of numbers and words is an error.

    What to do about it differs for a `target`, and where a model was `trained` on numbers. With
    `codes`, whole numbers of which one has a leading zero, such as 0042, are none.
    """
    column = source.column(name)
    kind = column.type
    check_filled(source, name)
    if not pa.types.is_string(kind):
        if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
            return True
        raise ValueError(
            f"{source.name}: column {name!r} is of type {_short(kind)}; expected numbers or text, "
            f"so convert it or leave it out (--drop {name!r})"
        )
    comma = source.reading.comma
    otherwise = f"or name the column as categorical (--categorical {name!r})"
    if target:
        otherwise = "or, if these are classes, use --task classification"
    elif trained:
        otherwise = "since the model was trained on numbers there"
    words = _words(column)
    if codes and any(map(CODE.fullmatch, words)) and all(map(str.isdecimal, words)):
        return False
    numeric = [parse_number(word, comma=comma) is not None for word in words]
    rest = [word for word, is_one in zip(words, numeric, strict=True) if not is_one]
    if rest and all(parse_number(word, comma=not comma) is not None for word in words):
        sign, other = ("point", "comma") if comma else ("comma", "point")
        raise ValueError(
            f"{_place_of(source, name, rest[0])}: {rest[0]!r} is a number only "
            f"with a decimal {sign}, but the decimal sign is set to {other}; use decimal={sign!r}, "
            f"{otherwise}"
        )
    if not any(numeric):
        return False
    strange = [word for word in rest if not is_unknown(word)]
    if strange:
        place = _place_of(source, name, strange[0])
        if trained:
            raise ValueError(f"{place}: {strange[0]!r} is not a number; correct it, {otherwise}")
        raise ValueError(
            f"{place}: {strange[0]!r} is not a number, but {sum(numeric)} of the column's "
            f"{len(words)} different values are; correct it, {otherwise}, or declare it missing "
            f"(--na {strange[0]!r})"
        )
    return True


def _place_of(source: Source, name: str, word: str) -> str:
    """Where a column has a word first, for an error."""
    row = pc.index(source.column(name), pa.scalar(word, pa.string())).as_py()
    return source.place(row, name)


def numbers(source: Source, name: str) -> np.ndarray:
    """A column as floats, NaN where a value is missing; an infinite value is an error.

    Dates become days since 1970, times and durations seconds.
    """
    column = source.column(name)
    if is_empty(source, name):
        return np.full(len(column), np.nan)
    if pa.types.is_string(column.type):
        words, places = _distinct(column)
        known = (parse_number(word, comma=source.reading.comma) for word in words)
        each = np.array([*(np.nan if value is None else value for value in known), np.nan])
        values = each[places]  # of a missing value, which is at -1, the last
    else:
        values = _floats(column)
    infinite = np.flatnonzero(np.isinf(values))
    if infinite.size:
        raise ValueError(
            f"{source.place(infinite[0], name)}: the value is {values[infinite[0]]} "
            f"({infinite.size} such); expected finite numbers, so correct them, or declare them "
            f"missing (--na {values[infinite[0]]})"
        )
    _check_size(source, name, values, MOST_MEASURED)
    return values


def _check_size(source: Source, name: str, values: np.ndarray, most: float) -> None:
    large = np.flatnonzero(np.abs(values) > most)
    if large.size:
        raise ValueError(
            f"{source.place(large[0], name)}: {values[large[0]]:g} is beyond {most:g} "
            f"({large.size} such), and cannot be squared; use another unit, or correct it"
        )


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        stamps = column.cast(pa.timestamp("us"), safe=False)
        micro = stamps.cast(pa.int64()).cast(pa.float64(), safe=False)
        return micro.to_numpy() / (86_400 * 1e6)
    if pa.types.is_temporal(kind):
        per_second = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[getattr(kind, "unit", "s")]
        whole = pa.int32() if kind.bit_width == 32 else pa.int64()
        return column.cast(whole).cast(pa.float64(), safe=False).to_numpy() / per_second
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    return column.cast(pa.float64(), safe=False).to_numpy()  # a null becomes NaN


def codes(source: Source, name: str, known: Sequence | None = None) -> tuple[np.ndarray, list]:
    """A column as places in its sorted values (or in the `known` ones); -1 where missing.

    A value that is not among the known ones is an error.
    """
    column = source.column(name)
    if is_empty(source, name):
        return np.full(len(column), -1, dtype=np.int64), list(known or ())
    if pa.types.is_nested(column.type):
        raise ValueError(
            f"{source.name}: column {name!r} is of type {_short(column.type)}; expected single "
            "values"
        )
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)  # type: ignore[attr-defined]
    if known and isinstance(known[0], str) and pa.types.is_integer(column.type):
        column = column.cast(pa.string())  # codes of which none happens to have a leading zero
    distinct, places = _distinct(column)
    values = sorted(distinct) if known is None else list(known)
    at = {value: place for place, value in enumerate(values)}
    unknown = [place for place, value in enumerate(distinct) if value not in at]
    if unknown:
        row = int(np.flatnonzero(places == unknown[0])[0])
        shown = ", ".join(map(repr, values[:10])) + (", ..." if len(values) > 10 else "")
        raise ValueError(
            f"{source.place(row, name)}: {distinct[unknown[0]]!r} never occurs in training, where "
            f"the values are {shown}"
        )
    return np.array([*(at[value] for value in distinct), -1], dtype=np.int64)[places], values


def unclear_dates(source: Source, name: str) -> str:
    """What to do about words that look like dates but could not be read as such."""
    if not any(map(looks_like_date, _words(source.column(name)))):
        return ""
    return "; if these are dates, write them all like 2024-12-31 (year, month, day)"


def _if_measured(name: str, values: Sequence) -> str:
    """What to do about numbers that are taken for codes because one has a leading zero."""
    code = any(isinstance(value, str) and CODE.fullmatch(value) for value in values)
    return f"; a leading zero makes it a code: if it is measured, use --measured {name!r}" * code


def categories(source: Source, name: str, known: Sequence | None) -> tuple[np.ndarray, list]:
    """`codes` of a column of categories; too many of them are an error."""
    places, values = codes(source, name, known)
    if len(values) > MOST_CATEGORIES or (known is None and 2 * len(values) > places.size > 20):
        raise ValueError(
            f"{source.name}: column {name!r} has {len(values)} different values in {places.size} "
            f"rows, too many to be categories (at most {MOST_CATEGORIES}, and half of the rows)"
            f"{_if_measured(name, values)}{unclear_dates(source, name)}; leave it out "
            f"(--drop {name!r})"
        )
    return places, values


def measured_target(source: Source, name: str) -> np.ndarray:
    """The target of a regression, NaN where it is missing."""
    if not holds_numbers(source, name, target=True):
        word = _words(source.column(name))[0]
        raise ValueError(
            f"{_place_of(source, name, word)}: the target {word!r} is text; expected numbers (if "
            "they are classes, use task='classification')"
        )
    values = numbers(source, name)
    _check_size(source, name, values, LARGEST)
    return values


def class_target(source: Source, name: str, known: Sequence | None) -> tuple[np.ndarray, list]:
    """The target of a classification: two classes as -1 and +1, more as 0, 1, ...

    NaN where it is missing.
    """
    column = source.column(name)
    if known is None and pa.types.is_floating(column.type):
        values = numbers(source, name)
        broken = np.flatnonzero(values != np.round(values))
        broken = broken[~np.isnan(values[broken])]
        if broken.size:
            raise ValueError(
                f"{source.place(broken[0], name)}: the target {values[broken[0]]} is not a class; "
                "expected whole numbers or text (or task='regression')"
            )
    places, classes = codes(source, name, known)
    if not 2 <= len(classes) <= MOST_CATEGORIES:
        raise ValueError(
            f"{source.name}: column {name!r} has {len(classes)} different values; a target of "
            f"classes needs 2 to {MOST_CATEGORIES}"
        )
    each = np.where(places < 0, np.nan, places)
    return (2.0 * each - 1.0 if len(classes) == 2 else each), classes
