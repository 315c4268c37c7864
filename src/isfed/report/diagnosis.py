"""What a diagnosis shows: a table, a figure, some lines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from rich.table import Table

from isfed.experiments.results import Results
from isfed.report.figures import save_figure

NAMES = {
    "uniform": "uniform sampling",
    "agents": "importance sampling of agents",
    "examples": "importance sampling of examples",
    "both": "importance sampling of both",
}


def diagnosis_table(results: Results) -> Table:
    """The four ways to sample, side by side."""
    found = results.summary
    table = Table(title=f"{found['problem']}: predicted at {found['at']}", title_justify="left")
    table.add_column("")
    for heading in (
        "variance", "from agents", "ratio", "gain, dB", "stable step", "agents", "examples",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    num_active = found["setting"]["num_active"]
    batch = found["options"][0]["examples_size"]  # equal chances: the batch itself
    for option in found["options"]:
        limit = option["step_limit"]
        table.add_row(
            NAMES[option["sampling"]],
            f"{_finite(option['variance']):.3g}",
            f"{100 * option['agents_share']:.0f}%",
            f"{_finite(option['variance_ratio']):.3g}",
            f"{_finite(option['gain_db']):.2f}",
            "unknown" if limit is None else f"{limit:.3g}",
            f"{option['agents_size'] / num_active:.0%}",
            f"{option['examples_size'] / batch:.0%}",
        )
    weighted = found["weighted_by_curvature"]
    kind = "the mean squared distance to w^o" if weighted else "the gradient's variance"
    table.caption = (
        "variance of a round's gradient estimate, how many times smaller it is (ratio); gain in "
        f"{kind} that remains; largest stable step size of ISFedAvg so sampled (FedAvg, without "
        "1/E_k, has a smaller one); effective size of a draw of agents and of examples"
    )
    table.caption_justify = "left"
    return table


def _finite(value: float | None) -> float:
    return math.inf if value is None else value  # JSON has no infinity


def setting_line(results: Results) -> str:
    """What was looked at, in words."""
    said = results.summary["setting"]
    spans = [
        str(value) if isinstance(value, int) else f"{value[0]} to {value[1]}"
        for value in (said["batch_size"], said["local_steps"])
    ]
    return (
        f"{said['num_agents']} agents, {said['num_active']} a round (L); {said['rows']} rows, "
        f"{spans[0]} a step (B), {spans[1]} steps a turn (E); {said['num_params']} parameters, "
        f"{said['loss']}; probabilities of {said['policy']}, floor {said['floor']:g}"
    )


def settling_line(results: Results) -> str:
    """When the gain counts."""
    rounds = results.summary["settling_rounds"]
    when = "" if rounds is None else f" (about {rounds:.2g} rounds at a quarter of the stable step)"
    return (
        f"This is the error that remains when the model has settled{when}; until then, at one step "
        "size, all ways to sample are equally fast."
    )


def dominant_lines(results: Results) -> list[str]:
    """Which agents and examples would be drawn most, in words."""
    found = results.summary

    def times(row: dict[str, Any]) -> str:
        return f"({row['times_uniform']:.3g} times)"

    agents = ", ".join(f"{row['agent_name']} {times(row)}" for row in found["top_agents"])
    examples = ", ".join(
        f"row {row['example']} of agent {row['agent_name']} {times(row)}"
        for row in found["top_examples"]
    )
    return [
        f"agents drawn most, against uniform: {agents}",
        f"examples drawn most, against uniform: {examples}",
    ]


def constant_lines(results: Results) -> list[str]:
    """The paper's constants, or why one does not exist."""
    return [
        f"{name}: none; {value}" if isinstance(value, str) else f"{name}: {_finite(value):.3g}"
        for name, value in results.summary["constants"].items()
    ]


def inclusion_figure(results: Results) -> list[Path]:
    """The inclusion probabilities of agents and of examples, sorted, beside the uniform ones."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.8))
    table = results.inclusion
    of_agents, of_examples = (table["unit"] == unit for unit in ("agent", "example"))
    agents, times = table["inclusion"][of_agents], table["over_uniform"][of_examples]
    left.plot(table["rank"][of_agents], agents, color="black", label="importance sampling")
    level = agents.sum() / agents.size
    left.axhline(level, color="tab:blue", linestyle=(0, (4, 2)), label="uniform")
    left.set_xlabel("agent, by rank")
    left.set_ylabel("inclusion probability, L p_k")
    right.plot(table["share"][of_examples], times, color="black", label="importance sampling")
    right.axhline(1.0, color="tab:blue", linestyle=(0, (4, 2)), label="uniform")
    right.set_xscale("log")
    right.set_xlabel("example, by rank, share of all")
    right.set_ylabel("inclusion probability over the uniform one")
    for axes, values in ((left, agents), (right, times)):
        axes.set_yscale("log")
        smallest = values[values > 0.0].min()
        axes.set_ylim(bottom=min(smallest / 1.5, 0.5 * values.max()))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    return save_figure(figure, results.path, "inclusion")
