"""Rows of the user's own for a network: a file that `numpy.savez` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np

from isfed.base.atomic_files import declared_size
from isfed.datasets.dataset_files import RefusedFileError, check_size

KNOWN = ("x", "y", "agent", "test_x", "test_y")
TEST_EVERY = 10  # of rows without a test part of their own, every tenth is kept for it


class Rows(NamedTuple):
    """Rows with their classes, the natural owners if any, and the rows to test on."""

    x: np.ndarray
    y: np.ndarray
    owners: np.ndarray | None
    test_x: np.ndarray
    test_y: np.ndarray

    @property
    def num_classes(self) -> int:
        """One more than the largest."""
        return 1 + int(max(self.y.max(), self.test_y.max()))


def read_rows(file: Path, most_gigabytes: float | None = None) -> Rows:
    """The arrays x and y, and agent, test_x and test_y if any; a ValueError says what is wrong.

    most_gigabytes: what the file may unpack to, see `isfed.datasets.dataset_files.unpacked`.
    """
    arrays = _load(file, most_gigabytes)
    x, y = _pair(file, arrays, "x", "y")
    owners = arrays.get("agent")
    if owners is not None:
        _check_owners(file, owners, y)
    if "test_x" in arrays:
        found = Rows(x, y, owners, *_pair(file, arrays, "test_x", "test_y"))
        if found.x.shape[1:] != found.test_x.shape[1:]:
            raise ValueError(f"{file}: the rows of x and test_x have different shapes")
    else:
        found = _split(file, x, y, owners)
    _check_classes(file, found)
    return found


def _load(file: Path, most_gigabytes: float | None) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as content:
            check_size(file, declared_size(content.zip), most_gigabytes)
            arrays = {name: content[name] for name in content.files}
    except RefusedFileError:
        raise
    except (OSError, ValueError, BadZipFile, MemoryError) as error:
        raise ValueError(f"{file} is not a file that numpy.savez wrote: {error}") from error
    tests = {"test_x", "test_y"} & arrays.keys()
    if not {"x", "y"} <= arrays.keys() or len(tests) == 1 or arrays.keys() - set(KNOWN):
        raise ValueError(
            f"{file} has the arrays {', '.join(arrays)}; it needs x and y, may have agent, and "
            "test_x with test_y"
        )
    return arrays


def _pair(file: Path, arrays: dict[str, np.ndarray], *names: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and their classes.

    Floats become float32, bytes are pixels from 0 to 255 and become floats from 0 to 1, and other
    whole numbers, e.g. token ids, stay.
    """
    x, y = (arrays[name] for name in names)
    if x.ndim < 2 or y.shape != (len(x),) or len(x) == 0:
        raise ValueError(
            f"{file}: {names[0]} has shape {x.shape} and {names[1]} {y.shape}; they must have one "
            "row and one class per example"
        )
    if y.dtype.kind not in "iu" or y.min() < 0:
        raise ValueError(f"{file}: {names[1]} must be whole numbers from 0, the classes")
    if x.dtype.kind not in "iuf":
        raise ValueError(f"{file}: {names[0]} has numbers of type {x.dtype}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise ValueError(f"{file}: {names[0]} has entries that are not finite")
    if x.dtype == np.uint8:
        return x.astype(np.float32) / np.float32(255), y
    return x.astype(np.float32 if x.dtype.kind == "f" else np.int64), y


def _check_owners(file: Path, owners: np.ndarray, y: np.ndarray) -> None:
    if owners.shape != y.shape:
        raise ValueError(f"{file}: agent has shape {owners.shape}, y {y.shape}")
    if owners.dtype.kind not in "iuUS":
        raise ValueError(f"{file}: agent must be whole numbers or text, not {owners.dtype}")


def _check_classes(file: Path, found: Rows) -> None:
    present = np.unique(np.concatenate([found.y, found.test_y]))
    if present[0] > 0 or 2 * present.size < found.num_classes:
        listed = ", ".join(map(str, present[:5])) + (", ..." if present.size > 5 else "")
        raise ValueError(
            f"{file}: y has the {present.size} classes {listed}; number them from 0 without gaps"
        )


def _split(file: Path, x: np.ndarray, y: np.ndarray, owners: np.ndarray | None) -> Rows:
    """Every tenth row in random order is for the test; an owner keeps at least one for training."""
    place = np.random.default_rng(12345).permutation(len(y))
    out = place % TEST_EVERY == TEST_EVERY - 1
    if owners is not None:
        for owner in np.setdiff1d(owners, owners[~out]):
            out[np.flatnonzero(owners == owner)[0]] = False
    if not out.any():
        raise ValueError(
            f"{file}: {len(y)} rows are too few to keep some for the test; add test_x and test_y"
        )
    return Rows(x[~out], y[~out], None if owners is None else owners[~out], x[out], y[out])
