"""The verdict where there is no msd, as with networks: from the accuracy, or else from the loss."""

from __future__ import annotations

import math

from isfed.report.page_curves import Quantity, level_cell, quantities
from isfed.studies.results_reader import AlgorithmResult, Results

DECIDING = ("accuracy", "loss")  # the first of these that was measured
CLEAR = 2.0  # standard errors
FEWEST = 3  # repetitions: the standard error of two is too uncertain itself


def deciding(results: Results) -> Quantity | None:
    """The measure that decides; None where there is an msd, or no such measure."""
    if not results.summary.get("no_msd"):
        return None
    found = {quantity.key: quantity for quantity in quantities(results)}
    return next((found[key] for key in DECIDING if key in found), None)


def measured_verdict(results: Results, quantity: Quantity) -> str:
    """Who ends best, beside the first algorithm, or beside the next best if that is the first."""
    rows = [a for a in results.algorithms if math.isfinite(quantity.level(a)[0])]
    sign = 1.0 if quantity.rising else -1.0
    ranked = sorted(rows, key=lambda a: -sign * quantity.level(a)[0])
    if not ranked:
        return "There is nothing to compare: no algorithm ended with a known level."
    best, first = ranked[0], results.algorithms[0]
    if len(ranked) == 1:
        return f"{_end(best, quantity)}; there is nothing to compare it with."
    other = first if best is not first and first in ranked else ranked[1]
    place = ("highest, " if quantity.rising else "lowest, ") if len(ranked) > 2 else ""
    next_best = best is first and len(ranked) > 2
    name = f"the next best, {other.name}," if next_best else other.name
    said = f"{_end(best, quantity, place)}, {name} {_at(other, quantity)}"
    return said + _judged(results, quantity, best, other)


def _at(algorithm: AlgorithmResult, quantity: Quantity) -> str:
    level = level_cell(*quantity.level(algorithm), quantity.unit).text
    return f"at {level}" if quantity.unit else f"at a {quantity.key} of {level}"


def _end(algorithm: AlgorithmResult, quantity: Quantity, place: str = "") -> str:
    word = f" {quantity.key}" if quantity.unit else ""  # a bare number is named already
    return f"{algorithm.name} ends {place}{_at(algorithm, quantity)}{word}"


def _judged(
    results: Results, quantity: Quantity, best: AlgorithmResult, other: AlgorithmResult
) -> str:
    """Whether the two differ by more than chance explains."""
    (level, error), (other_level, other_error) = map(quantity.level, (best, other))
    gap, spread = abs(level - other_level), math.hypot(error, other_error)
    if math.isnan(spread):
        return "; with one repetition there is no standard error, so chance may have made this."
    if gap <= CLEAR * spread:
        return ": no clear difference."
    said = level_cell(gap, spread, quantity.gap_unit).text
    repetitions = int(results.summary["repetitions"])
    if repetitions < FEWEST:
        return f": {said} apart, but {repetitions} repetitions are too few to call that clear."
    return f": a clear difference, {said}."
