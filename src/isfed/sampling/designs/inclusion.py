"""From scores to inclusion probabilities: capped at 1, floored, summing to the size of the draw."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.argument_checks import as_numbers, is_number, shown
from isfed.base.interpret_first import InterpretFirst
from isfed.sampling.score_table import LIFT, TINY, cap_inclusion

MOST_DRAWS = 2**30  # 8 GB of units

_cap_inclusion = InterpretFirst(cap_inclusion, lambda weights, count, num: 10 * count)


def check_scores(scores: ArrayLike, *, name: str = "scores") -> np.ndarray:
    """Scores as a vector of finite, non-negative float64, or an error that says which is not."""
    values = np.array(as_numbers(scores, name=name, objects=True), dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"{name} must be a non-empty vector, got shape {values.shape}")
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        raise ValueError(
            f"{name}[{bad[0]}]={values[bad[0]]} is not a finite number >= 0 ({bad.size} such)"
        )
    with np.errstate(over="ignore"):
        total = values.sum()
    if not np.isfinite(total):
        raise ValueError(f"the sum of {name} overflows; divide them by their maximum")
    return values


def check_floor(floor: float, *, name: str = "floor") -> float:
    """A floor as a float in [0, 1]."""
    if not (is_number(floor) and 0.0 <= floor <= 1.0):
        raise ValueError(f"{name}={shown(floor)} must be between 0 and 1")
    return float(floor)


def check_num(num: int, count: int) -> int:
    """The size of a draw from `count` units: a whole number from 1 to `count`."""
    if not (is_number(num) and 1 <= num <= count):
        raise ValueError(f"num={shown(num)} must be between 1 and the number of units, {count}")
    if num != int(num):
        raise ValueError(f"num={num} must be a whole number")
    return int(num)


def inclusion_probabilities(scores: ArrayLike, num: int, *, floor: float = 0.0) -> np.ndarray:
    """Inclusion probabilities proportional to the scores, at most 1, summing to `num`.

    Units that would exceed 1 are set to 1 and the rest is rescaled until none does. Scores that are
    all zero give equal probabilities.

    Args:
        scores: (N,) numbers >= 0.
        num: how many units will be drawn.
        floor: the share of uniform probabilities mixed in first: `(1 - floor) p + floor / N`.

    Examples:
        >>> inclusion_probabilities([1, 1, 2, 8], 2)
        array([0.25, 0.25, 0.5 , 1.  ])
    """
    weights = check_scores(scores)
    floor = check_floor(floor)
    num = check_num(num, weights.size)
    if weights.max() == 0.0:
        return np.full(weights.size, num / weights.size)
    if weights.max() < TINY:  # else the mean of subnormal numbers is rounded away
        weights *= LIFT
    if floor > 0.0:
        weights = (1.0 - floor) * weights + floor * weights.mean()
    positive = np.count_nonzero(weights)
    if num > positive:
        raise ValueError(
            f"num={num} exceeds the {positive} units of positive score; draw fewer or set a floor"
        )
    _cap_inclusion(weights, weights.size, num)
    return weights


def check_inclusion(inclusion: ArrayLike) -> tuple[np.ndarray, int]:
    """Inclusion probabilities as float64, and the size of the draw: their sum, a whole number."""
    values = check_scores(inclusion, name="inclusion")
    if values.max() > 1.0:
        worst = int(values.argmax())
        raise ValueError(
            f"inclusion[{worst}]={values[worst]} exceeds 1; use inclusion_probabilities(scores, n)"
        )
    return values, check_total(values)


def check_total(inclusion: np.ndarray) -> int:
    """The size of the draw that inclusion probabilities prescribe: their sum, a whole number."""
    total = inclusion.sum()
    num = round(total)
    if num < 1 or abs(total - num) > 1e-9 * inclusion.size:
        raise ValueError(
            f"inclusion sums to {total}, not to a whole number >= 1; "
            "inclusion_probabilities(sizes, n) makes chances that sum to n"
        )
    if num > MOST_DRAWS:
        raise ValueError(f"inclusion sums to {total}: more draws than memory holds")
    return num


def check_unit_rows(value: Any, *, name: str) -> np.ndarray:
    """(N, d) finite numbers, one row for each unit; a vector becomes one column."""
    rows = np.array(as_numbers(value, name=name), np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.size == 0 or not np.isfinite(rows).all():
        raise ValueError(
            f"{name} must be finite numbers, one row for each unit and as many numbers in each, "
            f"got {shown(value)}"
        )
    return rows


def check_design(design: Any) -> None:
    """Raise a TypeError for what is no design: it must be able to draw."""
    if isinstance(design, type) or not callable(getattr(design, "draw", None)):
        raise TypeError(f"design={shown(design)} must be a design, e.g. Brewer()")
