"""The tables of a page that belong to no figure: what some kinds of studies found besides."""

from __future__ import annotations

import math
from collections.abc import Iterator

from isfed.base.text_format import plain_number
from isfed.report.diagnosis_report import WAYS
from isfed.report.networks_report import accuracy_curves, reached, rounds_to_fedavg, target_names
from isfed.report.page_curves import level_cell, number_cell
from isfed.report.page_data import PageTable, TableCell
from isfed.report.terminal_tables import percent
from isfed.studies.results_reader import Results

SAMPLING = {
    "uniform": "uniform sampling",
    "agents": "importance sampling of agents",
    "examples": "importance sampling of examples",
    "both": "importance sampling of both",
}
HELD_OUT = {"training": "trained on", "rows": "held-out rows", "agents": "held-out agents"}


def further_tables(results: Results) -> Iterator[PageTable]:
    """Every table that the folder has the numbers for, and that belongs to no figure."""
    for make in (_targets, _held_out, _step_sizes, _options, _ways, _drawn_most):
        if (table := make(results)) is not None:
            yield table


def _targets(results: Results) -> PageTable | None:
    """Of networks: what it took to reach fixed accuracies, and FedAvg's final one."""
    rows = results.summary.get("networks")
    if not rows:
        return None
    first = rounds_to_fedavg(rows, accuracy_curves(results))
    cells = []
    for row in rows:
        named = TableCell(row["name"]), number_cell(row["step_size"], ".3g")
        if row["diverged"]:
            empty = (TableCell("") for _ in row["targets"])
            cells.append((*named, TableCell("diverged"), *empty, TableCell("")))
            continue
        as_fedavg = first.get(row["name"])
        accuracy = percent(row["accuracy"], row["accuracy_stderr"])
        targets = (TableCell(reached(target), target["rounds"]) for target in row["targets"])
        last = TableCell("" if as_fedavg is None else str(as_fedavg), as_fedavg)
        cells.append((*named, TableCell(accuracy, row["accuracy"]), *targets, last))
    columns = ("method", "step size", "accuracy (%)", *target_names(rows), "as FedAvg")
    caption = "Rounds (MB, s) to an accuracy, and rounds to FedAvg's final one"
    return PageTable(caption, columns, tuple(cells))


def _step_sizes(results: Results) -> PageTable | None:
    """The step sizes that were tried."""
    if not results.searches:
        return None
    rows = tuple(
        (
            TableCell(name),
            number_cell(step, ".3g"),
            TableCell(plain_number(loss, 4), loss)
            if math.isfinite(loss)
            else TableCell("diverged"),
            TableCell("best" if step == search.best else ""),
        )
        for name, search in results.searches.items()
        for step, loss in search.losses.items()
    )
    columns = ("algorithm", "step size", "loss", "choice")
    return PageTable("Step sizes that were tried", columns, rows)


def _held_out(results: Results) -> PageTable | None:
    """Of a comparison: loss and error on rows and agents that were not trained on."""
    parts_of = results.summary.get("held_out")
    if not parts_of:
        return None
    measured = results.summary.get("account", {}).get("span") is not None
    scale, unit, error = (1.0, "", "RMSE") if measured else (100.0, "%", "wrong")
    rows = tuple(
        (
            TableCell(f"{name}, {words}"),
            number_cell(part["examples"], ",.0f"),
            level_cell(part["loss"], part["loss_stderr"], ""),
            TableCell(f"{plain_number(scale * part['error'], 3)}{unit}", part["error"]),
        )
        for name, parts in parts_of.items()
        for kind, words in HELD_OUT.items()
        if (part := parts.get(kind)) is not None
    )
    columns = ("algorithm and rows", "how many rows", "loss", error)
    return PageTable("Trained again without some rows and agents", columns, rows)


def gain_table(results: Results) -> PageTable | None:
    """Of a study of heterogeneity: the gain at every point."""
    points = results.summary.get("points")
    if not points:
        return None
    rows = tuple(
        (
            TableCell(f"{100 * p['noisy_share']:g}% of the agents noisy"),
            number_cell(p["noise_ratio"], "g"),
            level_cell(p["gain_db"], p.get("gain_stderr_db") or math.nan, "dB"),
            level_cell(p.get("memory_gain_db") or math.nan, math.nan, "dB"),
        )
        for p in points
    )
    columns = ("agents", "noise ratio", "gain of the oracle", "gain of memory")
    return PageTable("Gain over FedAvg", columns, rows)


def _options(results: Results) -> PageTable | None:
    """Of a diagnosis: the ways to sample, side by side."""
    shown = {
        "variance": ("variance", ".3g"),
        "times smaller": ("variance_ratio", ".3g"),
        "gain (dB)": ("gain_db", ".2f"),
        "largest stable step": ("step_limit", ".3g"),
        "careful step": ("careful_limit", ".3g"),
        "rounds to settle": ("settled_after", ".3g"),
    }
    rows = tuple(
        (
            TableCell(SAMPLING.get(str(option["sampling"]), str(option["sampling"]))),
            *(number_cell(option.get(key), form) for key, form in shown.values()),
        )
        for option in results.summary.get("options") or ()
    )
    return PageTable("The ways to sample", ("sampling", *shown), rows) if rows else None


def _ways(results: Results) -> PageTable | None:
    """Of a diagnosis: the ways to sample agents, corrections as well."""
    ways = results.summary.get("ways")
    if not ways or results.summary.get("degenerate"):
        return None
    keys = ("variance", "times_smaller", "drift", "excess")
    rows = tuple(
        (TableCell(WAYS[way["name"]]), *(number_cell(way[key], ".3g") for key in keys))
        for way in ways["ways"]
    )
    columns = ("agents", "variance", "times smaller", "risk by drift", "excess risk")
    return PageTable(f"Ways to sample agents, at step size {ways['step_size']:.3g}", columns, rows)


def _drawn_most(results: Results) -> PageTable | None:
    """Of a diagnosis: the agents and the rows that importance sampling draws most."""
    agents, examples = (results.summary.get(f"top_{unit}", ()) for unit in ("agents", "examples"))

    named = [(str(a["agent_name"]), "agent", a) for a in agents]
    named += [(f"{e['row_name']} of agent {e['agent_name']}", "row", e) for e in examples]
    rows = tuple(
        (TableCell(name), TableCell(kind), number_cell(unit["times_uniform"], ".3g"))
        for name, kind, unit in named
    )
    columns = ("name", "what", "times as often as under uniform sampling")
    return PageTable("Who is drawn most", columns, rows) if rows else None
