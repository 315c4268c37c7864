"""LIBSVM files, read by scikit-learn; where it refuses one, the line and the reason are found."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from isfed.datasets.dataset_files import unpacked

MOST_BYTES = 8 * 2**30  # of the dense matrix


def read_libsvm(
    path: Path, *, num_features: int | None = None, content: bytes | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features (dense), labels and query ids (zero where there are none), in the file's order.

    Indices begin at 1. `content` is the unpacked file, if the caller has read it already.
    """
    from sklearn.datasets import load_svmlight_file  # takes a second to import

    content = unpacked(path) if content is None else content
    options: Any = {"n_features": num_features, "zero_based": False, "query_id": True}
    try:
        sparse, labels, queries = load_svmlight_file(io.BytesIO(content), **options)
    except (ValueError, OverflowError) as error:
        problem = next(wrong_lines(path, content, num_features), f"{path}: {error}")
        raise ValueError(problem) from error
    rows, columns = sparse.shape
    if rows == 0:
        raise ValueError(f"{path} has no examples; expected lines like '+1 1:0.5 3:-2'")
    if rows * columns * 8 > MOST_BYTES:
        raise ValueError(
            f"{path} is {rows} x {columns}: {rows * columns * 8 / 2**30:.0f} GiB as the dense "
            f"matrix that isfed works on, more than {MOST_BYTES / 2**30:.0f}; choose fewer features"
        )
    if not (np.isfinite(sparse.data).all() and np.isfinite(labels).all()):
        raise ValueError(next(wrong_lines(path, content, num_features)))
    if queries.size not in (0, rows):
        raise ValueError(f"{path}: {queries.size} of {rows} lines have a qid; expected all or none")
    queries = queries if queries.size else np.zeros(rows, np.int64)
    return sparse.toarray(), np.asarray(labels, np.float64), queries


def libsvm_line(content: bytes, row: int) -> int:
    """The line of an example, counted from 1; lines without one are not examples."""
    lines = content.decode("utf-8", errors="replace").splitlines()
    filled = (n for n, line in enumerate(lines, start=1) if line.split("#", 1)[0].strip())
    return next(itertools.islice(filled, row, None))


def wrong_lines(path: Path, content: bytes, num_features: int | None) -> Iterator[str]:
    """What is wrong with every line that is no example."""
    for number, line in enumerate(content.decode("utf-8", errors="replace").splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        wrong = _wrong(words, num_features) if words else None
        if wrong:
            yield f"{path}, line {number}: {wrong}; expected '<label> <index>:<value> ...'"


def _wrong(words: list[str], num_features: int | None) -> str | None:
    if not _finite(words[0]):
        return f"the label {words[0]!r} is not a finite number"
    last = 0
    for word in words[1:]:
        name, colon, value = word.partition(":")
        if not colon:
            return f"{word!r} is not of the form index:value"
        if name == "qid":
            continue
        try:
            index = int(name)
        except ValueError:
            return f"the index {name!r} is not a whole number"
        if index < 1:
            return f"the index {index} is less than 1 (indices begin at 1)"
        if index == last:
            return f"the index {index} occurs twice"
        if index < last:
            return f"the index {index} comes after {last} (indices must increase)"
        if num_features is not None and index > num_features:
            return f"the index {index} exceeds the {num_features} features"
        if not _finite(value):
            return f"the value {value!r} of index {index} is not a finite number"
        last = index
    return None


def _finite(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False
