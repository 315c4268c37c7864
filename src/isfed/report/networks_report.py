"""What the study of networks shows: curves of the accuracy, a table, and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from isfed.report.page_data import PageTable, TableCell
from isfed.report.terminal_tables import percent
from isfed.studies.results_reader import Measurements, Results
from isfed.studies.study_summaries import RIVALS

# Colour, dashes and marker: the markers tell the lines apart in grey.
LOOKS: dict[str, tuple[str, Any, str]] = {
    "FedAvg": ("black", "-", ""),
    "FedAvg, averaged": ("black", (0, (6, 2)), "o"),
    "FedAdam": ("tab:blue", (0, (1, 1.2)), "s"),
    "FedAdam, averaged": ("tab:blue", "-", "s"),
    "FedACG": ("tab:cyan", (0, (6, 2)), "D"),
    "FedVARP": ("tab:olive", "-", "^"),
    "SCAFFOLD": ("tab:brown", "-", "v"),
    "clustered": ("tab:purple", (0, (3, 1, 1, 1)), "v"),
    "clustered, averaged": ("tab:purple", "-", "v"),
    "Power-of-Choice": ("tab:gray", (0, (1, 1.2)), "D"),
    "importance": ("tab:pink", (0, (1, 1.2)), "o"),
    "stratified passes, averaged": ("tab:green", (0, (6, 2)), "^"),
    "look-ahead Adam, averaged": ("tab:orange", (0, (6, 2)), "^"),
    "stratified passes, look-ahead Adam, averaged": ("tab:green", "-", "D"),
    "default": ("tab:red", "-", "o"),
    "default, last model": ("tab:red", (0, (1, 1.2)), ""),
}
COLUMNS = (
    "method", "step size", "accuracy (%)", "worst drop", "rounds to FedAvg", "to its average",
    "MB a round", "useless steps",
)  # fmt: skip


def accuracy_curves(results: Results) -> dict[str, Measurements]:
    """The accuracy along the run of every method that has one."""
    return {a.name: a.measures["accuracy"] for a in results.algorithms if "accuracy" in a.measures}


def draw_accuracy(axes: Any, curves: Mapping[str, Measurements], names: Iterable[str]) -> None:
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
    import matplotlib.pyplot as plt  # takes a while to import

    from isfed.report.figures import label_axes, save_figure

    figure, axes = plt.subplots(figsize=(7.0, 4.4))
    curves = accuracy_curves(results)
    draw_accuracy(axes, curves, curves)
    axes.set_title(results.summary["title"], fontsize=10)
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
    label_axes(axes, "round", "accuracy on test rows (%)", **place)
    return save_figure(figure, results.path, "accuracy")


def networks_table(results: Results) -> PageTable:
    """Accuracy at the end, and how long it took to be where FedAvg ends."""
    summary = results.summary
    caption = (
        f"{summary['title']}: {summary['repetitions']} repetitions of {summary['rounds']} "
        "rounds, accuracy ± standard error over the last of them"
    )
    return replace(targets_table(results), caption=caption)


def table_row(row: Mapping[str, Any]) -> list[str]:
    """The cells of one method, as text; COLUMNS are their names.

    >>> table_row({"name": "FedAvg", "step_size": 0.2, "diverged": "in round 3"})[:3]
    ['FedAvg', '0.2', 'diverged']
    """
    first = [row["name"], f"{row['step_size']:.3g}"]
    if row["diverged"]:
        return [*first, "diverged", *("" for _ in COLUMNS[3:])]
    drop, reached = row.get("worst_drop"), row.get("rounds_to", {})
    return [
        *first,
        percent(row["accuracy"], row["accuracy_stderr"]),
        "" if drop is None else f"{100 * drop:.1f}",
        *(_rounds(reached.get(rival)) for rival in RIVALS),
        f"{row['megabytes_per_round']:.3g}",
        f"{row['steps_useless']} of {row['steps_tried']}",
    ]


def _rounds(count: int | None) -> str:
    return "-" if count is None else str(count)


def targets_table(results: Results) -> PageTable:
    """What every method reached; nothing for another study."""
    rows = []
    for row in results.summary.get("networks") or ():
        cells: list[Any] = [TableCell(text, None) for text in table_row(row)]
        numbers = (row["step_size"], row.get("accuracy"), row.get("worst_drop"))
        for place, number in enumerate(numbers, start=1):
            cells[place] = cells[place]._replace(value=number)
        rows.append(cells)
    caption = (
        "Worst drop below the best accuracy so far, in points; rounds to the final accuracy of "
        "FedAvg and of FedAvg averaged; step sizes up to twice the chosen one that were tried, and "
        "how many of them left a model no better than a guess"
    )
    return PageTable.of(caption, COLUMNS, rows)


def networks_verdict(results: Results) -> list[str]:
    """Who is first where FedAvg ends, averaged or not."""
    return verdict_lines(results.summary["networks"], results.summary["rounds"])


def verdict_lines(rows: Sequence[Mapping[str, Any]], rounds: int) -> list[str]:
    """A sentence for FedAvg, and one for FedAvg averaged."""
    lines = []
    for rival in RIVALS:
        level = next(
            (r["accuracy"] for r in rows if r["name"] == rival and not r["diverged"]), None
        )
        if level is None:
            continue
        first = {
            row["name"]: row["rounds_to"][rival]
            for row in rows
            if row["name"] != rival and row.get("rounds_to", {}).get(rival) is not None
        }
        if not first:
            lines.append(f"No other method reaches the {100 * level:.1f}% of {rival}.")
            continue
        least = min(first.values())
        best = "; ".join(name for name, count in first.items() if count == least)
        lines.append(
            f"{rival} ends at {100 * level:.1f}% after {rounds} rounds. First there, after "
            f"{least}: {best}."
        )
    return lines
