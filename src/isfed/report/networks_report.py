"""What the study of networks shows: curves of the accuracy, a table, and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

from isfed.base.text_format import plain_number
from isfed.report.figures import label_axes, save_figure
from isfed.report.page_data import PageTable, TableCell, number_cell
from isfed.report.terminal_tables import percent, text_table
from isfed.studies.networks_study import first_round
from isfed.studies.results_reader import Measurements, Results

# Colour, dashes and marker: the markers tell the lines apart in grey.
LOOKS: dict[str, tuple[str, Any, str]] = {
    "FedAvg": ("black", "-", ""),
    "importance": ("tab:blue", (0, (1, 1.2)), "o"),
    "spread": ("tab:pink", (0, (6, 2)), "s"),
    "difference": ("tab:green", "-", "^"),
    "drift": ("tab:red", "-", "v"),
    "drift, importance": ("tab:orange", (0, (3, 1, 1, 1)), "D"),
    "FedProx": ("tab:cyan", (0, (6, 2)), "o"),
    "SCAFFOLD": ("tab:brown", "-", "s"),
    "FedVARP": ("tab:olive", "-", "^"),
    "clustered": ("tab:purple", (0, (3, 1, 1, 1)), "v"),
    "Power-of-Choice": ("tab:gray", (0, (1, 1.2)), "D"),
}


def accuracy_curves(results: Results) -> dict[str, Measurements]:
    """The accuracy along the run of every method that has one."""
    return {a.name: a.measures["accuracy"] for a in results.algorithms if "accuracy" in a.measures}


def draw_accuracy(axes: Axes, curves: Mapping[str, Measurements], names: Iterable[str]) -> None:
    """The curves of some methods, in percent, with two standard errors."""
    for place, name in enumerate(names):
        curve = curves[name]
        colour, dashes, marker = LOOKS.get(name, ("tab:grey", ":", ""))
        gap = max(len(curve.rounds) // 7, 1)
        axes.plot(
            curve.rounds, 100 * curve.mean, color=colour, linestyle=dashes, linewidth=1.4,
            marker=marker, markersize=4.5, markerfacecolor="white",
            markevery=(place * gap // 6, gap), label=name,
        )  # fmt: skip
        low, high = (np.clip(curve.mean + sign * curve.stderr, 0.0, 1.0) for sign in (-2.0, 2.0))
        axes.fill_between(curve.rounds, 100 * low, 100 * high, color=colour, alpha=0.1, linewidth=0)
    axes.grid(alpha=0.3)


def networks_figure(results: Results) -> list[Path]:
    """The accuracy on the test rows against the round, with two standard errors."""
    figure, axes = plt.subplots(figsize=(7.0, 4.4))
    curves = accuracy_curves(results)
    draw_accuracy(axes, curves, curves)
    axes.set_title(results.summary["title"], fontsize=10)
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
    label_axes(axes, "round", "accuracy on test rows (%)", **place)
    return save_figure(figure, results.path, "accuracy")


def networks_table(results: Results) -> Table:
    """Accuracy at the end, and the rounds, bytes and seconds to fixed accuracies."""
    summary, table = results.summary, targets_table(results)
    return text_table(
        f"{summary['title']}: {summary['repetitions']} repetitions of {summary['rounds']} "
        "rounds, accuracy ± standard error over the last of them; rounds (MB, s) to an accuracy",
        ("method", "step", "accuracy", *table.columns[3:-1]),
        ([cell.text for cell in row[:-1]] for row in table.rows),
    )


def targets_table(results: Results) -> PageTable:
    """What it took to reach fixed accuracies, and FedAvg's final one."""
    networks = results.summary.get("networks") or ()
    first = rounds_to_fedavg(networks, accuracy_curves(results))
    names = [f"{100 * target['accuracy']:g}%" for row in networks[:1] for target in row["targets"]]
    rows = []
    for row in networks:
        cells = [row["name"], number_cell(row["step_size"], ".3g")]
        if row["diverged"]:
            rows.append([*cells, "diverged", *("" for _ in names), ""])
            continue
        cells.append(TableCell(percent(row["accuracy"], row["accuracy_stderr"]), row["accuracy"]))
        cells += [TableCell(reached(target), target["rounds"]) for target in row["targets"]]
        as_fedavg = first.get(row["name"])
        rows.append([*cells, TableCell("" if as_fedavg is None else str(as_fedavg), as_fedavg)])
    columns = ("method", "step size", "accuracy (%)", *names, "as FedAvg")
    caption = "Rounds (MB, s) to an accuracy, and rounds to FedAvg's final one"
    return PageTable.of(caption, columns, rows)


def reached(target: Mapping[str, Any]) -> str:
    """The rounds to an accuracy, and the megabytes and seconds that they took.

    >>> reached({"rounds": 5, "megabytes": 0.2442, "seconds": 1234.5}), reached({"rounds": None})
    ('5 (0.244, 1,230)', '-')
    """
    if target["rounds"] is None:
        return "-"
    cost = (plain_number(target[key], 3) for key in ("megabytes", "seconds"))
    return f"{target['rounds']} ({', '.join(cost)})"


def networks_verdict(results: Results) -> list[str]:
    """Who reaches FedAvg's final accuracy first, and in how many rounds."""
    rows = results.summary["networks"]
    return verdict_lines(rows, accuracy_curves(results), results.summary["rounds"])


def _fedavg_level(rows: Sequence[Mapping[str, Any]]) -> float | None:
    return next((r["accuracy"] for r in rows if r["name"] == "FedAvg" and not r["diverged"]), None)


def rounds_to_fedavg(
    rows: Sequence[Mapping[str, Any]], curves: Mapping[str, Measurements]
) -> dict[str, int]:
    """The rounds until the mean accuracy is FedAvg's final one, by method, fastest first."""
    level = _fedavg_level(rows)
    if level is None:
        return {}
    first = {
        name: rounds
        for name, curve in curves.items()
        if name != "FedAvg" and (rounds := first_round(curve.rounds, curve.mean, level)) is not None
    }
    return dict(sorted(first.items(), key=lambda pair: pair[1]))


def verdict_lines(
    rows: Sequence[Mapping[str, Any]], curves: Mapping[str, Measurements], rounds: int
) -> list[str]:
    """The same as sentences."""
    level, first = _fedavg_level(rows), rounds_to_fedavg(rows, curves)
    if level is None:
        return []
    if not first:
        return [f"No other method reaches FedAvg's final accuracy, {100 * level:.1f}%."]
    counts = "; ".join(f"{name} {count}" for name, count in first.items())
    least = min(first.values())
    best = [name for name, count in first.items() if count == least]
    after = f"after {100 * least / rounds:.0f}% of the rounds"
    return [
        f"Rounds to FedAvg's final accuracy, {100 * level:.1f}% after {rounds}: {counts}.",
        f"The first is {best[0]}, {after}."
        if len(best) == 1
        else f"The first, {after}: {'; '.join(best)}.",  # one of the names has a comma
    ]
