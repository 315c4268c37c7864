"""What the study of networks shows: curves of the accuracy, a table, and sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from rich.table import Table

from isfed.experiments.results import Results
from isfed.report.figures import save_figure

LOOKS: dict[str, tuple[str, Any]] = {
    "FedAvg": ("tab:blue", "-"),
    "importance": ("black", (0, (1, 1.2))),
    "spread": ("tab:pink", "-"),
    "difference": ("tab:green", (0, (6, 2))),
    "drift": ("tab:red", "-"),
    "drift, importance": ("tab:red", (0, (3, 1, 1, 1))),
    "FedProx": ("tab:cyan", (0, (6, 2))),
    "SCAFFOLD": ("tab:orange", "-"),
    "FedVARP": ("tab:olive", (0, (6, 2))),
    "clustered": ("tab:purple", (0, (3, 1, 1, 1))),
    "Power-of-Choice": ("tab:brown", (0, (1, 1.2))),
}


def networks_figure(results: Results) -> list[Path]:
    """The accuracy on the test rows against the round, with two standard errors."""
    figure, axes = plt.subplots(figsize=(7.0, 4.4))
    for algorithm in results.algorithms:
        found = algorithm.measures.get("accuracy")
        if found is None:
            continue
        colour, dashes = LOOKS.get(algorithm.name, ("tab:grey", ":"))
        axes.plot(
            found.rounds, 100 * found.mean, color=colour, linestyle=dashes, linewidth=1.6,
            label=algorithm.name,
        )  # fmt: skip
        low, high = found.mean - 2 * found.stderr, found.mean + 2 * found.stderr
        axes.fill_between(found.rounds, 100 * low, 100 * high, color=colour, alpha=0.1, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy on test rows (%)")
    axes.set_title(results.summary["title"], fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return save_figure(figure, results.path, "accuracy")


def networks_table(results: Results) -> Table:
    """Accuracy at the end, and the rounds, bytes and seconds to fixed accuracies."""
    summary = results.summary
    rows = summary["networks"]
    table = Table(
        title=f"{summary['title']}: {summary['repetitions']} repetitions of {summary['rounds']} "
        "rounds, accuracy ± standard error over the last of them; rounds (MB, s) to an accuracy",
        title_justify="left",
    )
    table.add_column("method", no_wrap=True)
    table.add_column("step", justify="right")
    table.add_column("accuracy", justify="right")
    for target in rows[0]["targets"]:
        table.add_column(f"{100 * target['accuracy']:g}%", justify="right")
    for row in rows:
        if row["diverged"]:
            table.add_row(row["name"], f"{row['step_size']:.3g}", "diverged")
            continue
        table.add_row(
            row["name"],
            f"{row['step_size']:.3g}",
            f"{100 * row['accuracy']:.1f} ± {100 * row['accuracy_stderr']:.1f}",
            *(_reached(target) for target in row["targets"]),
        )
    return table


def _reached(target: dict[str, Any]) -> str:
    if target["rounds"] is None:
        return "-"
    return f"{target['rounds']} ({target['megabytes']:.0f}, {target['seconds']:.0f})"


def networks_verdict(results: Results) -> list[str]:
    """Who reaches FedAvg's final accuracy first, and in how many rounds."""
    known = {row["name"]: row for row in results.summary["networks"]}
    fedavg = known.get("FedAvg")
    if fedavg is None or fedavg["diverged"]:
        return []
    level, rounds = fedavg["accuracy"], results.summary["rounds"]
    first: dict[str, int] = {}
    for algorithm in results.algorithms:
        found = algorithm.measures.get("accuracy")
        if algorithm.name == "FedAvg" or found is None:
            continue
        reached = [r for r, a in zip(found.rounds, found.mean, strict=True) if a >= level]
        if reached:
            first[algorithm.name] = int(reached[0])
    if not first:
        return [f"No method reaches FedAvg's final accuracy, {100 * level:.1f}%, but FedAvg."]
    order = sorted(first, key=lambda name: first[name])
    told = ", ".join(f"{name} {first[name]}" for name in order)
    best = order[0]
    return [
        f"Rounds to FedAvg's final accuracy, {100 * level:.1f}% after {rounds}: {told}.",
        f"The first is {best}, after {100 * first[best] / rounds:.0f}% of the rounds.",
    ]
