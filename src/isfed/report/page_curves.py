"""The quantities of a results folder that a page can draw: their curves, levels and words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from isfed.report.page_data import Series
from isfed.studies.results_reader import AlgorithmResult, Measurements, Results

LABELS = {  # title and label of what the commands measure
    "excess": ("Loss above the optimum", "risk minus the lowest possible risk"),
    "loss": ("Loss", "mean loss"),
    "accuracy": ("Accuracy", "rows classified correctly, %"),
    "test_error": ("Test error", "share of wrong test rows"),
    "balanced_error": ("Balanced test error", "mean over classes of the share of wrong test rows"),
}


@dataclass(frozen=True)
class Quantity:
    """Something measured along the runs.

    Args:
        key: its name in the folder.
        title: of its figure.
        label: of its axis.
        unit: of its level, for instance dB.
        level_name: what its level is.
        curve: of an algorithm; None if it was not measured.
        level: of an algorithm, with its standard error; nan where there is none.
        rising: whether more of it is better.
        bounds: of what it can be; bands end there.
    """

    key: str
    title: str
    label: str
    unit: str
    level_name: str
    curve: Callable[[AlgorithmResult], Measurements | None]
    level: Callable[[AlgorithmResult], tuple[float, float]]
    rising: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)

    @property
    def gap_unit(self) -> str:
        """The unit of a difference of two levels."""
        return "percentage points" if self.unit == "%" else self.unit


def quantities(results: Results) -> list[Quantity]:
    """The msd if it is known, then the measures in the order in which they first appear."""
    keys = dict.fromkeys(name for a in results.algorithms for name in a.measures)
    measures = [_measured(key, results) for key in keys if key != "msd"]
    if not any(np.isfinite(a.msd).any() for a in results.algorithms):
        return measures
    rounds = results.summary.get("steady_rounds")
    msd = Quantity(
        "msd", "Distance to the optimum", "mean-square deviation |w − wᵒ|²", "dB",
        f"msd, mean of the last {rounds:,} rounds" if rounds else "msd at the end",
        lambda a: Measurements(a.rounds, a.msd, a.msd_stderr) if a.rounds.size else None,
        lambda a: (a.number("msd_db"), a.number("msd_stderr_db")),
    )  # fmt: skip
    return [msd, *measures]


def _measured(key: str, results: Results) -> Quantity:
    """A measure; its level is what the verdict or the table of a study says, if one does."""
    words = key.replace("_", " ")
    title, label = LABELS.get(key, (words[:1].upper() + words[1:], words))
    scale = 100.0 if key == "accuracy" else 1.0  # shown in percent
    rows = {row["name"]: row for row in results.summary.get("networks") or ()}

    def curve(algorithm: AlgorithmResult) -> Measurements | None:
        measured = algorithm.measures.get(key)
        if measured is None:
            return None
        return Measurements(measured.rounds, scale * measured.mean, scale * measured.stderr)

    def last(algorithm: AlgorithmResult) -> tuple[float, float]:
        measured = curve(algorithm)
        if measured is None or not measured.mean.size or algorithm.diverged_round is not None:
            return math.nan, math.nan
        return float(measured.mean[-1]), float(measured.stderr[-1])

    def mean_of_last(algorithm: AlgorithmResult) -> tuple[float, float]:
        row = rows.get(algorithm.name)
        if row is None or row["diverged"]:
            return math.nan, math.nan
        error = row["accuracy_stderr"]
        return 100.0 * row["accuracy"], math.nan if error is None else 100.0 * error

    quantity = Quantity(key, title, label, "", f"{words} at the end", curve, last)
    if key == "accuracy":
        quantity = replace(quantity, unit="%", rising=True, bounds=(0.0, 100.0))
        if rows:
            name = "accuracy, mean of the last eighth"
            quantity = replace(quantity, level_name=name, level=mean_of_last)
    if key == "excess" and any("final_excess" in a.summary for a in results.algorithms):
        level = lambda a: (a.number("final_excess"), a.number("final_stderr"))  # noqa: E731
        quantity = replace(quantity, level_name="mean of the last tenth", level=level)
    return quantity


def units_of(algorithms: Iterable[AlgorithmResult]) -> dict[str, str]:
    """The horizontal axes that every algorithm has, with their labels."""
    axes = {"rounds": "rounds", "uploads": "models uploaded", "gradients": "gradients computed"}
    rows = list(algorithms)
    return {key: label for key, label in axes.items() if all(_unit(a, key) > 0.0 for a in rows)}


def _unit(algorithm: AlgorithmResult, key: str) -> float:
    return 1.0 if key == "rounds" else algorithm.number(f"{key}_per_round")


def series_of(
    quantity: Quantity, algorithm: AlgorithmResult, axes: Iterable[str], name: str, colour: int
) -> Series | None:
    """The curve of an algorithm with a band of two standard errors; None if it has none."""
    curve = quantity.curve(algorithm)
    if curve is None:
        return None
    reach = 2.0 * curve.stderr
    units = {key: _unit(algorithm, key) for key in axes}
    low, high = (np.clip(curve.mean + sign * reach, *quantity.bounds) for sign in (-1.0, 1.0))
    return Series(name, curve.rounds, curve.mean, low, high, units=units, colour=colour)
