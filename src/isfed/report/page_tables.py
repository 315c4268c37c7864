"""The tables of a page that belong to no figure: what some kinds of studies found besides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isfed.base.text_format import plain_number
from isfed.report.networks_report import accuracy_curves, reached, rounds_to_fedavg, target_names
from isfed.report.page_curves import level_cell, number_cell
from isfed.report.page_data import Cell, PageTable
from isfed.report.strategies_table import WORDS
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
    tables: tuple[Callable[[Results], PageTable | None], ...] = (
        networks, held_out, step_sizes, options, ways, drawn_most,
    )  # fmt: skip
    yield from (found for table in tables if (found := table(results)) is not None)


def networks(results: Results) -> PageTable | None:
    """Of networks: what it took to reach fixed accuracies, and FedAvg's final one."""
    rows = results.summary.get("networks")
    if not rows:
        return None
    first = rounds_to_fedavg(rows, accuracy_curves(results))
    columns = ("method", "step size", "accuracy (%)", *target_names(rows), "as FedAvg")
    return PageTable(
        "Rounds (MB, s) to an accuracy, and rounds to FedAvg's final one",
        columns, tuple(_network_cells(row, first.get(row["name"])) for row in rows),
    )  # fmt: skip


def _network_cells(row: Mapping[str, Any], as_fedavg: int | None) -> tuple[Cell, ...]:
    named = Cell(row["name"]), number_cell(row["step_size"], ".3g")
    if row["diverged"]:
        return (*named, Cell("diverged"), *(Cell("") for _ in row["targets"]), Cell(""))
    return (
        *named,
        Cell(percent(row["accuracy"], row["accuracy_stderr"]), row["accuracy"]),
        *(Cell(reached(target), target["rounds"]) for target in row["targets"]),
        Cell("" if as_fedavg is None else str(as_fedavg), as_fedavg),
    )


def step_sizes(results: Results) -> PageTable | None:
    """The step sizes that were tried."""
    if not results.searches:
        return None
    rows = tuple(
        (
            Cell(name),
            number_cell(step, ".3g"),
            Cell(plain_number(loss, 4), loss) if math.isfinite(loss) else Cell("diverged"),
            Cell("best" if step == search.best else ""),
        )
        for name, search in results.searches.items()
        for step, loss in search.losses.items()
    )
    columns = ("algorithm", "step size", "loss", "choice")
    return PageTable("Step sizes that were tried", columns, rows)


def held_out(results: Results) -> PageTable | None:
    """Of a comparison: loss and error on rows and agents that were not trained on."""
    found = results.summary.get("held_out")
    if not found:
        return None
    measured = results.summary.get("account", {}).get("span") is not None
    scale, unit, error = (1.0, "", "RMSE") if measured else (100.0, "%", "wrong")
    rows = tuple(
        (
            Cell(f"{name}, {words}"),
            number_cell(part["examples"], ",.0f"),
            level_cell(part["loss"], part["loss_stderr"], ""),
            Cell(f"{plain_number(scale * part['error'], 3)}{unit}", part["error"]),
        )
        for name, parts in found.items()
        for kind, words in HELD_OUT.items()
        if (part := parts.get(kind)) is not None
    )
    columns = ("algorithm and rows", "how many rows", "loss", error)
    return PageTable("Trained again without some rows and agents", columns, rows)


def points(results: Results) -> PageTable | None:
    """Of a study of heterogeneity: the gain at every point."""
    found = results.summary.get("points")
    if not found:
        return None
    rows = tuple(
        (
            Cell(f"{100 * p['noisy_share']:g}% of the agents noisy"),
            number_cell(p["noise_ratio"], "g"),
            level_cell(p["gain_db"], p.get("gain_stderr_db") or math.nan, "dB"),
            level_cell(p.get("memory_gain_db") or math.nan, math.nan, "dB"),
        )
        for p in found
    )
    columns = ("agents", "noise ratio", "gain of the oracle", "gain of memory")
    return PageTable("Gain over FedAvg", columns, rows)


def options(results: Results) -> PageTable | None:
    """Of a diagnosis: the ways to sample, side by side."""
    found = results.summary.get("options")
    if not found:
        return None
    rows = tuple(
        (
            Cell(SAMPLING.get(str(o["sampling"]), str(o["sampling"]))),
            number_cell(o["variance"], ".3g"),
            number_cell(o["variance_ratio"], ".3g"),
            number_cell(o["gain_db"], ".2f"),
            number_cell(o["step_limit"], ".3g"),
            number_cell(o.get("careful_limit"), ".3g"),
            number_cell(o.get("settled_after"), ".3g"),
        )
        for o in found
    )
    columns = (
        "sampling", "variance", "times smaller", "gain (dB)", "largest stable step",
        "careful step", "rounds to settle",
    )  # fmt: skip
    return PageTable("The ways to sample", columns, rows)


def ways(results: Results) -> PageTable | None:
    """Of a diagnosis: the ways to sample agents, corrections as well."""
    found = results.summary.get("ways")
    if not found or results.summary.get("degenerate"):
        return None
    keys = ("variance", "times_smaller", "drift", "excess")
    rows = tuple(
        (Cell(WORDS[way["name"]]), *(number_cell(way[key], ".3g") for key in keys))
        for way in found["ways"]
    )
    columns = ("agents", "variance", "times smaller", "risk by drift", "excess risk")
    return PageTable(f"Ways to sample agents, at step size {found['step_size']:.3g}", columns, rows)


def drawn_most(results: Results) -> PageTable | None:
    """Of a diagnosis: the agents and the rows that importance sampling draws most."""
    agents, examples = (results.summary.get(f"top_{unit}", ()) for unit in ("agents", "examples"))

    def row(kind: str, name: str, found: dict[str, Any]) -> tuple[Cell, ...]:
        return Cell(name), Cell(kind), number_cell(found["times_uniform"], ".3g")

    rows = [row("agent", str(a["agent_name"]), a) for a in agents]
    rows += [row("row", f"{e['row_name']} of agent {e['agent_name']}", e) for e in examples]
    if not rows:
        return None
    columns = ("name", "what", "times as often as under uniform sampling")
    return PageTable("Who is drawn most", columns, tuple(rows))
