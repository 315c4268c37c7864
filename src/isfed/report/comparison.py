"""What a comparison on the user's own table leaves behind: a table, a figure, two files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import matplotlib.pyplot as plt
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from isfed.base.files import write_whole
from isfed.experiments.comparison import Comparison
from isfed.experiments.store import locked
from isfed.report.figures import save_figure
from isfed.report.folders import check_free
from isfed.simulate.history import stderr_of_mean


def comparison_table(found: Comparison) -> Table:
    """What each needs to reach FedAvg's final loss."""
    table = Table(title="to reach the loss that FedAvg ends with", title_justify="left")
    table.add_column("algorithm")
    for heading in ("best step", "final loss over the optimum", "rounds", "uploads", "gradients"):
        table.add_column(heading, justify="right")
    for row in found.rows():
        spent = [row["rounds"], row["uploads"], row["gradients"]]
        table.add_row(
            str(row["name"]),
            f"{row['step_size']:.3g}",
            f"{row['final_excess']:.3g} ± {row['final_stderr']:.1g}",
            *("never" if value is None else f"{value:,.0f}" for value in spent),
        )
    return table


def save_comparison(folder: Path, found: Comparison, *, overwrite: bool) -> None:
    """Write all there is of a comparison."""
    with locked(folder):
        check_free(folder, "comparison", overwrite=overwrite)
        comparison_figure(folder, found)
        write_comparison(folder, found)


def write_comparison(folder: Path, found: Comparison) -> None:
    """summary.json and history.parquet: the mean loss over the optimum against rounds."""
    columns: dict[str, list] = {"algorithm": [], "round": [], "excess": [], "stderr": []}
    for curve in (found.fedavg, found.isfedavg):
        points = curve.rounds.size
        columns["algorithm"] += [curve.name] * points
        columns["round"] += curve.rounds.tolist()
        columns["excess"] += curve.excess.mean(axis=0).tolist()
        error = stderr_of_mean(curve.excess)
        columns["stderr"] += error.tolist()
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    write_whole(folder / "history.parquet", sink.getvalue())
    summary = {
        "verdict": found.verdict(),
        "buys": found.buys,
        "optimum_risk": found.optimum_risk,
        "algorithms": found.rows(),
    }
    write_whole(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())


def comparison_figure(folder: Path, found: Comparison) -> list[Path]:
    """Loss over the optimum against rounds, with FedAvg's final loss as a line."""
    figure, axes = plt.subplots(figsize=(7.0, 4.4))
    looks = (("tab:blue", "-"), ("black", (0, (4, 1.5))))
    for curve, (colour, dashes) in zip((found.fedavg, found.isfedavg), looks, strict=True):
        mean = curve.excess.mean(axis=0)
        error = stderr_of_mean(curve.excess)
        label = f"{curve.name}, step {curve.step_size:.3g}"
        axes.plot(curve.rounds, mean, color=colour, linestyle=dashes, label=label)
        axes.fill_between(
            curve.rounds, mean - 2 * error, mean + 2 * error, color=colour, alpha=0.15, linewidth=0
        )
    axes.axhline(found.level, color="tab:blue", linewidth=0.8, linestyle=(0, (2, 2)))
    axes.annotate(
        "what FedAvg ends with", (0.01, found.level), xycoords=("axes fraction", "data"),
        xytext=(0, 2), textcoords="offset points", fontsize=8,
    )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("round (bands: 2 standard errors)")
    axes.set_ylabel("risk above that of the optimum")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return save_figure(figure, folder, "comparison")
