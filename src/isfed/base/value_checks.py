"""Checks at the border: a user's value is looked at once, where it enters."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from isfed.base.argument_types import NOT_NUMBERS, matches, shown

LARGEST = 2**63 - 1  # that compiled code and arrays can count to


def is_number(value: Any) -> bool:
    """Whether a value is a finite real number."""
    if not isinstance(value, Real) or isinstance(value, NOT_NUMBERS):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def check_whole(value: Any, *, name: str, least: int) -> int:
    """A whole number that is not too small."""
    # An int is asked first: `Integral` is an abstract class, and asking it is slow.
    whole = type(value) is int or (
        isinstance(value, Integral) and not isinstance(value, NOT_NUMBERS)
    )
    if not whole or value < least:
        raise ValueError(f"{name}={shown(value)} must be a whole number >= {least}")
    number = int(value)
    if number > LARGEST:
        raise ValueError(f"{name}={shown(value)} must be a whole number, at most {LARGEST}")
    return number


def check_seed(value: Any) -> int:
    """A whole number that is not negative, of any size."""
    if not matches(value, int) or value < 0:
        raise ValueError(f"seed={shown(value)} must be a whole number >= 0")
    return int(value)


def check_share(value: Any, *, name: str) -> float:
    """A number above 0 and at most 1."""
    if not (is_number(value) and 0.0 < value <= 1.0):
        raise ValueError(f"{name}={shown(value)} must be in (0, 1]")
    return float(value)


def check_positive(value: Any, *, name: str) -> float:
    """A finite number above 0."""
    if not (is_number(value) and value > 0.0):
        raise ValueError(f"{name}={shown(value)} must be a positive number")
    return float(value)


def as_numbers(value: Any, *, name: str, objects: bool = False) -> np.ndarray:
    """An array of real numbers or truth values, in the type that it has.

    With `objects` also of fractions and their like, as floats.
    """
    parts = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts):
        raise ValueError(f"{name} has masked entries; fill them in or leave them out")
    try:
        array = np.asarray(value)
    except Exception:  # an object of somebody else's may refuse in any way
        raise ValueError(f"{name}={shown(value)} must be numbers in rows of equal length") from None
    if objects and array.dtype.kind == "O" and all(isinstance(entry, Real) for entry in array.flat):
        try:
            array = array.astype(np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{name} holds a number that float64 does not: {error}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be numbers, got an array of {array.dtype}")
    return array


def check_vector(value: Any, *, name: str, size: int) -> np.ndarray:
    """So many finite numbers as a new float64 vector."""
    vector = np.array(as_numbers(value, name=name), dtype=np.float64)
    if vector.shape != (size,) or not np.isfinite(vector).all():
        raise ValueError(f"{name} must be {size} finite numbers, got shape {vector.shape}")
    return vector


def check_active(num_active: int, num_agents: int) -> int:
    """L, between 1 and K: compiled code would draw beyond the table."""
    check_whole(num_active, name="num_active", least=1)
    if num_active > num_agents:
        raise ValueError(
            f"num_active={num_active} exceeds num_agents={num_agents}; use at most {num_agents}"
        )
    return int(num_active)
