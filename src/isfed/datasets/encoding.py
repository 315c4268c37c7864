"""From the columns of a table to numbers: measurements, categories, classes, agents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from isfed.datasets.sources import Source

MOST_CATEGORIES = 1000


def is_text(column: pa.ChunkedArray) -> bool:
    """Whether the values are words, as such or in a dictionary."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _as_words(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type):
        return column.cast(pa.string())
    # Word by word of the dictionary: Arrow cannot cast every kind of it (polars sends such).
    chunks = [
        pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(pa.string()))
        for chunk in column.chunks
    ]
    return pa.chunked_array([chunk.cast(pa.string()) for chunk in chunks], pa.string())


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def holds_numbers(source: Source, name: str) -> bool:
    """Whether a column is one of numbers; a mixture of numbers and words is an error."""
    column = source.column(name)
    kind = column.type
    if pa.types.is_null(kind):
        raise ValueError(f"{source.name}: column {name!r} has no values; leave it out")
    if not is_text(column):
        if pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
            return True
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return True
        raise ValueError(
            f"{source.name}: column {name!r} is of type {kind}; expected numbers or text, "
            "so convert it or leave it out"
        )
    words = [word for word in _as_words(column).unique().to_pylist() if word is not None]
    if not words:
        raise ValueError(f"{source.name}: column {name!r} has no values; leave it out")
    numeric = [_is_number(word) for word in words]
    if any(numeric) and not all(numeric):
        word = words[numeric.index(False)]
        raise ValueError(
            f"{source.place(_first_equal(column, word), name)}: {word!r} is not a number, but "
            f"{sum(numeric)} of the column's {len(words)} different values are; mend it, or name "
            "the column as categorical"
        )
    return all(numeric)


def _first_equal(column: pa.ChunkedArray, word: str) -> int:
    return pc.index(_as_words(column), pa.scalar(word, pa.string())).as_py()


def numbers(source: Source, name: str) -> np.ndarray:
    """A column as floats, NaN where a value is missing; an infinite value is an error."""
    column = source.column(name)
    if is_text(column):
        words = _as_words(column).to_pylist()
        values = np.array([np.nan if word is None else float(word) for word in words])
    else:
        kind = column.type
        if pa.types.is_boolean(kind):
            column = column.cast(pa.int8())
        values = column.cast(pa.float64(), safe=False).to_numpy()  # a null becomes NaN
    infinite = np.flatnonzero(np.isinf(values))
    if infinite.size:
        raise ValueError(
            f"{source.place(infinite[0], name)}: the value is {values[infinite[0]]} "
            f"({infinite.size} such); expected finite numbers"
        )
    return values


def codes(source: Source, name: str, known: Sequence | None = None) -> tuple[np.ndarray, list]:
    """A column as places in its sorted values (or in the `known` ones); -1 where missing.

    A value that is not among the known ones is an error.
    """
    column = source.column(name)
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)  # type: ignore[attr-defined]
    elif is_text(column):
        column = _as_words(column)
    encoded = pa.chunked_array(column).combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    found = encoded.dictionary.to_pylist()
    values = sorted(found) if known is None else list(known)
    at = {value: place for place, value in enumerate(values)}
    unknown = [place for place, value in enumerate(found) if value not in at]
    indices = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    if unknown:
        row = int(np.flatnonzero(indices == unknown[0])[0])
        raise ValueError(
            f"{source.place(row, name)}: {found[unknown[0]]!r} never occurs in training, where the "
            f"values are {_shown(values)}"
        )
    place_of = np.array([at[value] for value in found] + [-1], dtype=np.int64)
    return place_of[indices], values


def _shown(values: Sequence) -> str:
    return ", ".join(repr(value) for value in values[:10]) + (", ..." if len(values) > 10 else "")


def one_hot(source: Source, name: str, known: Sequence | None) -> tuple[np.ndarray, list]:
    """One column of zeros and ones for every category; NaN in all where the value is missing."""
    places, values = codes(source, name, known)
    if len(values) > MOST_CATEGORIES or (known is None and 2 * len(values) > places.size > 20):
        raise ValueError(
            f"{source.name}: column {name!r} has {len(values)} different values in {places.size} "
            f"rows, too many to be categories (at most {MOST_CATEGORIES}, and half of the rows); "
            "leave it out (--drop)"
        )
    block = np.zeros((places.size, len(values)))
    block[np.arange(places.size), places] = 1.0
    block[places < 0] = np.nan
    return block, values


def agents(source: Source, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The number of every row's agent, and the agents' names in sorted order."""
    places, values = codes(source, name)
    missing = np.flatnonzero(places < 0)
    if missing.size:
        raise ValueError(
            f"{source.place(missing[0], name)}: no agent is named ({missing.size} such)"
        )
    return places, np.array(values)


def measured_target(source: Source, name: str) -> np.ndarray:
    """The target of a regression."""
    column = source.column(name)
    if not holds_numbers(source, name):
        word = next(word for word in _as_words(column).to_pylist() if word is not None)
        raise ValueError(
            f"{source.place(_first_equal(column, word), name)}: the target {word!r} is text; "
            "expected numbers (if they are classes, say so: task='classification')"
        )
    values = numbers(source, name)
    _check_known(source, name, np.isnan(values))
    return values


def class_target(source: Source, name: str, known: Sequence | None) -> tuple[np.ndarray, list]:
    """The target of a classification: two classes as -1 and +1, more as 0, 1, ..."""
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
    _check_known(source, name, places < 0)
    if not 2 <= len(classes) <= MOST_CATEGORIES:
        raise ValueError(
            f"{source.name}: column {name!r} has {len(classes)} different values; a target of "
            f"classes needs 2 to {MOST_CATEGORIES}"
        )
    return (2.0 * places - 1.0 if len(classes) == 2 else places.astype(np.float64)), classes


def _check_known(source: Source, name: str, missing: np.ndarray) -> None:
    rows = np.flatnonzero(missing)
    if rows.size:
        raise ValueError(
            f"{source.place(rows[0], name)}: the target is missing ({rows.size} such); "
            "leave such rows out"
        )
