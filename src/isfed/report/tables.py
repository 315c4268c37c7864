"""The tables that a run prints."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

PAPER_GAIN_DB = 23.1
PAPER_AGENT_DISTANCE = 1.22e-2
PAPER_EXAMPLE_DISTANCE = 1.54e-2


def summary_table(summary: dict[str, Any]) -> Table:
    """Steady-state msd, gain over the first algorithm, and the distances to the optimal p."""
    first = summary["algorithms"][0]["name"]
    table = Table(
        title=f"{summary['experiment']}: {summary['repetitions']} repetitions, mean over the last "
        f"{summary['steady_rounds']} of {summary['rounds']} rounds",
        title_justify="left",
    )
    table.add_column("algorithm")
    for heading in ("msd (dB)", f"gain over {first} (dB)", "|p_k - p_k^o|", "mean |p_n - p_n^o|"):
        table.add_column(heading, justify="right")
    table.add_column("gradients a round", justify="right")
    table.add_column("rounds a second", justify="right")
    for row in summary["algorithms"]:
        gain = f"{row['gain_db']:.2f} ± {row['gain_stderr_db']:.2f}"
        table.add_row(
            row["name"],
            f"{row['msd_db']:.2f} ± {row['msd_stderr_db']:.2f}",
            "" if row["name"] == first else gain,
            f"{row['agent_distance']:.2e}",
            f"{row['example_distance']:.2e}",
            f"{row['gradients_per_round']:.0f}",
            f"{row['rounds_per_second']:,.0f}",
        )
    table.add_section()
    table.add_row(
        "uniform probabilities", "", "",
        f"{summary['uniform_agent_distance']:.2e}", f"{summary['uniform_example_distance']:.2e}",
    )  # fmt: skip
    return table


def print_summary(summary: dict[str, Any], console: Console) -> None:
    """Print the table."""
    console.print(summary_table(summary))


def paper_verdict(summary: dict[str, Any]) -> list[str]:
    """Where the regression agrees with the paper and where it does not, in plain sentences."""
    rows = {row["name"]: row for row in summary["algorithms"]}
    oracle, current = rows["ISFedAvg, oracle"], rows["ISFedAvg, current"]
    running, memory = rows["ISFedAvg, running"], rows["ISFedAvg, memory (ours)"]
    fair = rows["FedAvg with 1/E_k"]

    def apart(row: dict[str, Any], other: dict[str, Any]) -> str:
        distance = row["msd_db"] - other["msd_db"]
        error = (row["msd_stderr_db"] ** 2 + other["msd_stderr_db"] ** 2) ** 0.5
        if abs(distance) <= 2.0 * error:
            return f"level with it ({distance:+.2f} ± {error:.2f} dB)"
        return f"{abs(distance):.2f} ± {error:.2f} dB {'above' if distance > 0 else 'below'} it"

    lines = [
        f"Gain of the oracle over FedAvg: {oracle['gain_db']:.1f} dB here, {PAPER_GAIN_DB} dB in "
        "the paper, which does not state its data; the second figure shows which data give it.",
        f"Of this, {fair['gain_db']:.1f} dB is the division by E_k alone, without any importance "
        "sampling.",
        f"Current probabilities against the oracle: {apart(current, oracle)}; the paper: better.",
        f"Running probabilities against the oracle: {apart(running, oracle)}; the paper: equal.",
        f"Memory probabilities (ours) against the oracle: {apart(memory, oracle)}.",
        f"Distance of the running probabilities to the optimal ones: agents "
        f"{running['agent_distance']:.2e} (paper {PAPER_AGENT_DISTANCE:.2e}; uniform would be "
        f"{summary['uniform_agent_distance']:.2e}), examples {running['example_distance']:.2e} "
        f"(paper {PAPER_EXAMPLE_DISTANCE:.2e}; uniform {summary['uniform_example_distance']:.2e}).",
    ]
    return lines
