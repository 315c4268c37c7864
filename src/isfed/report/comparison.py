"""What a comparison on the user's own table shows: a table and a figure."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from rich.table import Table

from isfed.experiments.results import Results
from isfed.report.figures import save_figure
from isfed.report.tables import MOVING


def comparison_table(results: Results) -> Table:
    """What each needs to reach FedAvg's final loss."""
    table = Table(title="to reach the loss that FedAvg ends with", title_justify="left")
    table.add_column("algorithm")
    for heading in ("best step", "final loss over the optimum", "rounds", "uploads", "gradients"):
        table.add_column(heading, justify="right")
    for algorithm in results.algorithms:
        row = algorithm.summary
        spent = [row["rounds"], row["uploads"], row["gradients"]]
        mark = MOVING if algorithm.settled is False else ""
        table.add_row(
            algorithm.name,
            f"{algorithm.step_size:.3g}",
            f"{row['final_excess']:.3g} ± {row['final_stderr']:.1g}{mark}",
            *("never" if value is None else f"{value:,.0f}" for value in spent),
        )
    return table


def comparison_figure(results: Results) -> list[Path]:
    """Loss over the optimum against rounds, with FedAvg's final loss as a line."""
    figure, axes = plt.subplots(figsize=(7.0, 4.4))
    looks = (("tab:blue", "-"), ("black", (0, (4, 1.5))))
    for algorithm, (colour, dashes) in zip(results.algorithms, looks, strict=True):
        curve = algorithm.measures["excess"]
        label = f"{algorithm.name}, step {algorithm.step_size:.3g}"
        axes.plot(curve.rounds, curve.mean, color=colour, linestyle=dashes, label=label)
        axes.fill_between(
            curve.rounds, curve.mean - 2 * curve.stderr, curve.mean + 2 * curve.stderr,
            color=colour, alpha=0.15, linewidth=0,
        )  # fmt: skip
    level = results.summary["level"]
    axes.axhline(level, color="tab:blue", linewidth=0.8, linestyle=(0, (2, 2)))
    axes.annotate(
        "what FedAvg ends with", (0.01, level), xycoords=("axes fraction", "data"),
        xytext=(0, 2), textcoords="offset points", fontsize=8,
    )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("round (bands: 2 standard errors)")
    axes.set_ylabel("risk above that of the optimum")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return save_figure(figure, results.path, "comparison")
