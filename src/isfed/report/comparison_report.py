"""What a comparison on the user's own table shows: a table and a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from rich.table import Table

from isfed.base.text_format import plain_number
from isfed.report.figures import label_axes, plot_band, save_figure
from isfed.report.page_data import PageTable, TableCell, level_cell, number_cell
from isfed.report.terminal_tables import MOVING, text_table
from isfed.studies.results_reader import Results

HELD_OUT = {"training": "trained on", "rows": "held-out rows", "agents": "held-out agents"}
UNSEEN_FIRST = ("rows", "agents", "training")
HELD_OUT_TITLE = "Trained again without some rows and agents"


def comparison_table(results: Results) -> Table:
    """What each needs to reach FedAvg's final loss."""
    algorithms, summaries = results.algorithms, [a.summary for a in results.algorithms]
    marks = [MOVING if algorithm.settled is False else "" for algorithm in algorithms]

    def spent(key: str) -> list[str]:
        return ["never" if row[key] is None else f"{row[key]:,.0f}" for row in summaries]

    shares = [row["final_relative"] for row in summaries]
    shares = ["" if share is None else f"{100 * share:.3g}%" for share in shares]
    gain, error = (results.summary[f"gain_in_loss_{key}"] for key in ("db", "stderr_db"))
    finals = [_with_error(row["final_excess"], row["final_stderr"], 3) for row in summaries]
    rows = {
        "best step size": [f"{algorithm.step_size:.3g}" for algorithm in algorithms],
        "final loss over the optimum": [f + m for f, m in zip(finals, marks, strict=True)],
        "  as a share of the optimum": shares,
        "  below FedAvg's": ["", "" if gain is None else f"{gain:.1f} ± {error:.1f} dB"],
        **{key: spent(key) for key in ("rounds", "uploads", "gradients")},
    }
    return text_table(
        "What each needs to reach FedAvg's final loss",
        ["", *(algorithm.name for algorithm in algorithms)],
        ([heading, *cells] for heading, cells in rows.items()),
        wrap=True,
    )


def _with_error(value: float, error: float, digits: int) -> str:
    return f"{plain_number(value, digits)} ± {plain_number(error, 1)}"


def held_out_table(results: Results) -> Table | None:
    """Loss and error on rows that were trained on, held out, and of agents held out."""
    held_out = results.summary["held_out"]
    if not held_out:
        return None
    number = _is_number(results)
    rows = []
    for kind, words in HELD_OUT.items():
        parts = [of_kind[kind] for of_kind in held_out.values() if kind in of_kind]
        if len(parts) < len(held_out):
            continue
        losses = (_with_error(part["loss"], part["loss_stderr"], 4) for part in parts)
        rows.append((f"loss, {words} ({parts[0]['examples']:,})", *losses))
        if number:
            rows.append(("  RMSE", *(plain_number(part["error"], 3) for part in parts)))
        else:
            rows.append(("  wrong", *(f"{100.0 * part['error']:.3g}%" for part in parts)))
    return text_table(HELD_OUT_TITLE, ["", *held_out], rows, wrap=True)


def _is_number(results: Results) -> bool:
    """Whether the target is a number, not a class."""
    return results.summary.get("account", {}).get("span") is not None


def held_out_page_table(results: Results) -> PageTable:
    """For the page: what an analyst would notice, the errors on rows that were not seen first."""
    scale, unit, error = (1.0, "", "RMSE") if _is_number(results) else (100.0, "%", "wrong")
    held_out = results.summary.get("held_out") or {}
    kinds = [kind for kind in UNSEEN_FIRST if any(kind in parts for parts in held_out.values())]
    counts = {kind: parts[kind]["examples"] for parts in held_out.values() for kind in parts}
    named = {kind: f"{HELD_OUT[kind]} ({counts[kind]:,})" for kind in kinds}
    columns = [f"{error}, {named[kind]}" for kind in kinds] + [f"loss, {named[k]}" for k in kinds]

    def cells(part: Mapping[str, Any] | None) -> tuple[TableCell, TableCell]:
        if part is None:
            return number_cell(None), number_cell(None)
        text = f"{plain_number(scale * part['error'], 3)}{unit}"
        return TableCell(text, part["error"]), level_cell(part["loss"], part["loss_stderr"], "")

    rows = []
    for name, parts in held_out.items():
        errors, losses = zip(*(cells(parts.get(kind)) for kind in kinds), strict=True)
        rows.append((name, *errors, *losses))
    return PageTable.of(HELD_OUT_TITLE, ("way", *columns), rows)


def agreement_line(results: Results) -> str | None:
    """What `isfed diagnose` predicts, and why this is not that."""
    predicted, gain = results.summary.get("predicted"), results.summary.get("gain_in_loss_db")
    if not predicted or gain is None:
        return None
    steps = " and ".join(f"{a.step_size:.2g}" for a in results.algorithms)
    error = results.summary["gain_in_loss_stderr_db"]
    spread = "" if error is None else f" ± {error:.1f}"
    why = ""
    if len({a.step_size for a in results.algorithms}) > 1:
        why = (
            " Each method has its own best step size here, larger where there is less noise, so "
            "part of the gain is used for speed."
        )
    there = predicted.get("diagnosed_db", math.nan)  # folders of older versions have none
    small = f"{predicted['distance_db']:.1f} dB in the distance to the optimum"
    return (
        f"What theory predicts: `isfed diagnose` gives {there:.1f} dB, compared with uniform "
        "sampling that never takes an example twice, at one small step size, for a run that has "
        "settled. Compared with FedAvg, which may take an example twice, and for steps that move "
        f"the model as far, that is {small} and {predicted['loss_db']:.1f} dB in the loss. At the "
        f"best step sizes ({steps}) after {results.summary['rounds']} rounds it is "
        f"{predicted['these_steps_db']:.1f} dB. Measured: {gain:.1f}{spread} dB.{why}"
    )


def comparison_figure(results: Results) -> list[Path]:
    """Loss over the optimum against rounds, with FedAvg's final loss as a line."""
    figure, axes = plt.subplots(figsize=(7.0, 4.4))
    looks = (("tab:blue", "-"), ("black", (0, (4, 1.5))))
    for algorithm, (colour, dashes) in zip(results.algorithms, looks, strict=True):
        curve = algorithm.measures["excess"]
        label = f"{algorithm.name}, step {algorithm.step_size:.3g}"
        look = {"linestyle": dashes, "label": label}
        plot_band(axes, curve.rounds, curve.mean, curve.stderr, colour, **look)
    level = results.summary["level"]
    axes.axhline(level, color="tab:blue", linewidth=0.8, linestyle=(0, (2, 2)))
    axes.annotate(
        "what FedAvg ends with", (0.01, level), xycoords=("axes fraction", "data"),
        xytext=(0, 2), textcoords="offset points", fontsize=8,
    )  # fmt: skip
    axes.set_yscale("log")
    label_axes(axes, "round (bands: 2 standard errors)", "risk minus the lowest possible risk")
    return save_figure(figure, results.path, "comparison")
