"""The quantities of a results folder that a page can draw: their curves, levels and words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from isfed.base.text_format import plain_number
from isfed.report.page_data import Cell, Series
from isfed.studies.results_reader import AlgorithmResult, Results

BAND = 2.0  # standard errors
DECIMALS = {"dB": 2, "%": 1, "percentage points": 1}  # by unit; other levels by their digits
LABELS = {  # title and label of what the commands measure
    "excess": ("Loss above the optimum", "risk minus the lowest possible risk"),
    "loss": ("Loss", "mean loss"),
    "accuracy": ("Accuracy", "rows classified correctly, %"),
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
    rising: whether more of it is better.
    bounds: of what it can be; bands end there.
    """

    key: str
    title: str
    label: str
    unit: str
    level_name: str
    curve: Callable[[AlgorithmResult], Curve | None]
    level: Callable[[AlgorithmResult], tuple[float, float]]
    rising: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)

    @property
    def gap_unit(self) -> str:
        """The unit of a difference of two levels."""
        return "percentage points" if self.unit == "%" else self.unit

    @property
    def linear_only(self) -> bool:
        """Whether a logarithmic axis would make no sense."""
        return self.unit == "%"


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
    if results.summary.get("networks"):
        found = [_as_the_table_says(q, results) if q.key == "accuracy" else q for q in found]
    return found


def _as_the_verdict_says(excess: Quantity) -> Quantity:
    """The final loss of a comparison, a mean of its last records."""
    return replace(
        excess, level_name="mean of the last tenth",
        level=lambda a: (a.number("final_excess"), a.number("final_stderr")),
    )  # fmt: skip


def _as_the_table_says(accuracy: Quantity, results: Results) -> Quantity:
    """The final accuracy of a study of networks, a mean of its last evaluations."""
    rows = {row["name"]: row for row in results.summary["networks"]}

    def level(algorithm: AlgorithmResult) -> tuple[float, float]:
        row = rows.get(algorithm.name)
        if row is None or row["diverged"]:
            return math.nan, math.nan
        error = row["accuracy_stderr"]
        return 100.0 * row["accuracy"], math.nan if error is None else 100.0 * error

    return replace(accuracy, level_name="accuracy, mean of the last eighth", level=level)


def _msd(algorithm: AlgorithmResult) -> Curve | None:
    if not algorithm.rounds.size:
        return None
    return Curve(algorithm.rounds, algorithm.msd, algorithm.msd_stderr)


def _measured(key: str) -> Quantity:
    words = key.replace("_", " ")
    title, label = LABELS.get(key, (words[:1].upper() + words[1:], words))
    share = key == "accuracy"  # shown in percent
    scale = 100.0 if share else 1.0

    def curve(algorithm: AlgorithmResult) -> Curve | None:
        found = algorithm.measures.get(key)
        if found is None:
            return None
        return Curve(found.rounds, scale * found.mean, scale * found.stderr)

    def level(algorithm: AlgorithmResult) -> tuple[float, float]:
        found = algorithm.measures.get(key)
        if found is None or not found.mean.size or algorithm.diverged_round is not None:
            return math.nan, math.nan
        return scale * float(found.mean[-1]), scale * float(found.stderr[-1])

    quantity = Quantity(key, title, label, "", f"{words} at the end", curve, level)
    return replace(quantity, unit="%", rising=True, bounds=(0.0, 100.0)) if share else quantity


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
    low, high = (np.clip(curve.mean + way * reach, *quantity.bounds) for way in (-1.0, 1.0))
    return Series(name, curve.x, curve.mean, low, high, units=units, colour=colour)


def level_cell(value: float, error: float, unit: str) -> Cell:
    """A level with its standard error.

    >>> level_cell(-41.234, 0.126, "dB").text
    '−41.23 ± 0.13 dB'
    >>> level_cell(0.0123456, math.nan, "").text, level_cell(4172.3, 680.0, "").text
    ('0.0123', '4,170 ± 700')
    >>> level_cell(91.23, 0.68, "%").text, level_cell(5.8, 0.93, "percentage points").text
    ('91.2 ± 0.7%', '5.8 ± 0.9 percentage points')
    """
    if math.isnan(value):
        return Cell("none")
    if unit in DECIMALS:
        said, spread = (f"{number:.{DECIMALS[unit]}f}" for number in (value, error))
    else:
        said, spread = plain_number(value, 3), plain_number(error, 1)
    said += "" if math.isnan(error) else f" ± {spread}"
    gap = "" if unit in ("", "%") else " "
    return Cell(f"{said}{gap}{unit}".replace("-", "−"), value)


def number_cell(value: float | None, form: str | None = None) -> Cell:
    """A number that may be unknown.

    >>> number_cell(30682.4).text, number_cell(77.968).text, number_cell(None).text
    ('30,682', '77.97', 'unknown')
    """
    if value is None or math.isnan(value):
        return Cell("unknown")
    form = form or (",.0f" if 1e3 <= abs(value) < 1e12 else ".4g")
    return Cell(f"{value:{form}}".replace("-", "−"), float(value))
