"""What a diagnosis says of spreads and corrections: a table."""

from __future__ import annotations

import math

from rich.table import Table

from isfed.studies.results_reader import Results

WORDS = {
    "uniform": "uniform",
    "importance": "importance by norm, Memory()",
    "spread": "uniform, Spread()",
    "difference": "correction='difference'",
    "drift": "correction='drift'",
    "drift, spread": "correction='drift', Spread()",
}


def ways_table(results: Results) -> Table:
    """The ways to sample agents, side by side; mini-batches are uniform in all of them."""
    found = results.summary["ways"]
    table = Table(title=f"Ways to sample agents, at step_size={found['step_size']:.3g}")
    table.title_justify = "left"
    table.add_column("", no_wrap=True)
    for heading in ("variance", "times smaller", "risk by drift (1)", "excess risk (2)"):
        table.add_column(heading, justify="right")
    for way in found["ways"]:
        values = (way[key] for key in ("variance", "times_smaller", "drift", "excess"))
        numbers = (f"{math.inf if value is None else value:.3g}" for value in values)
        table.add_row(WORDS[way["name"]], *numbers)
    table.caption = (
        "(1) Caused by local steps that run towards the agents' own minimisers. (2) All that "
        "remains, to first order in the step size."
    )
    table.caption_justify = "left"
    return table


def ways_line(results: Results) -> str:
    """What to do about the agents beside drawing them by importance, and why."""
    found = results.summary["ways"]
    return f"For the agents alone, with options of ISFedAvg: {found['recommendation']}"
