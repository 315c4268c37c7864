"""The tables that a run prints."""

from __future__ import annotations

import math
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
    # A column of its own only where there is something to compare.
    steps = len({row["step_size"] for row in summary["algorithms"]}) > 1
    headings = ["msd (dB)", f"gain over {first} (dB)", "|p_k - p_k^o|", "mean |p_n - p_n^o|"]
    for heading in (["step"] if steps else []) + headings:
        table.add_column(heading, justify="right")
    table.add_column("gradients a round", justify="right")
    table.add_column("rounds a second", justify="right")
    for row in summary["algorithms"]:
        gain = f"{row['gain_db']:.2f} ± {row['gain_stderr_db']:.2f}"
        table.add_row(
            row["name"],
            *([f"{row['step_size']:.3g}"] if steps else []),
            f"{row['msd_db']:.2f} ± {row['msd_stderr_db']:.2f}",
            "" if row["name"] == first else gain,
            f"{row['agent_distance']:.2e}",
            f"{row['example_distance']:.2e}",
            f"{row['gradients_per_round']:.0f}",
            f"{row['rounds_per_second']:,.0f}",
        )
    table.add_section()
    table.add_row(
        "uniform probabilities", *([""] if steps else []), "", "",
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
        if math.isnan(error):
            return f"{distance:+.2f} dB (one repetition: no standard error, no verdict)"
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


def measures_table(summary: dict[str, Any]) -> Table:
    """Final errors of every algorithm, with what the optimum and the majority class reach."""
    landmarks = summary["landmarks"]
    table = Table(
        title=f"{summary['experiment']}: {summary['repetitions']} repetitions, errors after "
        f"{summary['rounds']} rounds, squared distance to w^o over the last "
        f"{summary['steady_rounds']} (± standard error)",
        title_justify="left",
    )
    table.add_column("algorithm")
    for heading in ("test error", "balanced error", "|w - w^o|^2 (dB)", "gradients a round"):
        table.add_column(heading, justify="right")
    for row in summary["algorithms"]:
        errors = [row["final"][name] for name in ("test_error", "balanced_error")]
        table.add_row(
            row["name"],
            *(f"{100 * e['mean']:.2f}% ± {100 * e['stderr']:.2f}" for e in errors),
            f"{row['msd_db']:.2f} ± {row['msd_stderr_db']:.2f}",
            f"{row['gradients_per_round']:.0f}",
        )
    table.add_section()
    optimum = landmarks["optimum_test_error"], landmarks["optimum_balanced_error"]
    table.add_row("the minimiser w^o itself", *(f"{100 * e:.2f}%" for e in optimum), "", "")
    majority = f"{100 * landmarks['majority_test_error']:.2f}%"
    table.add_row("always the majority class", majority, "", "", "")
    for name, error in landmarks["paper_test_error"].items():
        table.add_row(f"the paper's {name}", f"{100 * error:.2f}%", "", "", "")
    return table


def step_lines(summary: dict[str, Any]) -> list[str]:
    """The best step size of every method, and whether the grid was too narrow for it."""
    lines = []
    for name, choice in summary["step_sizes"].items():
        edge = ", at the edge of the grid: a better one may lie beyond" if choice["at_edge"] else ""
        lines.append(f"Best step size of {name} on the rows held out: {choice['best']:g}{edge}.")
    return lines


def classification_verdict(summary: dict[str, Any]) -> list[str]:
    """ISFedAvg's error beside the paper's, and when FedAvg passes the paper's FedAvg."""
    paper = summary["landmarks"]["paper_test_error"]
    passage = summary["landmarks"]["passage_round"]
    rows = {row["name"]: row["final"]["test_error"] for row in summary["algorithms"]}

    def share(error: dict[str, float]) -> str:
        return f"{100 * error['mean']:.2f}% ± {100 * error['stderr']:.2f}"

    level = f"{100 * paper['FedAvg']:.2f}%"
    when = f"does not come down through the paper's {level}"
    if passage is not None:
        for_good = summary["landmarks"]["below_for_good_round"]
        when = f"passes the paper's {level} in round {passage}"
        when += "" if passage == for_good else f" (for good in round {for_good})"
    lines = [f"FedAvg at the paper's step size {when}; it ends at {share(rows['FedAvg'])}."]
    for name, error in rows.items():
        if not name.startswith("FedAvg"):
            lines.append(
                f"ISFedAvg, {name}: {share(error)}; the paper's ISFedAvg: "
                f"{100 * paper['ISFedAvg']:.2f}%."
            )
    return lines
