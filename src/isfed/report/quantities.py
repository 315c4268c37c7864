"""The quantities of a results folder that a page can draw: their curves, levels and words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from isfed.base.words import plain_number
from isfed.experiments.results import AlgorithmResult, Results
from isfed.report.page_data import Cell, Series

BAND = 2.0  # standard errors
LABELS = {  # title and label of what the commands measure
    "excess": ("Loss above the optimum", "risk minus the lowest possible risk"),
    "loss": ("Loss", "mean loss"),
    "test_error": ("Test error", "share of wrong test rows"),
    "balanced_error": ("Balanced test error", "mean over classes of the share of wrong test rows"),
}


@dataclass(frozen=True)
class Curve:
    """A mean along a run, with its standard error."""

    x: np.ndarray
    mean: np.ndarray
    stderr: np.ndarray


@dataclass(frozen=True)
class Quantity:
    """Something measured along the runs.

    key: its name in the folder.
    title: of its figure.
    label: of its axis.
    unit: of its level, for instance dB.
    level_name: what its level is.
    curve: of an algorithm; None if it was not measured.
    level: of an algorithm, with its standard error; nan where there is none.
    """

    key: str
    title: str
    label: str
    unit: str
    level_name: str
    curve: Callable[[AlgorithmResult], Curve | None]
    level: Callable[[AlgorithmResult], tuple[float, float]]


def quantities(results: Results) -> list[Quantity]:
    """The msd if it is known, then the measures in the order in which they first appear."""
    found = []
    if any(np.isfinite(a.msd).any() for a in results.algorithms):
        rounds = results.summary.get("steady_rounds")
        found.append(
            Quantity(
                "msd", "Distance to the optimum", "mean-square deviation |w − wᵒ|²", "dB",
                f"msd, mean of the last {rounds:,} rounds" if rounds else "msd at the end",
                _msd, lambda a: (a.number("msd_db"), a.number("msd_stderr_db")),
            )
        )  # fmt: skip
    for key in dict.fromkeys(name for a in results.algorithms for name in a.measures):
        if key != "msd":
            found.append(_measured(key))
    if any("final_excess" in a.summary for a in results.algorithms):
        found = [_as_the_verdict_says(q) if q.key == "excess" else q for q in found]
    return found


def _as_the_verdict_says(excess: Quantity) -> Quantity:
    """The final loss of a comparison, a mean of its last records."""
    return replace(
        excess, level_name="mean of the last tenth",
        level=lambda a: (a.number("final_excess"), a.number("final_stderr")),
    )  # fmt: skip


def _msd(algorithm: AlgorithmResult) -> Curve | None:
    if not algorithm.rounds.size:
        return None
    return Curve(algorithm.rounds, algorithm.msd, algorithm.msd_stderr)


def _measured(key: str) -> Quantity:
    words = key.replace("_", " ")
    title, label = LABELS.get(key, (words[:1].upper() + words[1:], words))

    def curve(algorithm: AlgorithmResult) -> Curve | None:
        found = algorithm.measures.get(key)
        return None if found is None else Curve(found.rounds, found.mean, found.stderr)

    def level(algorithm: AlgorithmResult) -> tuple[float, float]:
        found = algorithm.measures.get(key)
        if found is None or not found.mean.size or algorithm.diverged_round is not None:
            return math.nan, math.nan
        return float(found.mean[-1]), float(found.stderr[-1])

    return Quantity(key, title, label, "", f"{words} at the end", curve, level)


def units_of(algorithms: Iterable[AlgorithmResult]) -> dict[str, str]:
    """The horizontal axes that every algorithm has, with their labels."""
    axes = {"rounds": "rounds", "uploads": "models uploaded", "gradients": "gradients computed"}
    rows = list(algorithms)
    return {
        key: label
        for key, label in axes.items()
        if key == "rounds" or all(_unit(a, key) > 0.0 for a in rows)
    }


def _unit(algorithm: AlgorithmResult, key: str) -> float:
    if key == "rounds":
        return 1.0
    value = algorithm.number(f"{key}_per_round")
    return value if math.isfinite(value) else math.nan


def series_of(
    quantity: Quantity, algorithm: AlgorithmResult, axes: Iterable[str], name: str, colour: int
) -> Series | None:
    """The curve of an algorithm with its band; None if it has none."""
    curve = quantity.curve(algorithm)
    if curve is None:
        return None
    reach = BAND * curve.stderr
    units = {key: _unit(algorithm, key) for key in axes}
    low, high = curve.mean - reach, curve.mean + reach
    return Series(name, curve.x, curve.mean, low, high, units=units, colour=colour)


def level_cell(value: float, error: float, unit: str) -> Cell:
    """A level with its standard error.

    >>> level_cell(-41.234, 0.126, "dB").text
    '−41.23 ± 0.13 dB'
    >>> level_cell(0.0123456, math.nan, "").text, level_cell(4172.3, 680.0, "").text
    ('0.0123', '4,170 ± 700')
    """
    if math.isnan(value):
        return Cell("none")
    if unit == "dB":
        said, spread = f"{value:.2f}", f"{error:.2f}"
    else:
        said, spread = plain_number(value, 3), plain_number(error, 1)
    said += "" if math.isnan(error) else f" ± {spread}"
    return Cell(f"{said} {unit}".rstrip().replace("-", "−"), value)


def number_cell(value: float | None, form: str | None = None) -> Cell:
    """A number that may be unknown.

    >>> number_cell(30682.4).text, number_cell(77.968).text, number_cell(None).text
    ('30,682', '77.97', 'unknown')
    """
    if value is None or math.isnan(value):
        return Cell("unknown")
    form = form or (",.0f" if 1e3 <= abs(value) < 1e12 else ".4g")
    return Cell(f"{value:{form}}".replace("-", "−"), float(value))
